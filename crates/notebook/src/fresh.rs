//! A chapter as it would be now: listings from their sources, outputs from a run.

use anyhow::{Context, Result, ensure};

use crate::book::Book;
use crate::chapter::{Chapter, Kind};
use crate::output::Picture;
use crate::{curve, item, output, run, speed_up};

/// A piece of a chapter as it should be now.
#[derive(Debug)]
pub struct Fresh {
    /// Its index in the chapter's pieces.
    pub piece: usize,
    /// Its body.
    pub body: String,
    /// The pictures in it.
    pub pictures: Vec<Picture>,
}

/// The listings.
///
/// # Errors
/// If there is no such file or item.
pub fn listings(book: &Book, name: &str, chapter: &Chapter) -> Result<Vec<Fresh>> {
    let mut listings = Vec::new();
    for (piece, listing) in chapter.pieces.iter().enumerate() {
        if let Some(source) = listing.source() {
            let body = item::listing(&book.root, source);
            listings.push(Fresh {
                piece,
                body: body.with_context(|| format!("{}:{}", book.name(name), listing.line))?,
                pictures: Vec::new(),
            });
        }
    }
    Ok(listings)
}

/// Runs a chapter: the output of every cell. Other pages have no cells that run.
///
/// # Errors
/// If a cell fails, or the program was made of another text of the chapter.
pub fn outputs(book: &Book, name: &str, chapter: &Chapter) -> Result<Vec<Fresh>> {
    let is_output = |i: &usize| matches!(chapter.pieces[*i].kind, Kind::Output(_));
    let pieces: Vec<usize> = (0..chapter.pieces.len()).filter(is_output).collect();
    if pieces.is_empty() || !book.chapters(None)?.contains(&name.to_owned()) {
        return Ok(Vec::new());
    }
    let printed = run::run(&book.program, &book.folder, name, run::LIMIT)?;
    let page = book.name(name);
    let cells = pieces.len();
    let built = printed.len();
    ensure!(
        cells == built,
        "{page}: {cells} cells, but {built} in the program: build it again"
    );
    let mut outputs = Vec::new();
    for (number, (piece, (line, text))) in (1..).zip(pieces.into_iter().zip(printed)) {
        let made = output::body(&text, &format!("img/{name}-{number}"));
        let (body, pictures) = made.with_context(|| format!("{page}:{line}"))?;
        outputs.push(Fresh {
            piece,
            body,
            pictures,
        });
    }
    Ok(outputs)
}

/// The pictures that are drawn by code, but by no cell.
///
/// # Errors
/// If a run that one shows is not recorded.
pub fn pictures(book: &Book) -> Result<Vec<Picture>> {
    let drawn = |file: &str, svg: String| Picture {
        file: file.to_owned(),
        svg,
    };
    Ok(vec![
        drawn(curve::FILE, curve::svg(book)?),
        drawn(speed_up::FILE, speed_up::svg(book)?),
    ])
}

/// True if a file is a picture of a chapter's cell.
pub fn is_picture_of(file: &str, chapter: &str) -> bool {
    file.strip_prefix(&format!("img/{chapter}-"))
        .and_then(|rest| rest.strip_suffix(".svg"))
        .is_some_and(|n| n.chars().all(|c| c.is_ascii_digit() || c == '-'))
}
