//! The developer's commands, `cargo run --release -p xtask -- COMMAND`. None of them is needed to
//! build, test or read the project.

extern crate data_parallel_collective as collective;
extern crate data_parallel_devices as devices;
extern crate data_parallel_functional as functional;

mod bench;
mod gpu;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measurements and checks for developers
#[derive(Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a benchmark
    #[command(subcommand)]
    Bench(Bench),
    /// Check that training is right on the GPUs of this machine, and how fast it is
    GpuCheck(gpu::GpuOptions),
    /// One contender of a measurement, in a process of its own
    #[command(hide = true)]
    Contend(bench::ours::Contend),
}

#[derive(Subcommand)]
enum Bench {
    /// Training steps on the CPU: this project, PyTorch
    Cpu(bench::CpuOptions),
    /// All-reduce on the CPU: every algorithm, x += 1, Open MPI
    Allreduce(bench::allreduce::AllReduceOptions),
    /// A checkpoint, compared with the steps between two
    Checkpoints(bench::checkpoints::CheckpointOptions),
    /// The check of gradients, compared with a step
    Checks,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(Bench::Cpu(options)) => bench::cpu(&options),
        Command::Bench(Bench::Allreduce(options)) => bench::allreduce::allreduce(&options),
        Command::Bench(Bench::Checkpoints(options)) => bench::checkpoints::checkpoints(&options),
        Command::Bench(Bench::Checks) => bench::checks::checks(),
        Command::GpuCheck(options) => gpu::check(&options),
        Command::Contend(job) => bench::ours::contend(&job),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}"); // without a backtrace: it says what to do
            ExitCode::FAILURE
        }
    }
}
