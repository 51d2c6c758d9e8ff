//! Options and parts of `gpu-check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of `gpu-check`.
#[derive(Args, Debug)]
pub struct GpuOptions {
    /// Run only this part (repeatable)
    #[arg(long, value_name = "PART")]
    pub only: Vec<Part>,

    /// Compare steps with PyTorch, by this Python
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,

    /// Compare steps with another build of this program (repeatable)
    #[arg(long, value_name = "PATH")]
    pub with: Vec<PathBuf>,

    /// Examples of a minibatch in the parts same-bits and speed
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub batch: usize,

    /// The report
    #[arg(long, value_name = "FILE", default_value = "target/gpu-check.md")]
    pub out: PathBuf,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Programs, GPUs, links, libraries
    Facts,
    /// Copies between each pair of GPUs
    Copies,
    /// All-reduce by each algorithm, compared with the CPU
    Sums,
    /// Replicas on several GPUs, compared with replicas on one
    SameBits,
    /// Steps of each number of replicas, compared with the CPU
    Right,
    /// Replicas that fail, and replicas that do not come
    Faults,
    /// Milliseconds a step of each number of replicas
    Speed,
    /// Steps in turns with those of --python and --with
    Compare,
}
