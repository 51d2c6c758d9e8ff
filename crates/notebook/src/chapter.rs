//! A chapter's Markdown as pieces: text, Rust, outputs, recorded runs. Printed one after another they are the
//! chapter again, to the byte. The build script reads chapters with this file as well.

use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context, Result, ensure};

/// A chapter, or any other page of the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Chapter {
    /// All of it, in order.
    pub pieces: Vec<Piece>,
}

/// Some lines of a chapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Where it begins: 1 is the first line.
    pub line: usize,
    /// What it is.
    pub kind: Kind,
    /// The line that opens it, such as a fence; empty for text.
    pub open: String,
    /// What is between the two, whole lines.
    pub body: String,
    /// The line that closes it; empty for text.
    pub close: String,
}

/// What a piece is.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Markdown, blocks of other languages included.
    Text,
    /// Rust. A cell, if it `runs` (```` ```rust ````), otherwise only shown (```` ```rs ````); with a `source`
    /// it is a listing.
    Code {
        /// Whether it is a cell.
        runs: bool,
        /// Where its text comes from.
        source: Option<Source>,
    },
    /// What the cell before printed.
    Output(Compared),
    /// What a program prints on the real data: its name and arguments.
    Recorded(String),
}

/// How an output is compared with what its cell prints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compared {
    /// Word by word; decimals may differ by so much (`<!-- output: ±0.1 -->`): training amplifies rounding.
    Within(f64),
    /// Not at all; it has to be there (`<!-- output: recorded -->`).
    Recorded,
}

/// Where a listing comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The file, from the repository's root.
    pub file: String,
    /// The names of its items; none is the whole file.
    pub items: Vec<String>,
}

impl Chapter {
    /// Reads a chapter.
    ///
    /// # Errors
    /// If something is opened and not closed, an output belongs to no cell, or a cell is indented: it would be
    /// read as text, and never run.
    pub fn parse(text: &str) -> Result<Self> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let (mut pieces, mut at) = (Vec::<Piece>::new(), 0);
        while at < lines.len() {
            let piece = Piece::parse(&lines, at)?;
            at += piece.lines();
            match (&mut pieces[..], &piece.kind) {
                ([.., last], Kind::Text) if last.kind == Kind::Text => last.body += &piece.body,
                _ => pieces.push(piece),
            }
        }
        let chapter = Self { pieces };
        chapter.every_output_has_a_cell()?;
        Ok(chapter)
    }

    /// The cells, by their index in `pieces`.
    pub fn cells(&self) -> impl Iterator<Item = usize> {
        (0..self.pieces.len())
            .filter(|&i| matches!(self.pieces[i].kind, Kind::Code { runs: true, .. }))
    }

    /// The output of a cell, by its index: it stands right behind it, blank lines aside.
    pub fn output_of(&self, cell: usize) -> Option<usize> {
        let is_blank = |p: &Piece| p.kind == Kind::Text && p.body.trim().is_empty();
        let next = cell + 1 + usize::from(self.pieces.get(cell + 1).is_some_and(is_blank));
        matches!(self.pieces.get(next)?.kind, Kind::Output(_)).then_some(next)
    }

    fn every_output_has_a_cell(&self) -> Result<()> {
        let owned: Vec<usize> = self.cells().filter_map(|i| self.output_of(i)).collect();
        for (i, piece) in self.pieces.iter().enumerate() {
            let is_output = matches!(piece.kind, Kind::Output(_));
            ensure!(
                !is_output || owned.contains(&i),
                "line {}: an output without a cell right before it",
                piece.line
            );
        }
        Ok(())
    }
}

/// The chapters of a folder: the names of its pages, but of the first one and the table of contents.
///
/// # Errors
/// If the folder cannot be read.
pub fn pages(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().into_string().unwrap_or_default();
        let page = name
            .strip_suffix(".md")
            .filter(|p| !["README", "SUMMARY"].contains(p));
        names.extend(page.map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Piece {
            open, body, close, ..
        } in &self.pieces
        {
            write!(f, "{open}{body}{close}")?;
        }
        Ok(())
    }
}

impl Piece {
    /// The piece that begins at `lines[at]`; of text only a line, or a block that is none of ours.
    fn parse(lines: &[&str], at: usize) -> Result<Self> {
        let (line, open) = (at + 1, lines[at]);
        let Some((kind, end)) = opened(open).with_context(|| format!("line {line}"))? else {
            return Ok(Self {
                line,
                kind: Kind::Text,
                open: String::new(),
                body: open.into(),
                close: String::new(),
            });
        };
        let closes = |l: &&str| l.trim_end() == end || kind == Kind::Text && l.trim() == end;
        let length = lines[at + 1..].iter().position(closes);
        let length = length.with_context(|| format!("line {line}: no line {end:?} closes this"))?;
        let [mut body, close] = [
            lines[at + 1..=at + length].concat(),
            lines[at + 1 + length].into(),
        ];
        if kind != Kind::Text {
            return Ok(Self {
                line,
                kind,
                open: open.into(),
                body,
                close,
            });
        }
        body = format!("{open}{body}{close}");
        Ok(Self {
            line,
            kind,
            open: String::new(),
            body,
            close: String::new(),
        })
    }

    /// How many lines it has.
    pub fn lines(&self) -> usize {
        [&self.open, &self.body, &self.close]
            .iter()
            .map(|s| s.lines().count())
            .sum()
    }
}

/// What a line opens, and the line that closes it.
fn opened(line: &str) -> Result<Option<(Kind, String)>> {
    let text = line.trim();
    let fence: String = text.chars().take_while(|&c| c == '`').collect();
    let info = text[fence.len()..].trim();
    Ok(match text {
        _ if text.starts_with("<!-- output") => {
            Some((Kind::Output(compared(text)?), "<!-- /output -->".into()))
        }
        _ if text.starts_with("<!-- recorded:") => {
            let command = text
                .trim_start_matches("<!-- recorded:")
                .trim_end_matches("-->");
            Some((
                Kind::Recorded(command.trim().into()),
                "<!-- /recorded -->".into(),
            ))
        }
        _ if fence.len() < 3 || info.contains('`') => None,
        _ => Some((code(info, line)?, fence)),
    })
}

/// What the line that opens an output says: `<!-- output -->`, `<!-- output: ±0.1 -->`.
fn compared(line: &str) -> Result<Compared> {
    let how = line
        .trim_start_matches("<!-- output")
        .trim_end_matches("-->");
    Ok(match how.trim() {
        "" => Compared::Within(0.0),
        ": recorded" => Compared::Recorded,
        how => {
            let within = how.strip_prefix(": ±").and_then(|n| n.parse().ok());
            Compared::Within(within.with_context(|| format!("not understood: {line:?}"))?)
        }
    })
}

/// What a block of code is, by its info string: `rust file="…" item="…"`.
fn code(info: &str, line: &str) -> Result<Kind> {
    let (language, attributes) = info.split_once(char::is_whitespace).unwrap_or((info, ""));
    if !["rust", "rs"].contains(&language) {
        ensure!(
            !language.starts_with("rust,"),
            "a cell is `rust`, what is only shown `rs`"
        );
        return Ok(Kind::Text);
    }
    ensure!(
        !line.starts_with(char::is_whitespace),
        "a block of Rust begins at the start of its line"
    );
    let attribute = |key: &str| -> Option<&str> {
        Some(
            attributes
                .split_once(&format!("{key}=\""))?
                .1
                .split_once('"')?
                .0,
        )
    };
    let source = attribute("file").map(|file| Source {
        file: file.into(),
        items: attribute("item")
            .iter()
            .flat_map(|i| i.split(','))
            .map(|i| i.trim().into())
            .collect(),
    });
    ensure!(
        attributes.trim().is_empty() || source.is_some(),
        "not understood: {attributes:?}"
    );
    Ok(Kind::Code {
        runs: language == "rust",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# Title

```sh
```rust is no cell here
```
```rust
let x = 1;
```

<!-- output: ±0.5 -->
```text
1
```
<!-- /output -->
```rust file="a/b.rs" item="f, A::g"
fn f() {}
```
````rs file="c.rs"
fn h() {}
````
Text `and` more

<!-- recorded: scratch --gpus 2 -->
```text
$ cargo run
```
<!-- /recorded -->
"#;

    #[test]
    fn a_chapter_is_read_and_printed_back() -> Result<()> {
        let chapter = Chapter::parse(PAGE)?;
        assert_eq!(chapter.to_string(), PAGE);
        let code = |runs, file: &str, items: &[&str]| Kind::Code {
            runs,
            source: (!file.is_empty()).then(|| Source {
                file: file.into(),
                items: items.iter().map(|&i| i.into()).collect(),
            }),
        };
        let kinds: Vec<(usize, Kind)> = chapter
            .pieces
            .iter()
            .map(|p| (p.line, p.kind.clone()))
            .collect();
        let expected = [
            (1, Kind::Text),
            (6, code(true, "", &[])),
            (9, Kind::Text),
            (10, Kind::Output(Compared::Within(0.5))),
            (15, code(true, "a/b.rs", &["f", "A::g"])),
            (18, code(false, "c.rs", &[])),
            (21, Kind::Text),
            (23, Kind::Recorded("scratch --gpus 2".into())),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(chapter.pieces[1].body, "let x = 1;\n");
        assert_eq!(chapter.cells().collect::<Vec<_>>(), [1, 4]);
        assert_eq!(
            (chapter.output_of(1), chapter.output_of(4)),
            (Some(3), None)
        );
        Ok(())
    }

    #[test]
    fn what_would_be_misread_is_an_error() {
        for (page, line) in [
            ("\n```rust\nlet x = 1;\n", "line 2"),
            ("- list\n  ```rust\n  f();\n  ```\n", "line 2"),
            ("```rust,ignore\n```\n", "line 1"),
            ("```rust fil=\"x\"\n```\n", "line 1"),
            (
                "```rust\n```\ntext\n<!-- output -->\n<!-- /output -->\n",
                "line 4",
            ),
            (
                "```rust\n```\n<!-- output: ±x -->\n<!-- /output -->\n",
                "line 3",
            ),
            ("<!-- recorded: scratch -->\n", "line 1"),
        ] {
            let message = format!("{:#}", Chapter::parse(page).unwrap_err());
            assert!(message.starts_with(line), "{page:?}: {message}");
        }
    }
}
