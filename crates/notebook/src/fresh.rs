//! A chapter as it would be now: listings from their sources, outputs from a run.

use anyhow::{Context, Result, ensure};

use crate::book::Book;
use crate::chapter::{Chapter, Kind};
use crate::output::{self, Part};
use crate::{item, run};

/// What a cell printed now.
#[derive(Debug)]
pub struct Output {
    /// The cell, by its index in the chapter's pieces.
    pub cell: usize,
    /// The parts as they stand in the chapter: pictures by their files.
    pub parts: Vec<Part>,
    /// The pictures: file and SVG.
    pub pictures: Vec<(String, String)>,
}

/// The text of each listing now, by the index of its piece.
///
/// # Errors
/// If there is no such file or item.
pub fn listings(book: &Book, name: &str, chapter: &Chapter) -> Result<Vec<(usize, String)>> {
    let mut listings = Vec::new();
    for (i, piece) in chapter.pieces.iter().enumerate() {
        if let Kind::Code {
            source: Some(source),
            ..
        } = &piece.kind
        {
            let text = item::listing(&book.root, source);
            let text = text.with_context(|| format!("{}:{}", book.name(name), piece.line))?;
            listings.push((i, text));
        }
    }
    Ok(listings)
}

/// Runs a chapter: the output of every cell.
///
/// # Errors
/// If a cell fails, or the program was made of another text of the chapter.
pub fn outputs(book: &Book, name: &str, chapter: &Chapter) -> Result<Vec<Output>> {
    let cells = chapter.cells().count();
    if cells == 0 {
        return Ok(Vec::new());
    }
    let printed = run::run(&book.program, &book.folder, name, run::LIMIT)?;
    ensure!(
        cells == printed.len(),
        "{}: {cells} cells, but {} in the program: build it again",
        book.name(name),
        printed.len()
    );
    let outputs = chapter
        .cells()
        .zip(printed)
        .enumerate()
        .map(|(n, (cell, printed))| {
            let parts = output::printed(&printed.text);
            let parts = parts.with_context(|| format!("{}:{}", book.name(name), printed.line))?;
            Ok(output(cell, &format!("img/{name}-{}", n + 1), parts))
        });
    outputs.collect()
}

/// Gives pictures their files: `img/NAME-3.svg`, `img/NAME-3-2.svg`.
fn output(cell: usize, file: &str, parts: Vec<Part>) -> Output {
    let mut output = Output {
        cell,
        parts,
        pictures: Vec::new(),
    };
    for part in &mut output.parts {
        if let Part::Picture { image, .. } = part {
            let name = match output.pictures.len() {
                0 => format!("{file}.svg"),
                n => format!("{file}-{}.svg", n + 1),
            };
            output
                .pictures
                .push((name.clone(), std::mem::replace(image, name)));
        }
    }
    output
}

/// Whether a file is a picture of a chapter's cell.
pub fn is_picture_of(file: &str, chapter: &str) -> bool {
    let numbers = file.strip_prefix("img/").and_then(|file| {
        file.strip_prefix(chapter)?
            .strip_prefix('-')?
            .strip_suffix(".svg")
    });
    numbers.is_some_and(|n| n.chars().all(|c| c.is_ascii_digit() || c == '-'))
}
