//! The contenders: the programs that are compared, and their commands.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::options::{CpuOptions, PYTORCH_MODES, Part};
use super::peers;
use super::work::Work;

/// The tables of a step in which a contender has a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// That of all programs, with all threads and with one.
    pub programs: bool,
    /// That of one device and several.
    pub devices: bool,
}

/// A program that is compared with the others.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in a table.
    pub name: String,
    /// The threads that it may use.
    pub threads: usize,
    /// It trains on this many times the batch.
    pub times: usize,
    /// Which tables have a row of it. It is measured once for all of them.
    pub tables: Tables,
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
            tables: Tables::default(),
            program: program.to_owned(),
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: Vec::new(),
        }
    }

    /// PyTorch, in bf16 or in float32: the others are compared with it.
    pub fn is_pytorch(&self, bf16: bool) -> bool {
        let starts = |words| self.name.starts_with(words);
        starts("PyTorch") && starts("PyTorch bf16") == bf16
    }

    /// The name of what is compared on one device and on several: one process of PyTorch, or one of ours, is the
    /// same program as several.
    pub fn without_devices(&self) -> String {
        if self.name.starts_with("ours") {
            "ours".to_owned()
        } else {
            self.name.replace("ddp, ", "")
        }
    }

    /// Its work where the others do `work`.
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

/// Those that are compared on several devices, with DistributedDataParallel.
const DDP_MODES: [&str; 2] = ["eager-channels_last", "compile-channels_last"];

/// The contenders that `options` ask for and that can do `work`, each once. Those on one device and on several come
/// first, side by side: a round compares their times.
///
/// # Errors
/// If a peer cannot be had; the message says how to do without it.
pub fn all(options: &CpuOptions, work: &Work) -> Result<Vec<Contender>> {
    let mut all = on_devices(options, work)?;
    for mut contender in programs(options, work)? {
        let key = |c: &Contender| (c.name.clone(), c.threads, c.times);
        match all.iter_mut().find(|c| key(c) == key(&contender)) {
            Some(same) => same.tables.programs = true,
            None => {
                contender.tables.programs = true;
                all.push(contender);
            }
        }
    }
    if options.avx2 {
        let limits = AVX2.map(|(name, value)| (name, value.to_owned()));
        all.iter_mut().for_each(|c| c.env.extend(limits.clone()));
    }
    Ok(all)
}

/// The variables that keep this project, PyTorch, oneDNN and MKL from using AVX-512.
const AVX2: [(&str, &str); 4] = [
    (devices::MAX_CPU_ISA, "avx2"),
    ("ATEN_CPU_CAPABILITY", "avx2"),
    ("ONEDNN_MAX_CPU_ISA", "AVX2"),
    ("MKL_ENABLE_INSTRUCTIONS", "AVX2"),
];

/// Every program, with all threads, then with one unless the number of threads was given.
fn programs(options: &CpuOptions, work: &Work) -> Result<Vec<Contender>> {
    let threads = options.threads();
    let mut counts = vec![threads];
    if options.threads.is_none() && threads > 1 {
        counts.push(1);
    }
    let mut all = Vec::new();
    if options.has(Part::Ours) {
        let all_ours = ours(threads, work.batch)?.into_iter();
        all.extend(all_ours.filter(|ours| counts.contains(&ours.threads)));
    }
    if options.has(Part::Pytorch) {
        peers::has_pytorch(&options.python)?;
        for &n in &counts {
            // AVX2 has no instructions for bf16: a step takes minutes
            let modes = PYTORCH_MODES
                .iter()
                .filter(|mode| !(options.avx2 && mode.starts_with("bf16")))
                .filter(|mode| options.mode.is_empty() || options.mode.iter().any(|m| m == *mode));
            all.extend(modes.map(|mode| pytorch(options, mode, n)));
        }
    }
    Ok(all)
}

/// On one device and on several, each of which is one core: with the batch shared out, and ours also with the batch on
/// each.
fn on_devices(options: &CpuOptions, work: &Work) -> Result<Vec<Contender>> {
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
            let on = |&k: &usize| match k {
                1 => pytorch(options, mode, 1),
                _ => pytorch(options, &format!("ddp-{mode}"), k),
            };
            all.extend(counts.iter().map(on));
        }
    }
    for contender in &mut all {
        contender.tables.devices = true;
    }
    Ok(all)
}

fn pytorch(options: &CpuOptions, mode: &str, threads: usize) -> Contender {
    let script = peers::root().join("benches/pytorch_step.py");
    let name = format!("PyTorch {}", mode.replace('-', ", "));
    let count = threads.to_string();
    let args = [&script.to_string_lossy(), mode, &count];
    Contender {
        env: ["OMP_NUM_THREADS", "MKL_NUM_THREADS"]
            .map(|name| (name, count.clone()))
            .to_vec(),
        ..Contender::new(&name, threads, &options.python, &args)
    }
}

/// Contenders of as many replicas as threads, two, one; and one on one thread. Each replica has at least one example.
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
    let k = k.to_string();
    let count = threads.to_string();
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
