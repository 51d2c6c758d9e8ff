//! `bench cpu`: how long one training step takes, ours and the peers', in turn on the same machine; and
//! what it has in common with [`allreduce`].
//!
//! Every contender is a process of its own that does steps when it is asked to, so that its memory
//! and its threads are its own. Only one of them works at a time.

pub mod allreduce;
mod chart;
pub mod contender;
mod losses;
pub mod machine;
pub mod ours;
mod peers;
mod process;
mod report;
pub mod rounds;
pub mod serve;
pub mod stats;
pub mod work;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use work::Work;

/// What `bench cpu` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of rounds; every program is timed once in each
    #[arg(long, value_name = "N", default_value = "7")]
    rounds: NonZeroUsize,

    /// Measure only this part (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,

    /// Measure only this step, NETWORK-BATCH (repeatable)
    #[arg(long, value_name = "STEP", default_values = ["lenet-256", "resnet18-64", "resnet18-256"])]
    step: Vec<Work>,

    /// Number of cores for each program [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,

    /// Python with PyTorch; without it, one is installed in a virtual environment under target/
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Folder with the four IDX files, for the losses
    /// [default: FASHION_MNIST_DIR, else synthetic images]
    #[arg(long, value_name = "DIR|synthetic")]
    data: Option<dataset::Data>,

    /// Folder for cpu.md and cpu.svg
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    out: PathBuf,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// This project, with 1 replica, 2, and one for each core
    Ours,
    /// PyTorch, eager and compiled, each also with channels_last
    Pytorch,
    /// candle with its own operations and layers
    Candle,
    /// Burn with its fastest CPU backend
    Burn,
    /// Losses with Winograd's algorithm, compared with im2col
    Losses,
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(all_cores, NonZeroUsize::get)
    }
}

/// Measures, prints the report and writes it.
///
/// # Errors
/// If a peer cannot be had, a contender fails, or the report cannot be written.
pub fn cpu(options: &Options) -> Result<()> {
    let plan = rounds::Plan {
        rounds: options.rounds.get(),
        seconds: 60.0,
        warm_up: 2,
        most_steps: 20,
        live_on: false,
    };
    let mut tables = Vec::new();
    let contenders = contender::list(options)?;
    if !contenders.is_empty() {
        for &work in &options.step {
            tables.push((work, rounds::measure(&work, &contenders, &plan)?));
        }
    }
    let losses = match options.has(Part::Losses) {
        true => losses::table(options)?,
        false => String::new(),
    };
    let markdown = report::markdown(options.threads(), &tables, &losses);
    println!("\n{markdown}");
    write(&options.out, "cpu.md", &markdown)?;
    write(&options.out, "cpu.svg", &chart::bars(&tables)?)
}

fn all_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let cannot = || format!("cannot write {}", path.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    fs::write(&path, text).with_context(cannot)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
