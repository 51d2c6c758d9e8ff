//! `gpu-check`: whether whole steps are right on a GPU, how well the networks learn there, and how long a step takes
//! beside PyTorch's, each many times. The tests of the operations and memcheck are parts of `.ci/first-run.sh`, which
//! also runs some of this where there are minutes instead of half an hour.

mod facts;
mod learn;
mod options;
pub mod ours;
mod right;
mod steps;

use std::fs;

use anyhow::{Context, Result};

pub use options::GpuOptions;
use options::{Part, Report};

/// Checks, measures, prints the report and writes it.
///
/// # Errors
/// If there is no GPU, or something is not right or cannot be done.
pub fn check(options: &GpuOptions) -> Result<()> {
    let text = facts::all()?;
    let path = options.out.join("gpu.md");
    fs::create_dir_all(&options.out).with_context(|| format!("cannot write {}", path.display()))?;
    let mut report = Report { path, text };
    let mut done = Ok(());
    type Check = fn(&GpuOptions, &mut Report) -> Result<()>;
    let parts: [(Part, Check); 3] = [
        (Part::Right, right::all),
        (Part::Learn, learn::all),
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
