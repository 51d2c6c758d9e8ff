//! Checks for what is not so any more: each gives complaints, `page:line: what`.

use anyhow::Result;

use crate::book::Book;
use crate::chapter::{self, Chapter, Compared, Kind, Piece};
use crate::fresh::{self, Fresh};
use crate::output::Picture;
use crate::{compare, links};

/// The listings of a chapter that are not their sources' text.
///
/// # Errors
/// If an item is not there, or the chapter cannot be read.
pub fn listings(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let now = fresh::listings(book, name, &chapter)?;
    Ok(stale(book, name, &chapter, &now))
}

/// Runs a chapter: the outputs that are not what cells print now.
///
/// # Errors
/// If a cell fails.
pub fn outputs(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let now = fresh::outputs(book, name, &chapter)?;
    Ok(stale(book, name, &chapter, &now))
}

fn stale(book: &Book, name: &str, chapter: &Chapter, now: &[Fresh]) -> Vec<String> {
    let mut complaints = Vec::new();
    for now in now {
        let old = &chapter.pieces[now.piece];
        if let Some(what) = difference(book, old, now) {
            let place = format!("{}:{}", book.name(name), old.line);
            let how = format!("to renew it: cargo run -p notebook -- renew {name}");
            complaints.push(format!("{place}: {what}  {how}"));
        }
    }
    complaints
}

/// Says how a piece of a chapter differs from what it should be.
fn difference(book: &Book, old: &Piece, now: &Fresh) -> Option<String> {
    let Kind::Output(compared) = old.kind else {
        let lines = compare::lines(&old.body, &now.body, |a, b| a == b)?;
        return Some(format!("the listing is not its source's text\n{lines}"));
    };
    let within = match compared {
        Compared::Recorded if !old.body.is_empty() && !now.body.is_empty() => return None,
        Compared::Recorded => 0.0,
        Compared::Within(within) => within,
    };
    if let Some(lines) = compare::difference(&old.body, &now.body, within) {
        let what = match (old.body.as_str(), now.body.as_str()) {
            ("", _) => "the output is empty",
            (_, "") => "the cell prints nothing",
            _ => "the cell prints something else",
        };
        return Some(format!("{what}\n{lines}"));
    }
    let mut pictures = now.pictures.iter();
    let other = pictures.find(|picture| {
        let old = chapter::read(&book.folder.join(&picture.file)).unwrap_or_default();
        compare::without_numbers(&old) != compare::without_numbers(&picture.svg)
    })?;
    let file = &other.file;
    Some(format!("the cell draws something else than {file}\n"))
}

/// The recorded runs of a chapter that are empty.
///
/// # Errors
/// If the chapter cannot be read.
pub fn recorded(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let mut complaints = Vec::new();
    for piece in &chapter.pieces {
        // the command alone, in its block, is three lines
        if matches!(piece.kind, Kind::Recorded(_)) && piece.body.lines().count() <= 3 {
            let place = format!("{}:{}", book.name(name), piece.line);
            let how = format!("to record it: cargo run --release -p notebook -- record {name}");
            complaints.push(format!("{place}: nothing is recorded\n  {how}"));
        }
    }
    Ok(complaints)
}

/// The links of a page that lead nowhere, or to another line than their item's.
///
/// # Errors
/// If the page cannot be read.
pub fn links(book: &Book, page: &str) -> Result<Vec<String>> {
    let complaints = links::complaints(&book.folder_of(page), &book.text(page)?).into_iter();
    let name = book.name(page);
    let complaints = complaints.map(|(line, what)| format!("{name}:{line}: {what}"));
    Ok(complaints.collect())
}

/// The pictures: those that the code draws otherwise now, those that no page shows, and
/// those that stay white on a dark page.
///
/// # Errors
/// If a page cannot be read, or a run that the curve shows is not recorded.
pub fn pictures(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for Picture { file, svg } in fresh::pictures(book)? {
        if chapter::read(&book.folder.join(&file)).unwrap_or_default() != svg {
            let how = "to renew it: cargo run -p notebook -- renew";
            complaints.push(format!("{file} is stale\n  {how}"));
        }
    }
    let mut shown = Vec::new();
    for page in book.pages()? {
        shown.extend(links::of(&book.text(&page)?));
    }
    for file in book.pictures()? {
        if !shown.iter().any(|link| link.to.ends_with(&file)) {
            complaints.push(format!("{file} is shown on no page"));
        }
        if !chapter::read(&book.folder.join(&file))?.contains(d2l::DARK_MODE) {
            complaints.push(format!("{file} is not dark on a dark page: d2l::DARK_MODE"));
        }
    }
    Ok(complaints)
}
