//! A contender's process: asked for steps, timed from inside, watched from outside.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::machine::{Spent, peak_memory};

/// A process that waits for requests.
pub struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Its version, as it says.
    pub version: String,
}

impl Process {
    /// Starts it and waits until it is ready.
    pub fn start(mut command: Command) -> Result<Self> {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        #[cfg(unix)] // what its children spend is its own
        std::os::unix::process::CommandExt::process_group(pipes, 0);
        let mut child = pipes
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut process = Self {
            child,
            requests,
            answers,
            version: String::new(),
        };
        let line = process.line()?;
        let version = line
            .strip_prefix("ready ")
            .with_context(|| format!("it said {line:?}"))?;
        process.version = version.to_owned();
        Ok(process)
    }

    /// Has it do `steps` steps: the milliseconds of each. Adds to `spent` the time from the request to the answer.
    pub fn ask(&mut self, steps: usize, spent: &mut Spent) -> Result<Vec<f64>> {
        let line = spent.add(self.child.id(), || {
            let requests = self.requests.as_mut().context("no pipe")?;
            writeln!(requests, "{steps}").context("it has ended")?;
            self.line()
        })?;
        let times = line.split(' ').map(str::parse).collect::<Result<_, _>>();
        times.with_context(|| format!("it answered {line:?}"))
    }

    /// The most memory that it had, in MiB.
    pub fn peak_memory(&self) -> f64 {
        peak_memory(self.child.id())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("it ended: {}", self.child.wait()?);
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without further requests it ends its children and then itself
        self.requests = None;
        let _ = self.child.wait();
    }
}
