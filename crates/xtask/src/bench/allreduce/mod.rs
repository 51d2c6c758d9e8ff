//! `bench allreduce`: the all-reduces of `collective` compared with `x += 1` and with Open MPI's.

mod measure;
mod open_mpi;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;

use super::machine::{Spent, circumstances};
use super::options::write;
use super::ours::version;
use measure::{TURNS, name};

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

/// The elements of the gradients of LeNet and of ResNet-18.
const LENET: usize = 129_068;
const RESNET18: usize = 11_175_818;

/// The elements of a thread's buffer: 1 kB to 128 MB.
const SIZES: [usize; 11] = [
    250, 1000, 4000, 16_000, 64_000, LENET, 250_000, 1_000_000, 4_000_000, RESNET18, 32_000_000,
];

/// How often an all-reduce of so many elements is called: fewer times where it takes long.
fn calls(len: usize) -> usize {
    (1_000_000_000 / len).clamp(31, 1000)
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
        let (bytes, times) = (size(len), times.join(" | "));
        eprintln!("k = {k}, {bytes}: measured");
        text += &format!("| {bytes} | {times} | {} |\n", calls(len));
    }
    Ok(text)
}

/// The bytes of so many elements; for the gradients of a network also its name.
fn size(len: usize) -> String {
    let bytes = (len * size_of::<f32>()) as f64;
    match len {
        LENET => format!("{:.0} kB, LeNet", bytes / 1e3),
        RESNET18 => format!("{:.1} MB, ResNet-18", bytes / 1e6),
        _ if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        _ => format!("{:.0} MB", bytes / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named() {
        let names = [250, LENET, 1_000_000, RESNET18].map(size);
        let expected = ["1 kB", "516 kB, LeNet", "4 MB", "44.7 MB, ResNet-18"];
        assert_eq!(names, expected);
    }
}
