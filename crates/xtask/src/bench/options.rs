//! Options of `bench cpu`, and those that it has in common with `bench allreduce`.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use super::work::Work;

/// The book's steps; other networks; steps in which there is so little to compute that what a step costs always shows.
pub const STEPS: [&str; 10] = [
    "lenet-256",
    "resnet18-64",
    "resnet18-256",
    "vgg-128",
    "mnist-128",
    "resnet20-128",
    "transformer-64",
    "mlp512-128",
    "lenet-1",
    "mlp128-16",
];

/// Modes of `benches/pytorch_step.py`.
pub const PYTORCH_MODES: [&str; 6] = [
    "eager",
    "eager-channels_last",
    "compile",
    "compile-channels_last",
    "bf16-eager-channels_last",
    "bf16-compile-channels_last",
];

/// Options of `bench cpu`.
#[derive(Args, Debug)]
pub struct CpuOptions {
    /// Number of rounds; every program is timed once in each
    #[arg(long, value_name = "N", default_value = "7")]
    pub rounds: NonZeroUsize,

    /// Measure only this part (repeatable)
    #[arg(long, value_name = "NAME")]
    pub only: Vec<Part>,

    /// Measure only this step, NETWORK-BATCH (repeatable)
    #[arg(long, value_name = "STEP", default_values = STEPS)]
    pub step: Vec<Work>,

    /// Number of threads of each program [default: all cores, and then 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// In the tables of programs, measure PyTorch in this mode only (repeatable): each that is compiled takes a minute before its first step
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(PYTORCH_MODES))]
    pub mode: Vec<String>,

    /// No program uses AVX-512; the report is cpu-avx2.md
    #[arg(long)]
    pub avx2: bool,

    /// Python with PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,

    /// Folder with the four IDX files, for the losses
    /// [default: FASHION_MNIST_DIR, else synthetic images]
    #[arg(long, value_name = "DIR|synthetic")]
    pub data: Option<dataset::Data>,

    /// Folder for the report
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    pub out: PathBuf,
}

/// Part that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// This project, with 1 replica, 2, and one for each core
    Ours,
    /// PyTorch, eager and compiled, each also with channels_last and with bf16
    Pytorch,
    /// 1 device and several, each of one core: this project, and DistributedDataParallel if PyTorch is measured
    Devices,
    /// Losses with Winograd's algorithm, compared with im2col
    Losses,
}

impl CpuOptions {
    /// True if it is to be measured.
    pub fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The number of cores for each program.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(d2l::cores, NonZeroUsize::get)
    }
}

/// Writes a file of the report.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    fs::write(&path, text).with_context(cannot)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
