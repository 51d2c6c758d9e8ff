//! What the pages of `notebooks-md` say is so: `cargo test notebook`. One test for each page and kind of
//! content; and, on chapters of their own, what the runner itself must do.

extern crate data_parallel_collective as collective;

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use notebook::book::Book;
use notebook::check;

#[path = "notebook/diffs.rs"]
mod diffs;
#[path = "notebook/numbers.rs"]
mod numbers;
#[path = "notebook/options.rs"]
mod options;
#[path = "notebook/play.rs"]
mod play;
#[path = "notebook/runner.rs"]
mod runner;
#[path = "notebook/site.rs"]
mod site;
#[path = "notebook/table.rs"]
mod table;
#[path = "notebook/text.rs"]
mod text;

/// The binary with the cells.
const PROGRAM: &str = env!("CARGO_BIN_EXE_notebook");

fn main() -> Result<ExitCode> {
    let arguments = Arguments::from_args();
    Ok(libtest_mimic::run(&arguments, trials()?).exit_code())
}

fn trials() -> Result<Vec<Trial>> {
    let book = Book::of_this_repository(PROGRAM)?;
    let mut trials = Vec::new();
    for chapter in &book.chapters(None)? {
        trials.push(page(&book, chapter, "outputs", outputs));
        trials.push(page(&book, chapter, "recorded", check::recorded));
    }
    for name in &book.pages()? {
        trials.push(page(&book, name, "listings", check::listings));
        trials.push(page(&book, name, "links", check::links));
    }
    type Check = fn(&Book) -> Result<Vec<String>>;
    let checks: [(&str, Check); 6] = [
        ("diffs", diffs::complaints),
        ("pictures", check::pictures),
        ("numbers", numbers::complaints),
        ("options", options::complaints),
        ("site", site::complaints),
        ("table", table::complaints),
    ];
    for (name, check) in checks {
        let book = book.clone();
        trials.push(trial(name, move || none(check(&book)?)));
    }
    let name = match play::browser() {
        Some(_) => "play",
        None => "play (ignored: needs Chromium)",
    };
    let is_ignored = play::browser().is_none();
    let play = trial(name, move || none(play::complaints(&book)?));
    trials.push(play.with_ignored_flag(is_ignored));
    for (name, test) in runner::TESTS {
        trials.push(trial(&format!("runner::{name}"), test));
    }
    Ok(trials)
}

fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let test = || test().map_err(|error| Failed::from(format!("{error:#}")));
    Trial::test(format!("notebook::{name}"), test)
}

fn page(
    book: &Book,
    page: &str,
    kind: &str,
    check: fn(&Book, &str) -> Result<Vec<String>>,
) -> Trial {
    let (book, page, title) = (book.clone(), page.to_owned(), format!("{page}::{kind}"));
    trial(&title, move || none(check(&book, &page)?))
}

fn none(complaints: Vec<String>) -> Result<()> {
    ensure!(complaints.is_empty(), "{}", complaints.join("\n"));
    Ok(())
}

/// A chapter uses all cores, so they take turns; otherwise each would have its time limit and the others' work.
fn outputs(book: &Book, name: &str) -> Result<Vec<String>> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    check::outputs(book, name)
}
