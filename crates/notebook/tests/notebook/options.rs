//! The page of the options has every option of both programs, and no other.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::{Arg, Args, Command};
use notebook::book::Book;

/// Options that the page lacks, and those that are none.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let all = concise::Options::augment_args(Command::new("concise"));
    let names = all.get_arguments().filter_map(Arg::get_long);
    let names: BTreeSet<String> = names.map(|name| format!("--{name}")).collect();
    let text = book.text("options")?;
    // `--data DIR` at the start of a row
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `--"));
    let listed = rows.filter_map(|row| row.split([' ', '`']).next());
    let listed: BTreeSet<String> = listed.map(|name| format!("--{name}")).collect();
    let lacks = names.difference(&listed);
    let lacks = lacks.map(|name| format!("options.md lacks {name}"));
    let knows = listed.difference(&names);
    let knows = knows.map(|name| format!("no program has {name} of options.md"));
    Ok(lacks.chain(knows).collect())
}
