//! What is not so any more: each check gives complaints, `page:line: what`.

use std::fs;

use anyhow::Result;

use crate::book::Book;
use crate::chapter::{Chapter, Compared, Kind};
use crate::fresh::{self, Output};
use crate::output::{self, Part};
use crate::{compare, figures, links};

/// The listings of a chapter that are not their sources' text.
///
/// # Errors
/// If an item is not there, or the chapter cannot be read.
pub fn listings(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let listings = fresh::listings(book, name, &chapter)?.into_iter();
    let stale = listings.filter(|(i, text)| chapter.pieces[*i].body != *text);
    let complaints = stale.map(|(i, text)| {
        let old = &chapter.pieces[i];
        let lines = compare::lines(&old.body, &text, |a, b| a == b).unwrap_or_default();
        let place = format!("{}:{}", book.name(name), old.line);
        format!(
            "{place}: the listing is not its source's text\n{lines}{}",
            renew(name)
        )
    });
    Ok(complaints.collect())
}

fn renew(name: &str) -> String {
    format!("  to renew it: cargo run -p notebook -- renew {name}")
}

/// Runs a chapter: the outputs that are not what cells print now.
///
/// # Errors
/// If a cell fails.
pub fn outputs(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let mut complaints = Vec::new();
    for output in fresh::outputs(book, name, &chapter)? {
        if let Some((line, what)) = difference(book, &chapter, &output)? {
            complaints.push(format!("{}:{line}: {what}{}", book.name(name), renew(name)));
        }
    }
    Ok(complaints)
}

/// Where the output of a cell in the chapter differs from the one now: line and text.
fn difference(book: &Book, chapter: &Chapter, now: &Output) -> Result<Option<(usize, String)>> {
    let cell = chapter.pieces[now.cell].line;
    let Some(old) = chapter.output_of(now.cell).map(|i| &chapter.pieces[i]) else {
        let missing = !now.parts.is_empty();
        return Ok(missing.then(|| (cell, format!("the output is missing\n{}", plus(&now.parts)))));
    };
    let (line, parts) = (old.line, output::read(&old.body)?);
    if now.parts.is_empty() {
        return Ok(Some((line, "the cell prints nothing\n".into())));
    }
    if parts.is_empty() {
        return Ok(Some((
            line,
            format!("the output is empty\n{}", plus(&now.parts)),
        )));
    }
    let Kind::Output(Compared::Within(within)) = old.kind else {
        return Ok(None);
    };
    let [expected, got] = [&parts, &now.parts].map(|parts| output::write(parts));
    let words = compare::difference(&expected, &got, within);
    let picture = now.pictures.iter().find(|(file, svg)| {
        let old = fs::read_to_string(book.folder.join(file)).unwrap_or_default();
        compare::without_numbers(&old) != compare::without_numbers(svg)
    });
    Ok(match (words, picture) {
        (Some(lines), _) => Some((line, format!("the cell prints something else\n{lines}"))),
        (None, Some((file, _))) => {
            Some((line, format!("the cell draws something else than {file}\n")))
        }
        (None, None) => None,
    })
}

fn plus(parts: &[Part]) -> String {
    compare::difference("", &output::write(parts), 0.0).unwrap_or_default()
}

/// The recorded runs of a chapter that are empty.
///
/// # Errors
/// If the chapter cannot be read.
pub fn recorded(book: &Book, name: &str) -> Result<Vec<String>> {
    let chapter = book.chapter(name)?;
    let empty = chapter.pieces.iter().filter(|piece| {
        // the command alone, in its block, is three lines
        matches!(piece.kind, Kind::Recorded(_)) && piece.body.lines().count() <= 3
    });
    let complaints = empty.map(|piece| {
        let place = format!("{}:{}", book.name(name), piece.line);
        format!("{place}: nothing is recorded\n  to record it: cargo run --release -p notebook -- record {name}")
    });
    Ok(complaints.collect())
}

/// The links of a page that lead nowhere, or to another line than their item's.
///
/// # Errors
/// If the page cannot be read.
pub fn links(book: &Book, page: &str) -> Result<Vec<String>> {
    let complaints = links::complaints(&book.folder_of(page), &book.text(page)?).into_iter();
    let place = book.name(page);
    Ok(complaints
        .map(|(line, what)| format!("{place}:{line}: {what}"))
        .collect())
}

/// The figures that are drawn otherwise now, and the pictures that no page shows.
///
/// # Errors
/// If a page cannot be read, or a run that a figure shows is not recorded.
pub fn figures(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for (file, svg) in figures::all(book)? {
        let old = fs::read_to_string(book.folder.join("img").join(file)).unwrap_or_default();
        if old != svg {
            complaints.push(format!(
                "img/{file} is stale\n  to renew it: cargo run -p notebook -- renew"
            ));
        }
    }
    let texts = book
        .pages()?
        .iter()
        .map(|page| book.text(page))
        .collect::<Result<Vec<_>>>()?;
    let shown: Vec<_> = texts.iter().flat_map(|text| links::of(text)).collect();
    let unused = book
        .pictures()?
        .into_iter()
        .filter(|file| !shown.iter().any(|link| link.to.ends_with(file.as_str())));
    complaints.extend(unused.map(|file| format!("{file} is shown on no page")));
    Ok(complaints)
}
