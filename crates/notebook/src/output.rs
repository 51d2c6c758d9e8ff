//! What a cell printed: text and pictures, as they come from the cell and as they stand in the chapter.

use std::fmt::Write;

use anyhow::{Context, Result};

/// A part of an output.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Lines of text, the last one without its newline.
    Text(String),
    /// A picture: the first sentence of what it shows, and its SVG or, in a chapter, its file.
    Picture {
        /// Its alternative text.
        alt: String,
        /// From a cell its SVG; in a chapter the file, relative to the page.
        image: String,
    },
}

const BEGIN: &str = "EVCXR_BEGIN_CONTENT image/svg+xml\n";
const END: &str = "\nEVCXR_END_CONTENT";

/// The parts of what a cell printed. Blanks at the end of lines are gone.
///
/// # Errors
/// If a picture does not end, or does not say in an `aria-label` what it shows.
pub fn printed(stdout: &str) -> Result<Vec<Part>> {
    let (mut parts, mut rest) = (Vec::new(), stdout);
    while let Some((text, more)) = rest.split_once(BEGIN) {
        parts.extend(trimmed(text));
        let (svg, more) = more.split_once(END).context("a picture does not end")?;
        parts.push(Part::Picture {
            alt: label(svg)?,
            image: svg.to_owned() + "\n",
        });
        rest = more;
    }
    parts.extend(trimmed(rest));
    Ok(parts)
}

/// Text without blanks at the end of lines, or empty lines around; nothing if it is empty.
fn trimmed(text: &str) -> Option<Part> {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    let text = text.trim_matches('\n');
    (!text.is_empty()).then(|| Part::Text(text.into()))
}

/// The first sentence of a picture's `aria-label`.
fn label(svg: &str) -> Result<String> {
    let label = svg
        .split_once("aria-label=\"")
        .and_then(|(_, rest)| rest.split_once('"'));
    let (label, _) = label.context("a picture says in an aria-label what it shows")?;
    let first = label
        .split(". ")
        .next()
        .unwrap_or(label)
        .trim_end_matches('.');
    Ok(first.replace(['[', ']'], ""))
}

/// The parts of an output in a chapter.
///
/// # Errors
/// If there is something that `write` does not write.
pub fn read(body: &str) -> Result<Vec<Part>> {
    let (mut parts, mut lines) = (Vec::new(), body.lines());
    while let Some(line) = lines.next() {
        if let Some(fence) = line.strip_suffix("text") {
            let text: Vec<&str> = lines.by_ref().take_while(|l| *l != fence).collect();
            parts.push(Part::Text(text.join("\n")));
        } else if !line.is_empty() {
            let picture = line.strip_prefix("![").and_then(|l| l.strip_suffix(')'));
            let (alt, image) = picture.and_then(|p| p.split_once("](")).with_context(|| {
                format!("an output is a ```text block or a picture, not {line:?}")
            })?;
            parts.push(Part::Picture {
                alt: alt.into(),
                image: image.into(),
            });
        }
    }
    Ok(parts)
}

/// The parts as they stand in a chapter.
pub fn write(parts: &[Part]) -> String {
    let mut body = String::new();
    for part in parts {
        let written = match part {
            Part::Text(text) if text.contains("```") => write!(body, "````text\n{text}\n````\n"),
            Part::Text(text) => write!(body, "```text\n{text}\n```\n"),
            Part::Picture { alt, image } => writeln!(body, "![{alt}]({image})"),
        };
        written.expect("a string takes everything");
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_becomes_text_and_pictures() -> Result<()> {
        let svg = r#"<svg aria-label="Two lines. Thin.">"#;
        let stdout = format!("\n  one \n\ntwo\n{BEGIN}{svg}{END}\n\nthree  \n\n");
        let picture = |image: &str| Part::Picture {
            alt: "Two lines".into(),
            image: image.into(),
        };
        let text = |text: &str| Part::Text(text.into());
        let svg = format!("{svg}\n");
        assert_eq!(
            printed(&stdout)?,
            [text("  one\n\ntwo"), picture(&svg), text("three")]
        );
        assert_eq!(printed(" \n")?, []);
        assert!(printed(&format!("{BEGIN}<svg>")).is_err());
        assert!(printed(&format!("{BEGIN}<svg>{END}")).is_err());

        let parts = [text("a ```\n\nb"), picture("img/x-1.svg"), text("c")];
        let expected = "````text\na ```\n\nb\n````\n![Two lines](img/x-1.svg)\n```text\nc\n```\n";
        assert_eq!(write(&parts), expected);
        assert_eq!(read(expected)?, parts);
        assert!(read("loss 1.0\n").is_err());
        Ok(())
    }
}
