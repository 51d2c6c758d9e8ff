//! A chapter's Markdown as pieces: text, Rust, outputs, recorded runs. Printed one after another they are the
//! chapter again, to the byte. The build script reads chapters with this file as well.

use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result, bail, ensure};

/// A chapter, or any other page of the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Chapter {
    /// All of it, in order.
    pub pieces: Vec<Piece>,
}

/// Some lines of a chapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Line where it begins: 1 is the first line.
    pub line: usize,
    /// Its kind.
    pub kind: Kind,
    /// The line that opens it, such as a fence; empty for text.
    pub open: String,
    /// Text between the two, whole lines.
    pub body: String,
    /// The line that closes it; empty for text.
    pub close: String,
}

/// Kind of a piece.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Markdown, blocks of other languages included.
    Text,
    /// Rust. A cell, if it `runs` (```` ```rust ````), otherwise only shown (```` ```rs ````); with a `source`
    /// it is a listing. Python and differences are only shown, and have a source.
    Code {
        /// True if it is a cell.
        runs: bool,
        /// Source of its text.
        source: Option<Source>,
    },
    /// Output of the cell before, blank lines before it included. It stands behind every cell, if only empty.
    Output(Compared),
    /// Output of a program on the real data: its name and arguments.
    Recorded(String),
}

/// Comparison of an output with what its cell prints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compared {
    /// Word by word; decimals may differ by this number (`<!-- output: ±0.1 -->`): training amplifies rounding.
    Within(f64),
    /// Not at all; it has to be there (`<!-- output: recorded -->`).
    Recorded,
}

/// Source of a listing.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The file, from the repository's root.
    pub file: String,
    /// The names of its items.
    pub items: Vec<String>,
    /// The file beside it that it was changed from: the listing is the difference, of the items or of all.
    pub since: Option<String>,
}

impl Chapter {
    /// Reads a chapter.
    ///
    /// # Errors
    /// If something is opened and not closed, an output belongs to no cell, or a cell is indented: it would be
    /// read as text, and never run.
    pub fn parse(text: &str) -> Result<Self> {
        let mut chapter = Self { pieces: Vec::new() };
        let mut lines = (1..).zip(text.split_inclusive('\n'));
        while let Some((number, line)) = lines.next() {
            let place = || format!("line {number}");
            let (kind, end) = opens(line).with_context(place)?;
            let mut piece = Piece::opened(number, kind, line);
            while !end.is_empty() && piece.close.is_empty() {
                let next = lines
                    .next()
                    .map(|(_, line)| line)
                    .with_context(|| format!("no line {end:?} closes this"));
                match next.with_context(place)? {
                    line if line.trim() == end => piece.close = line.into(),
                    line => piece.body += line,
                }
            }
            chapter.push(piece).with_context(place)?;
        }
        Ok(chapter)
    }

    /// Adds a piece. Text joins the text before it. A cell gets an empty output, until there is another.
    fn push(&mut self, mut piece: Piece) -> Result<()> {
        match &piece.kind {
            Kind::Text => {
                let is_text = |last: &mut Piece| last.kind == Kind::Text;
                let before = self.pieces.pop_if(is_text);
                let mut text = before.unwrap_or(Piece::opened(piece.line, Kind::Text, ""));
                text.body += &piece.to_string();
                self.pieces.push(text);
            }
            Kind::Output(_) => {
                let is_blank = |p: &mut Piece| p.kind == Kind::Text && p.body.trim().is_empty();
                if let Some(blank) = self.pieces.pop_if(is_blank) {
                    piece.open.insert_str(0, &blank.body);
                }
                let is_free =
                    |p: &mut Piece| matches!(p.kind, Kind::Output(_)) && p.open.is_empty();
                let free = self.pieces.pop_if(is_free);
                free.context("an output without a cell right before it")?;
                self.pieces.push(piece);
            }
            Kind::Code { runs: true, .. } => {
                let output = Kind::Output(Compared::Within(0.0));
                let output = Piece::opened(piece.line, output, "");
                self.pieces.extend([piece, output]);
            }
            _ => self.pieces.push(piece),
        }
        Ok(())
    }
}

/// The text of a file, in which lines end with LF, as in what is compared with it. In a checkout they may end with CR LF.
///
/// # Errors
/// If it cannot be read.
pub fn read(file: &Path) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(text.replace("\r\n", "\n"))
}

/// The chapters of a folder: the names of its pages, but of the first one and the table of contents.
///
/// # Errors
/// If the folder cannot be read.
pub fn pages(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        match name.strip_suffix(".md") {
            None | Some("README" | "SUMMARY") => {}
            Some(page) => names.push(page.to_owned()),
        }
    }
    names.sort();
    Ok(names)
}

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces.iter().try_for_each(|piece| piece.fmt(f))
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.open, self.body, self.close)
    }
}

impl Piece {
    /// Source of a listing, if the piece is one.
    pub fn source(&self) -> Option<&Source> {
        match &self.kind {
            Kind::Code { source, .. } => source.as_ref(),
            _ => None,
        }
    }

    /// The language of its code.
    pub fn language(&self) -> &'static str {
        let info = self.open.trim_start_matches('`');
        let others = ["python", "diff"];
        let other = others.into_iter().find(|name| info.starts_with(name));
        other.unwrap_or("rust")
    }

    /// A piece of which there is only the first line.
    fn opened(line: usize, kind: Kind, open: &str) -> Self {
        Self {
            line,
            kind,
            open: open.into(),
            body: String::new(),
            close: String::new(),
        }
    }
}

/// Kind of piece that a line opens, and the line that closes it, which is empty for a line of text.
fn opens(line: &str) -> Result<(Kind, &str)> {
    let text = line.trim();
    if text.starts_with("<!-- output") {
        return Ok((Kind::Output(compared(text)?), "<!-- /output -->"));
    }
    if let Some(rest) = text.strip_prefix("<!-- recorded:") {
        let command = rest.trim_end_matches("-->").trim();
        return Ok((Kind::Recorded(command.into()), "<!-- /recorded -->"));
    }
    let info = text.trim_start_matches('`');
    let fence = &text[..text.len() - info.len()];
    if fence.len() < 3 || info.contains('`') {
        return Ok((Kind::Text, ""));
    }
    Ok((code(info.trim(), line)?, fence))
}

/// Reads the line that opens an output: `<!-- output -->`, `<!-- output: ±0.1 -->`.
fn compared(line: &str) -> Result<Compared> {
    let how = line.trim_start_matches("<!-- output");
    Ok(match how.trim_end_matches("-->").trim() {
        "" => Compared::Within(0.0),
        ": recorded" => Compared::Recorded,
        how => {
            let within = how.strip_prefix(": ±").and_then(|n| n.parse().ok());
            Compared::Within(within.with_context(|| format!("not understood: {line:?}"))?)
        }
    })
}

/// Kind of a block of code, by its info string: `rust file="…" item="…"`, or `diff file="…" since="…"`, which may
/// also have an `item` of both files.
fn code(info: &str, line: &str) -> Result<Kind> {
    let (language, attributes) = info.split_once(char::is_whitespace).unwrap_or((info, ""));
    let is_shown =
        language == "rs" || ["python", "diff"].contains(&language) && !attributes.is_empty();
    if language != "rust" && !is_shown {
        let is_changed = language.starts_with("rust,");
        ensure!(!is_changed, "a cell is `rust`, what is only shown `rs`");
        return Ok(Kind::Text);
    }
    let is_flush = !line.starts_with(char::is_whitespace);
    ensure!(is_flush, "a block of code begins at the start of its line");
    let source = match attributes.split('"').collect::<Vec<_>>()[..] {
        [""] => None,
        ["file=", file, " item=", items, ""] if language != "diff" => Some(Source {
            file: file.into(),
            items: items.split(',').map(|item| item.trim().into()).collect(),
            since: None,
        }),
        ["file=", file, " since=", since, ""] if language == "diff" => Some(Source {
            file: file.into(),
            items: Vec::new(),
            since: Some(since.into()),
        }),
        ["file=", file, " item=", item, " since=", since, ""] if language == "diff" => {
            Some(Source {
                file: file.into(),
                items: vec![item.into()],
                since: Some(since.into()),
            })
        }
        _ => bail!("not understood: {attributes:?}"),
    };
    Ok(Kind::Code {
        runs: language == "rust",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_misread_is_an_error() {
        for (line, page) in [
            (2, "\n```rust\nlet x = 1;\n"),
            (2, "- list\n  ```rust\n  f();\n  ```\n"),
            (1, "```rust,ignore\n```\n"),
            (1, "```rust fil=\"x\"\n```\n"),
            (4, "```rust\n```\ntext\n<!-- output -->\n<!-- /output -->\n"),
            (3, "```rust\n```\n<!-- output: ±x -->\n<!-- /output -->\n"),
            (1, "<!-- recorded: scratch -->\n"),
        ] {
            let message = format!("{:#}", Chapter::parse(page).unwrap_err());
            let place = format!("line {line}: ");
            assert!(message.starts_with(&place), "{page:?}: {message}");
        }
    }
}
