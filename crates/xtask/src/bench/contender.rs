//! The contenders: the programs that are compared, and their commands.

use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tempfile::TempDir;

use super::peers::Peers;
use super::work::Work;

/// Where a contender comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The project.
    Ours,
    /// PyTorch: the others are compared with it.
    Pytorch,
    /// candle or Burn.
    Other,
}

/// A program that is compared with the others.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Where it comes from.
    pub family: Family,
    /// Its name in a table.
    pub name: String,
    /// The threads that it may use.
    pub threads: usize,
    program: PathBuf,
    args: Vec<String>,
    last_args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Contender {
    /// One without arguments.
    pub fn new(family: Family, name: &str, threads: usize, program: &Path) -> Self {
        Self {
            family,
            name: name.to_owned(),
            threads,
            program: program.to_owned(),
            args: Vec::new(),
            last_args: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Its arguments in front of those that say what to do.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// Its arguments behind them.
    pub fn last_args(mut self, args: &[&str]) -> Self {
        self.last_args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// Tells it the number of threads by variables.
    fn threads_by(mut self, names: &[&'static str]) -> Self {
        let threads = self.threads.to_string();
        self.env = names.iter().map(|&name| (name, threads.clone())).collect();
        self
    }

    /// Gives torch.compile a folder of its own: what another one compiled would make it look faster.
    fn compiles_into(mut self, cache: Option<&TempDir>) -> Self {
        // the C++ compiler is told the path without quotes
        let name = self.label().replace(", ", "-").replace(' ', "-");
        let folder = cache.map(|cache| cache.path().join(name));
        let variable = |folder: PathBuf| ("TORCHINDUCTOR_CACHE_DIR", folder.display().to_string());
        self.env.extend(folder.map(variable));
        self
    }

    /// `ours, 2 replicas, 4 threads`.
    pub fn label(&self) -> String {
        let s = if self.threads == 1 { "" } else { "s" };
        format!("{}, {} thread{s}", self.name, self.threads)
    }

    /// The command that does `work` on request.
    pub fn command(&self, work: &Work) -> Command {
        let mut command = Command::new(&self.program);
        let (network, batch) = (work.network.word(), work.batch.to_string());
        command.args(&self.args).args([network, &batch]);
        command.args(&self.last_args);
        command.envs(self.env.iter().cloned());
        command
    }
}

/// How `benches/pytorch_step.py` can run.
const PYTORCH_MODES: [&str; 4] = [
    "eager",
    "eager-channels_last",
    "compile",
    "compile-channels_last",
];

/// All contenders, with all of `threads`, then with one.
pub fn list(peers: &Peers, threads: usize) -> Result<Vec<Contender>> {
    let mut all = Vec::new();
    if peers.ours {
        all.extend(ours(threads)?);
    }
    let mut counts = vec![threads, 1];
    counts.dedup();
    for threads in counts {
        if let Some((python, script)) = &peers.pytorch {
            all.extend(PYTORCH_MODES.map(|mode| {
                let (script, count) = (script.to_string_lossy(), threads.to_string());
                let name = format!("PyTorch {}", mode.replace('-', ", "));
                Contender::new(Family::Pytorch, &name, threads, python)
                    .args(&[&script, mode, &count])
                    .threads_by(&["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
                    .compiles_into(peers.cache.as_ref())
            }));
        }
        if let Some(candle) = &peers.candle {
            let candle = Contender::new(Family::Other, "candle as it is", threads, candle);
            all.push(candle.threads_by(&["RAYON_NUM_THREADS"]));
        }
    }
    if let Some(burn) = &peers.burn {
        let burn = Contender::new(Family::Other, "Burn", threads, burn);
        all.push(burn.threads_by(&["RAYON_NUM_THREADS"]));
    }
    all.sort_by_key(|contender| Reverse(contender.threads)); // in the same order otherwise
    Ok(all)
}

/// As many replicas as threads, two, and one; and one on one thread.
fn ours(threads: usize) -> Result<Vec<Contender>> {
    let me = env::current_exe()?;
    let mut counts: Vec<_> = [threads, 2, 1].map(|k| (k.min(threads), threads)).into();
    counts.push((1, 1));
    counts.dedup();
    let contender = |(k, threads): (usize, usize)| {
        let replicas = if k == 1 { "replica" } else { "replicas" };
        let name = format!("ours, {k} {replicas}");
        let (k, count) = (k.to_string(), threads.to_string());
        let args = ["contend", "--replicas", &k, "--threads", &count];
        Contender::new(Family::Ours, &name, threads, &me).args(&args)
    };
    Ok(counts.into_iter().map(contender).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_contender_takes_part_twice() -> Result<()> {
        let names = |threads| -> Result<Vec<(String, usize)>> {
            let all = ours(threads)?.into_iter();
            Ok(all.map(|c| (c.name, c.threads)).collect())
        };
        let of = |k: &str, threads| (format!("ours, {k}"), threads);
        let (two, one) = ("2 replicas", "1 replica");
        assert_eq!(names(1)?, [of(one, 1)]);
        assert_eq!(names(2)?, [of(two, 2), of(one, 2), of(one, 1)]);
        assert_eq!(names(4)?.len(), 4);
        Ok(())
    }
}
