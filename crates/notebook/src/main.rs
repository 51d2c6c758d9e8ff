//! The chapters of `notebooks-md`: `cargo run -p notebook -- COMMAND`. The cells of all chapters are compiled
//! into this program, so that it can run them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use notebook::run::BEGIN;

// What a reader need not see in a cell need not be warned of.
#[allow(
    dead_code,
    unused_assignments,
    unused_imports,
    unused_mut,
    unused_qualifications,
    unused_variables
)]
mod chapters {
    include!(concat!(env!("OUT_DIR"), "/chapters.rs"));
}

/// The chapters of notebooks-md
#[derive(Parser)]
#[command(name = "notebook")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the cells of a chapter
    Run {
        chapter: String,
        /// Say where each cell begins
        #[arg(long, hide = true)]
        marks: bool,
    },
}

/// Whether cells are marked.
static MARKS: AtomicBool = AtomicBool::new(false);

/// The cell in this line of the chapter begins.
fn cell(line: usize) {
    if MARKS.load(Ordering::Relaxed) {
        println!("{BEGIN}{line}");
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { chapter, marks } => run(&chapter, marks),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chapter: &str, marks: bool) -> Result<()> {
    MARKS.store(marks, Ordering::Relaxed);
    let found = chapters::CHAPTERS.iter().find(|(name, _)| *name == chapter);
    let (_, run) = found.with_context(|| {
        let names: Vec<&str> = chapters::CHAPTERS.iter().map(|c| c.0).collect();
        format!("no chapter {chapter:?}, there are {}", names.join(", "))
    })?;
    run()
}
