//! `bench cpu`: how long one training step takes, ours and the peers', in turn on the same machine; and
//! what it has in common with [`allreduce`].
//!
//! Every contender is a process of its own that does steps when it is asked to, so that its memory
//! and its threads are its own. Only one of them works at a time.

pub mod allreduce;
pub mod checkpoints;
pub mod checks;
pub mod contender;
mod losses;
pub mod machine;
pub mod networks;
mod options;
pub mod ours;
mod peers;
mod process;
mod report;
pub mod rounds;
pub mod serve;
pub mod stats;
pub mod train;
pub mod work;

use anyhow::Result;

pub use options::CpuOptions;
use options::{Part, write};

/// Measures, prints the report and writes it.
///
/// # Errors
/// If a peer cannot be had, a contender fails, or the report cannot be written.
pub fn cpu(options: &CpuOptions) -> Result<()> {
    let effort = rounds::Effort {
        rounds: options.rounds.get(),
        seconds: 60.0,
        warm_up: 2,
        least_steps: 3,
        most_steps: 4000,
        live_on: false,
    };
    let mut measured = Vec::new();
    for &work in &options.step {
        let contenders = contender::all(options, &work)?;
        measured.push((work, rounds::measure(&work, &contenders, &effort)?));
    }
    let losses = if options.has(Part::Losses) {
        losses::table(options)?
    } else {
        String::new()
    };
    let markdown = report::markdown(options.threads(), &measured, &losses);
    println!("\n{markdown}");
    let name = if options.avx2 {
        "cpu-avx2.md"
    } else {
        "cpu.md"
    };
    write(&options.out, name, &markdown)
}
