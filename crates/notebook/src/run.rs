//! A chapter's run, in a process of its own: what each cell printed.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// What the process prints before the line of a cell, where that cell begins.
pub const BEGIN: &str = "\u{1e}cell ";

/// How long a chapter may take: several times what it takes on four cores, before it counts as hanging.
pub const LIMIT: Duration = Duration::from_secs(300);

/// What a cell printed.
#[derive(Debug, PartialEq)]
pub struct Printed {
    /// The line of the chapter where the cell begins.
    pub line: usize,
    /// What went to stdout.
    pub text: String,
}

/// Runs a chapter by `program run CHAPTER`, in the folder where its page lies.
///
/// # Errors
/// If a cell fails, panics or goes on beyond `limit`: the message has its line, and what the process said.
pub fn run(program: &Path, folder: &Path, chapter: &str, limit: Duration) -> Result<Vec<Printed>> {
    let mut child = Command::new(program)
        .args(["run", chapter, "--marks"])
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .env("RUST_BACKTRACE", "0")
        .env_remove("FASHION_MNIST_DIR") // or a cell would say something else where there is one
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.display().to_string())?;
    let stdout = read(child.stdout.take());
    let stderr = read(child.stderr.take());
    let ended = ends(&mut child, limit)?;
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("it cannot panic"));
    let cells = cells(&String::from_utf8_lossy(&stdout));
    let at = cells.last().map_or(1, |cell| cell.line);
    let stderr = String::from_utf8_lossy(&stderr);
    match ended {
        Some(true) => Ok(cells),
        Some(false) => bail!("{chapter}.md:{at}: this cell fails\n{}", stderr.trim_end()),
        None => {
            bail!("{chapter}.md:{at}: this cell was at work when the chapter's {limit:?} were over")
        }
    }
}

/// Reads all that comes, in a thread.
fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // what was read before an error is what there is
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

/// Whether a process succeeds; `None` where it had to be ended.
fn ends(child: &mut Child, limit: Duration) -> Result<Option<bool>> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// What each cell printed, by the marks.
fn cells(stdout: &str) -> Vec<Printed> {
    let parts = stdout.split(BEGIN).skip(1);
    let cell = |part: &str| {
        let (line, text) = part.split_once('\n')?;
        Some(Printed {
            line: line.parse().ok()?,
            text: text.into(),
        })
    };
    parts.filter_map(cell).collect()
}
