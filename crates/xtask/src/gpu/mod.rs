//! `gpu-check`: what has to be known of the project on a machine with a GPU, in one call: whether it is
//! right, how well the networks learn, and how long a step takes beside PyTorch's. `.ci/gpu-pack` puts what
//! that machine needs into a folder, because it may have no Rust.

mod facts;
mod learn;
mod memcheck;
pub mod ours;
mod right;
mod steps;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

/// What `gpu-check` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Run only this part (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<Part>,

    /// Test binary of functional (feature cuda)
    #[arg(long, value_name = "FILE")]
    tests: Option<PathBuf>,

    /// Python with PyTorch for this GPU
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// Folder with the four IDX files, or "synthetic"
    #[arg(long, value_name = "DIR|synthetic", default_value = "synthetic")]
    data: dataset::Data,

    /// Number of epochs for the accuracies
    #[arg(long, default_value_t = 10, value_name = "N")]
    epochs: usize,

    /// Number of rounds; every program is timed once in each
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,

    /// Folder for gpu.md
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    out: PathBuf,
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Compare operations, and steps of k replicas, with the CPU
    Right,
    /// Train, and check the test accuracy
    Learn,
    /// Run compute-sanitizer on a step of each network
    Memcheck,
    /// Time steps and epochs, compared with PyTorch
    Steps,
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// What was found. It is written whenever something is added, so that nothing is lost where a later part fails.
pub struct Report {
    path: PathBuf,
    text: String,
}

impl Report {
    fn add(&mut self, text: &str) -> Result<()> {
        self.text += text;
        let cannot = || format!("cannot write {}", self.path.display());
        fs::write(&self.path, &self.text).with_context(cannot)
    }
}

/// Checks, measures, prints the report and writes it.
///
/// # Errors
/// If there is no GPU, or something is not right or cannot be done.
pub fn check(options: &Options) -> Result<()> {
    let text = facts::all()?;
    let path = options.out.join("gpu.md");
    fs::create_dir_all(&options.out).with_context(|| format!("cannot write {}", path.display()))?;
    let mut report = Report { path, text };
    let mut done = Ok(());
    type Check = fn(&Options, &mut Report) -> Result<()>;
    let parts: [(Part, Check); 4] = [
        (Part::Right, right::all),
        (Part::Learn, learn::all),
        (Part::Memcheck, memcheck::all),
        (Part::Steps, steps::all),
    ];
    for (part, check) in parts {
        if !options.has(part) {
            continue;
        }
        if let Err(error) = check(options, &mut report) {
            report.add(&format!("\n**{part:?}:** {error:#}\n"))?;
            done = Err(error);
        }
    }
    println!("{}", report.text);
    done
}
