//! Writes what is stale in a chapter: listings, outputs, pictures, links.

use std::fs;

use anyhow::Result;

use crate::book::Book;
use crate::chapter::{Chapter, Compared, Kind, Piece};
use crate::fresh::{self, Output};
use crate::{figures, links, output};

/// Renews a chapter, and says whether anything was stale. It is written when all is known: a cell that fails
/// leaves everything as it was.
///
/// # Errors
/// If a cell fails, a listing's item is gone, or a file cannot be written.
pub fn chapter(book: &Book, name: &str) -> Result<bool> {
    let mut chapter = book.chapter(name)?;
    let outputs = fresh::outputs(book, name, &chapter)?;
    for (i, text) in fresh::listings(book, name, &chapter)? {
        chapter.pieces[i].body = text;
    }
    // from the last to the first, so that the indices of those before stay what they are
    for output in outputs.iter().rev() {
        put(&mut chapter, output);
    }
    let text = links::renewed(&book.folder, &chapter.to_string());
    let mut stale = book.write(&format!("{name}.md"), &text)?;
    let pictures: Vec<_> = outputs
        .into_iter()
        .flat_map(|output| output.pictures)
        .collect();
    for (file, svg) in &pictures {
        stale |= book.write(file, svg)?;
    }
    for old in book.pictures()? {
        if fresh::is_picture_of(&old, name) && !pictures.iter().any(|(file, _)| *file == old) {
            fs::remove_file(book.folder.join(old))?;
            stale = true;
        }
    }
    Ok(stale)
}

/// Puts what a cell printed behind it, in place of what stands there.
fn put(chapter: &mut Chapter, output: &Output) {
    let Output { cell, parts, .. } = output;
    let body = output::write(parts);
    match chapter.output_of(*cell) {
        Some(old) if parts.is_empty() => drop(chapter.pieces.drain(cell + 1..=old)),
        Some(old) => chapter.pieces[old].body = body,
        None if parts.is_empty() => (),
        None => drop(chapter.pieces.splice(cell + 1..cell + 1, new_output(body))),
    }
}

/// An output that is compared, with an empty line before it.
fn new_output(body: String) -> [Piece; 2] {
    let piece = |kind, open: &str, body, close: &str| Piece {
        line: 0,
        kind,
        open: open.into(),
        body,
        close: close.into(),
    };
    [
        piece(Kind::Text, "", "\n".into(), ""),
        piece(
            Kind::Output(Compared::Within(0.0)),
            "<!-- output -->\n",
            body,
            "<!-- /output -->\n",
        ),
    ]
}

/// Renews the listings and the links of a page that is no chapter, and says whether one was stale.
///
/// # Errors
/// If a listing's item is gone, or a file cannot be read or written.
pub fn page(book: &Book, name: &str) -> Result<bool> {
    let mut page = book.chapter(name)?;
    for (i, text) in fresh::listings(book, name, &page)? {
        page.pieces[i].body = text;
    }
    let text = links::renewed(&book.folder_of(name), &page.to_string());
    book.write(&format!("{name}.md"), &text)
}

/// Draws the figures, and says whether one was stale.
///
/// # Errors
/// If a run that a figure shows is not recorded, or a file cannot be written.
pub fn figures(book: &Book) -> Result<bool> {
    let mut stale = false;
    for (file, svg) in figures::all(book)? {
        stale |= book.write(&format!("img/{file}"), &svg)?;
    }
    Ok(stale)
}
