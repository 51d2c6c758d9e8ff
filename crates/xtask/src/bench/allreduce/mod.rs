//! `bench allreduce`: the all-reduces of `collective` compared with `x += 1` and with Open MPI's.

mod measure;
mod open_mpi;
mod sizes;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use super::machine::{Spent, circumstances};
use super::options::write;
use super::ours::version;
use measure::{TURNS, name};
use sizes::{SIZES, calls, size};

/// The options of `bench allreduce`.
#[derive(Args, Debug)]
pub struct AllReduceOptions {
    /// Number of rounds with Open MPI
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,

    /// Python with mpi4py and numpy; without it, Open MPI is not measured
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Folder for allreduce.md
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    out: PathBuf,
}

const EXPLAINED: &str = "\
µs: the median over the calls, and the fastest and slowest call. The time of a call is that of its slowest \
thread, from a barrier to the return. Each round calls all algorithms once. Every thread fills its buffer anew \
before each call, and checks the sum after all threads have returned. x += 1: the same threads and barriers, but \
each thread only adds 1 to its own buffer, so that every byte is read and written once.";

/// Measures, prints the report and writes it.
///
/// # Errors
/// If Open MPI fails, or the report cannot be written.
pub fn allreduce(options: &AllReduceOptions) -> Result<()> {
    let cores = d2l::cores();
    ensure!(cores >= 2, "an all-reduce is among 2 cores at least");
    let open_mpi = match &options.python {
        Some(python) => open_mpi::table(python, cores, options.rounds)?,
        None => String::new(),
    };
    let mut spent = Spent::default();
    let table = spent.add(std::process::id(), || table(cores))?;
    let head = circumstances(cores, &version(), spent.other_cores());
    let markdown = format!("# All-reduce on the CPU\n\n{head}{table}\n{EXPLAINED}\n{open_mpi}");
    println!("\n{markdown}");
    write(&options.out, "allreduce.md", &markdown)
}

/// All turns of `k` threads, size after size.
fn table(k: usize) -> Result<String> {
    let names = TURNS.map(|turn| format!("{}, µs", name(turn))).join(" | ");
    let columns = "--:|".repeat(TURNS.len() + 2);
    let mut text = format!("\n## {k} threads\n\n| bytes | {names} | calls |\n|{columns}\n");
    for len in SIZES {
        let micros = measure::measure(k, len, calls(len), &TURNS)?;
        let times: Vec<String> = micros.iter().map(|micros| micros.to_string()).collect();
        let bytes = size(len);
        let times = times.join(" | ");
        eprintln!("k = {k}, {bytes}: measured");
        text += &format!("| {bytes} | {times} | {} |\n", calls(len));
    }
    Ok(text)
}
