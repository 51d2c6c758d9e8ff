//! The developer's commands, `cargo run --release -p xtask -- COMMAND`. None of them is needed to
//! build, test or read the project.

mod bench;
mod gpu;
mod soak;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The developer's commands
#[derive(Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// On a machine with a GPU: is it right, does it learn, how fast is it beside PyTorch
    GpuCheck(gpu::Options),
    /// Build what gpu-check needs on a machine without Rust, and put it into a folder
    GpuPack(gpu::pack::Options),
    /// Does memory grow, however long a run is
    Soak(soak::Options),
    /// A program of the book
    #[command(hide = true)]
    Train(soak::Job),
    /// One contender of gpu-check, in a process of its own
    #[command(hide = true)]
    ContendGpu(gpu::ours::Job),
    /// One contender of a measurement, in a process of its own
    #[command(hide = true)]
    Contend(bench::ours::Job),
    /// One figure of ours, in a process of its own
    #[command(hide = true)]
    Figure(bench::figures::Job),
}

#[derive(Subcommand)]
enum Bench {
    /// A training step on the CPU: ours, PyTorch, candle as it is, Burn
    Cpu(bench::Options),
    /// The all-reduces on the CPU: their bound, Open MPI, the cost model
    Allreduce(bench::allreduce::Options),
    /// What it takes to compare the parameters of all replicas after an epoch
    Checks(bench::checks::Options),
}

fn main() -> ExitCode {
    if gpu::pack::wraps_rustc() {
        return gpu::pack::rustc();
    }
    let done = match Cli::parse().command {
        Command::Bench(Bench::Cpu(options)) => bench::cpu(&options),
        Command::Bench(Bench::Allreduce(options)) => bench::allreduce::allreduce(&options),
        Command::Bench(Bench::Checks(options)) => bench::checks::checks(&options),
        Command::GpuCheck(options) => gpu::check(&options),
        Command::GpuPack(options) => gpu::pack::pack(&options),
        Command::Soak(options) => soak::soak(&options),
        Command::Train(job) => return soak::train(job),
        Command::ContendGpu(job) => gpu::ours::contend(&job),
        Command::Contend(job) => bench::ours::contend(&job),
        Command::Figure(job) => bench::figures::figure(&job),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}"); // without a backtrace: it says what to do
            ExitCode::FAILURE
        }
    }
}
