//! The contenders: the programs that are compared, and their commands.

use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::options::{CpuOptions, Part};
use super::peers;
use super::work::Work;

/// A program that is compared with the others.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in a table.
    pub name: String,
    /// The threads that it may use.
    pub threads: usize,
    /// It trains on so many times the batch.
    pub times: usize,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Contender {
    /// One with its arguments in front of network and batch.
    pub fn new(name: &str, threads: usize, program: &Path, args: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            threads,
            times: 1,
            program: program.to_owned(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
        }
    }

    /// Tells it the number of threads by variables.
    fn threads_by(mut self, names: &[&'static str]) -> Self {
        let threads = self.threads.to_string();
        self.env = names.iter().map(|&name| (name, threads.clone())).collect();
        self
    }

    /// PyTorch, in bf16 or in float32: the others are compared with it.
    pub fn is_pytorch(&self, bf16: bool) -> bool {
        let starts = |words| self.name.starts_with(words);
        starts("PyTorch") && starts("PyTorch bf16") == bf16
    }

    /// What it does where the others do `work`.
    pub fn work(&self, work: &Work) -> Work {
        Work {
            batch: work.batch * self.times,
            ..*work
        }
    }

    /// The command that does `work` on request.
    pub fn command(&self, work: &Work) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(self.work(work).args());
        command.envs(self.env.iter().cloned());
        command
    }
}

/// How `benches/pytorch_step.py` can run.
const PYTORCH_MODES: [&str; 6] = [
    "eager",
    "eager-channels_last",
    "compile",
    "compile-channels_last",
    "bf16-eager-channels_last",
    "bf16-compile-channels_last",
];

/// Those that are compared on several devices.
const DDP_MODES: [&str; 2] = ["ddp-eager-channels_last", "ddp-compile-channels_last"];

/// The contenders that `options` ask for and that can do `work`, with all threads, then with one.
///
/// # Errors
/// If a peer cannot be had; the message says how to do without it.
pub fn list(options: &CpuOptions, work: &Work) -> Result<Vec<Contender>> {
    let threads = options.threads();
    let mut counts = vec![threads, 1];
    counts.dedup();
    let mut all = Vec::new();
    if options.has(Part::Ours) {
        all.extend(ours(threads, work.batch)?);
    }
    if options.has(Part::Pytorch) {
        peers::has_pytorch(&options.python)?;
        let modes = |&n| PYTORCH_MODES.map(|mode| pytorch(options, mode, n));
        all.extend(counts.iter().flat_map(modes));
    }
    let other = |name, threads, program: &Path| {
        Contender::new(name, threads, program, &[]).threads_by(&["RAYON_NUM_THREADS"])
    };
    if options.has(Part::Candle) && work.network.is_the_books() {
        let candle = peers::build("candle", "candle")?;
        all.extend(counts.iter().map(|&n| other("candle as it is", n, &candle)));
    }
    if options.has(Part::Burn) && work.network.is_the_books() {
        all.push(other("Burn", threads, &peers::build("burn", "burn-flex")?));
    }
    all.sort_by_key(|contender| Reverse(contender.threads)); // in the same order otherwise
    Ok(all)
}

/// Contenders on one device and on several, each of which is one core: with the batch shared out, and ours also with
/// the batch on each.
///
/// # Errors
/// If PyTorch cannot be had; the message says how to do without it.
pub fn on_devices(options: &CpuOptions, work: &Work) -> Result<Vec<Contender>> {
    if !options.has(Part::Devices) {
        return Ok(Vec::new());
    }
    let mut counts = vec![1, 2, 4];
    counts.retain(|&k| k <= options.threads().min(work.batch));
    let mut all = Vec::new();
    for &k in &counts {
        let replicas = of_ours(k, k)?;
        let each = Contender {
            times: k,
            ..replicas.clone()
        };
        all.extend([replicas].into_iter().chain((k > 1).then_some(each)));
    }
    if options.has(Part::Pytorch) {
        peers::has_pytorch(&options.python)?;
        for mode in DDP_MODES {
            all.extend(counts.iter().map(|&k| pytorch(options, mode, k)));
        }
    }
    Ok(all)
}

fn pytorch(options: &CpuOptions, mode: &str, threads: usize) -> Contender {
    let script = peers::root().join("benches/pytorch_step.py");
    let name = format!("PyTorch {}", mode.replace('-', ", "));
    let args = [&script.to_string_lossy(), mode, &threads.to_string()];
    let pytorch = Contender::new(&name, threads, &options.python, &args);
    pytorch.threads_by(&["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
}

/// As many replicas as threads, two, and one; and one on one thread. Each replica has an example at least.
fn ours(threads: usize, batch: usize) -> Result<Vec<Contender>> {
    let mut counts = [(threads, threads), (2, threads), (1, threads), (1, 1)]
        .map(|(k, n)| (k.min(n).min(batch), n))
        .to_vec();
    counts.dedup();
    counts.into_iter().map(|(k, n)| of_ours(k, n)).collect()
}

fn of_ours(k: usize, threads: usize) -> Result<Contender> {
    let replicas = if k == 1 { "replica" } else { "replicas" };
    let name = format!("ours, {k} {replicas}");
    let (k, count) = (k.to_string(), threads.to_string());
    let args = ["contend", "--replicas", &k, "--threads", &count];
    Ok(Contender::new(&name, threads, &env::current_exe()?, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_contender_takes_part_twice() -> Result<()> {
        let names = |threads| -> Result<Vec<(String, usize)>> {
            let all = ours(threads, 256)?.into_iter();
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
