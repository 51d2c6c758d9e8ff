//! Writes what is stale in a page: listings, outputs, pictures, links.

use std::fs;

use anyhow::Result;

use crate::book::Book;
use crate::chapter::{Kind, Piece};
use crate::{fresh, links};

/// Renews a page, and says whether anything was stale. It is written when all is known: a cell that fails
/// leaves everything as it was.
///
/// # Errors
/// If a cell fails, a listing's item is gone, or a file cannot be written.
pub fn page(book: &Book, name: &str) -> Result<bool> {
    let mut chapter = book.chapter(name)?;
    let mut all = fresh::outputs(book, name, &chapter)?;
    all.extend(fresh::listings(book, name, &chapter)?);
    let mut pictures = Vec::new();
    for now in all {
        put(&mut chapter.pieces[now.piece], now.body);
        pictures.extend(now.pictures);
    }
    let text = links::renewed(&book.folder_of(name), &chapter.to_string());
    let mut stale = book.write(&format!("{name}.md"), &text)?;
    for picture in &pictures {
        stale |= book.write(&picture.file, &picture.svg)?;
    }
    for old in book.pictures()? {
        let is_shown = pictures.iter().any(|picture| picture.file == old);
        if fresh::is_picture_of(&old, name) && !is_shown {
            fs::remove_file(book.folder.join(old))?;
            stale = true;
        }
    }
    Ok(stale)
}

/// Gives a piece its body. An output has marks around it, unless it is empty.
fn put(piece: &mut Piece, body: String) {
    if matches!(piece.kind, Kind::Output(_)) {
        if body.is_empty() {
            piece.open.clear();
            piece.close.clear();
        } else if piece.open.is_empty() {
            piece.open = "\n<!-- output -->\n".into();
            piece.close = "<!-- /output -->\n".into();
        }
    }
    piece.body = body;
}
