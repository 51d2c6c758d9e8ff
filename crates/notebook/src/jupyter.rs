//! A chapter as a Jupyter notebook: text becomes Markdown cells, cells become code, and what they printed becomes
//! their outputs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::chapter::{Chapter, Kind, Piece};

/// The notebook of a chapter that lies in `folder`, in the format 4.5.
///
/// # Errors
/// If a picture among the outputs is not there.
pub fn notebook(chapter: &Chapter, folder: &Path) -> Result<Value> {
    let mut cells = Vec::new();
    let mut text = String::new();
    for (i, piece) in chapter.pieces.iter().enumerate() {
        match piece.kind {
            Kind::Code { runs: true, .. } => {
                markdown(&mut cells, &mut text);
                let printed = chapter.output_of(i).map(|output| &chapter.pieces[output]);
                cells.push(code(cells.len(), piece, printed, folder)?);
            }
            Kind::Code { runs: false, .. } => {
                text += &format!("```rust\n{}{}", piece.body, piece.close)
            }
            Kind::Text => text += &piece.body,
            Kind::Output { .. } => {} // with its cell
            Kind::Recorded(_) => text += &piece.body,
        }
    }
    markdown(&mut cells, &mut text);
    Ok(json!({
        "cells": cells,
        "metadata": {
            "kernelspec": { "name": "rust", "display_name": "Rust", "language": "rust" },
            "language_info": { "name": "rust", "file_extension": ".rs", "mimetype": "text/rust" },
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }))
}

/// Makes a cell of the text so far, if there is any.
fn markdown(cells: &mut Vec<Value>, text: &mut String) {
    let source = std::mem::take(text);
    if !source.trim().is_empty() {
        let id = format!("cell-{}", cells.len());
        let source = source.trim();
        cells.push(json!({ "cell_type": "markdown", "id": id, "metadata": {}, "source": source }));
    }
}

fn code(number: usize, cell: &Piece, printed: Option<&Piece>, folder: &Path) -> Result<Value> {
    let outputs = printed.map(|printed| outputs(&printed.body, folder));
    Ok(json!({
        "cell_type": "code",
        "id": format!("cell-{number}"),
        "metadata": {},
        "execution_count": null,
        "source": cell.body.trim_end(),
        "outputs": outputs.transpose()?.unwrap_or_default(),
    }))
}

/// What stands in a block is a stream, an image is shown.
fn outputs(body: &str, folder: &Path) -> Result<Vec<Value>> {
    let mut outputs = Vec::new();
    let mut stream: Option<String> = None;
    for line in body.lines() {
        if line.starts_with("```") {
            match stream.take() {
                None => stream = Some(String::new()),
                Some(text) => {
                    outputs
                        .push(json!({ "output_type": "stream", "name": "stdout", "text": text }));
                }
            }
        } else if let Some(text) = &mut stream {
            *text += line;
            text.push('\n');
        } else if let Some((alt, file)) = image(line) {
            outputs.push(display(alt, &folder.join(file))?);
        }
    }
    Ok(outputs)
}

/// `![alt](file)`
fn image(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("![")?.strip_suffix(')')?.split_once("](")
}

fn display(alt: &str, file: &Path) -> Result<Value> {
    let svg = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(json!({
        "output_type": "display_data",
        "data": { "image/svg+xml": svg, "text/plain": alt },
        "metadata": {},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# Title

```rust
f();
```

<!-- output -->
```text
1
2
```
![A curve](curve.svg)
<!-- /output -->

```rs file="a.rs" item="f"
fn f() {}
```
```rust
g();
```
"#;

    #[test]
    fn outputs_belong_to_their_cells() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("curve.svg"), "<svg/>")?;
        let notebook = notebook(&Chapter::parse(PAGE)?, folder.path())?;
        let cells = notebook["cells"].as_array().context("cells")?;
        let kinds: Vec<&Value> = cells.iter().map(|cell| &cell["cell_type"]).collect();
        assert_eq!(kinds, ["markdown", "code", "markdown", "code"]);
        assert_eq!(cells[1]["source"], "f();");
        assert_eq!(cells[1]["outputs"][0]["text"], "1\n2\n");
        let picture = &cells[1]["outputs"][1]["data"];
        assert_eq!(picture["image/svg+xml"], "<svg/>");
        assert_eq!(picture["text/plain"], "A curve");
        assert_eq!(cells[2]["source"], "```rust\nfn f() {}\n```");
        assert_eq!(cells[3]["outputs"], json!([]));
        Ok(())
    }
}
