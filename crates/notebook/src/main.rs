//! The chapters of `notebooks-md`: `cargo run -p notebook -- COMMAND`. The cells of all chapters are compiled
//! into this program, so that it can run them.

use std::fs;
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use notebook::book::Book;
use notebook::run::{BEGIN, OVERTIME};
use notebook::{fresh, jupyter, record, renew};

// What a reader need not see in a cell need not be warned of.
#[allow(unused, unused_qualifications)]
#[warn(unused_must_use)]
mod chapters {
    include!(concat!(env!("OUT_DIR"), "/chapters.rs"));
}

/// Tools for the chapters in notebooks-md
#[derive(Parser)]
#[command(name = "notebook")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Update stale listings, outputs, links and pictures
    Renew { chapter: Option<String> },
    /// Run the recorded programs again, on the real data in FASHION_MNIST_DIR (takes minutes, ResNet-18 hours)
    Record {
        chapter: Option<String>,
        /// Run only the commands that contain this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
    },
    /// Convert a chapter to a Jupyter notebook, CHAPTER.ipynb
    Jupyter { chapter: String },
    /// Build the site of all chapters, in target/book
    Site,
    /// Run the cells of a chapter
    #[command(hide = true)]
    Run {
        chapter: String,
        /// End after this many seconds
        #[arg(long, value_name = "SECONDS")]
        limit: u64,
    },
}

/// The cell in this line of the chapter begins.
fn cell(line: usize) {
    println!("{BEGIN}{line}");
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Renew { chapter } => renew(chapter.as_deref()),
        Command::Record { chapter, only } => record(chapter.as_deref(), &only),
        Command::Jupyter { chapter } => jupyter(&chapter),
        Command::Site => site(),
        Command::Run { chapter, limit } => run(&chapter, limit),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn book() -> Result<Book> {
    Book::of_this_repository(std::env::current_exe()?)
}

fn renew(only: Option<&str>) -> Result<()> {
    let book = book()?;
    let all = book.chapters(None)?;
    let chapters = book.chapters(only)?;
    let say = |what: &str, stale: bool| {
        let how = if stale { "renewed" } else { "was fresh" };
        println!("{what}: {how}");
    };
    for picture in fresh::pictures(&book)? {
        say(&picture.file, book.write(&picture.file, &picture.svg)?);
    }
    for page in book.pages()? {
        if chapters.contains(&page) || !all.contains(&page) {
            let start = Instant::now();
            let stale = renew::page(&book, &page)?;
            say(&format!("{page} ({:.1?})", start.elapsed()), stale);
        }
    }
    Ok(())
}

fn record(chapter: Option<&str>, only: &str) -> Result<()> {
    let book = book()?;
    for chapter in book.chapters(chapter)? {
        let count = record::record(&book, &chapter, only)?;
        println!("{chapter}: {count} recorded");
    }
    Ok(())
}

fn jupyter(chapter: &str) -> Result<()> {
    let book = book()?;
    book.chapters(Some(chapter))?; // there is one of this name
    let notebook = jupyter::notebook(&book.chapter(chapter)?, &book.folder)?;
    let file = book.folder.join(format!("{chapter}.ipynb"));
    fs::write(&file, serde_json::to_string_pretty(&notebook)? + "\n")?;
    println!("{}", file.display());
    Ok(())
}

fn site() -> Result<()> {
    let book = book()?;
    let folder = book.root.join("target/book");
    notebook::site::build(&book.folder, &folder)?;
    println!("{}", folder.join("index.html").display());
    Ok(())
}

/// Runs the cells of a chapter in this process.
fn run(chapter: &str, limit: u64) -> Result<()> {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(limit));
        process::exit(OVERTIME);
    });
    let found = chapters::CHAPTERS.iter().find(|(name, _)| *name == chapter);
    let (_, run) = found.with_context(|| format!("no chapter {chapter:?} in this program"))?;
    run()
}
