//! Options and report of `gpu-check`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

/// Options of `gpu-check`.
#[derive(Args, Debug)]
pub struct GpuOptions {
    /// Run only this part (repeatable)
    #[arg(long, value_name = "NAME")]
    pub only: Vec<Part>,

    /// Python with PyTorch for this GPU
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub python: PathBuf,

    /// Folder with the four IDX files, or "synthetic"
    #[arg(long, value_name = "DIR|synthetic", default_value = "synthetic")]
    pub data: dataset::Data,

    /// Number of epochs for the accuracies
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub epochs: usize,

    /// Number of rounds; every program is timed once in each
    #[arg(long, default_value_t = 7, value_name = "N")]
    pub rounds: usize,

    /// Folder for gpu.md
    #[arg(long, value_name = "DIR", default_value = "target/gpu-check")]
    pub out: PathBuf,
}

/// Part that can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Compare steps of k replicas with the CPU
    Right,
    /// Train, and check the test accuracy
    Learn,
    /// Time steps and epochs, compared with PyTorch
    Steps,
}

impl GpuOptions {
    /// True if it is to be done.
    pub fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Findings. They are written whenever something is added, so that nothing is lost where a later part fails.
pub struct Report {
    pub path: PathBuf,
    pub text: String,
}

impl Report {
    /// Adds a part.
    pub fn add(&mut self, text: &str) -> Result<()> {
        self.text += text;
        let cannot = || format!("cannot write {}", self.path.display());
        fs::write(&self.path, &self.text).with_context(cannot)
    }
}
