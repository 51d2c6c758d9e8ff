//! A chapter as a Jupyter notebook: text becomes Markdown cells, cells become code, and what they printed becomes
//! their outputs.

use std::path::Path;

use anyhow::Result;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};
use serde_json::{Value, json};

use crate::chapter::{self, Chapter, Kind};

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
                cells.push(json!({
                    "cell_type": "code",
                    "id": format!("cell-{}", cells.len()),
                    "metadata": {},
                    "execution_count": null,
                    "source": piece.body.trim_end(),
                    "outputs": outputs(&chapter.pieces[i + 1].body, folder)?,
                }));
            }
            Kind::Code { runs: false, .. } => {
                text += &format!("```{}\n{}{}", piece.language(), piece.body, piece.close)
            }
            Kind::Output(_) => {} // with its cell
            Kind::Text | Kind::Recorded(_) => text += &piece.body,
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
    let text = std::mem::take(text);
    let source = text.trim();
    if !source.is_empty() {
        let id = format!("cell-{}", cells.len());
        cells.push(json!({ "cell_type": "markdown", "id": id, "metadata": {}, "source": source }));
    }
}

/// Outputs of a cell: the text of a block is a stream, a picture is shown.
fn outputs(body: &str, folder: &Path) -> Result<Vec<Value>> {
    let mut outputs = Vec::new();
    let mut events = Parser::new(body);
    while let Some(event) = events.next() {
        let picture = match event {
            Event::Start(Tag::CodeBlock(_)) => None,
            Event::Start(Tag::Image { dest_url, .. }) => Some(folder.join(&*dest_url)),
            _ => continue,
        };
        let mut text = String::new();
        for event in events.by_ref() {
            match event {
                Event::Text(part) => text += &part,
                Event::End(TagEnd::CodeBlock | TagEnd::Image) => break,
                _ => {}
            }
        }
        outputs.push(match picture {
            None => json!({ "output_type": "stream", "name": "stdout", "text": text }),
            Some(file) => {
                let svg = chapter::read(&file)?;
                json!({
                    "output_type": "display_data",
                    "data": { "image/svg+xml": svg, "text/plain": text },
                    "metadata": {},
                })
            }
        });
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::fs;

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
