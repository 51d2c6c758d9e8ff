//! Output of a cell, text and pictures, as it stands in the chapter.

use anyhow::{Context, Result};

const BEGIN: &str = "EVCXR_BEGIN_CONTENT image/svg+xml\n";
const END: &str = "\nEVCXR_END_CONTENT";

/// A picture of a page.
#[derive(Debug, PartialEq)]
pub struct Picture {
    /// Its path, relative to the folder of the pages: `img/splitting.svg`.
    pub file: String,
    /// Its text.
    pub svg: String,
}

/// The Markdown of what a cell printed, and its pictures. Their files are `PICTURE.svg`, `PICTURE-2.svg`.
///
/// # Errors
/// If a picture does not end, or does not say in an `aria-label` what it shows.
pub fn body(stdout: &str, picture: &str) -> Result<(String, Vec<Picture>)> {
    let mut body = String::new();
    let mut pictures = Vec::new();
    let mut rest = stdout;
    while let Some((text, more)) = rest.split_once(BEGIN) {
        let (svg, more) = more.split_once(END).context("a picture does not end")?;
        let file = match pictures.len() {
            0 => format!("{picture}.svg"),
            n => format!("{picture}-{}.svg", n + 1),
        };
        body += &block(text);
        body += &format!("![{}]({file})\n", label(svg)?);
        let svg = svg.to_owned() + "\n";
        pictures.push(Picture { file, svg });
        rest = more;
    }
    Ok((body + &block(rest), pictures))
}

/// A block of text, without blanks at the end of lines or empty lines around; nothing if it is empty.
fn block(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    match text.trim_matches('\n') {
        "" => String::new(),
        text if text.contains("```") => format!("````text\n{text}\n````\n"),
        text => format!("```text\n{text}\n```\n"),
    }
}

/// The first sentence of a picture's `aria-label`.
fn label(svg: &str) -> Result<String> {
    let label = svg
        .split_once("aria-label=\"")
        .and_then(|(_, rest)| rest.split('"').next())
        .context("a picture says in an aria-label what it shows")?;
    let first = label.split(". ").next().unwrap_or(label);
    Ok(first.trim_end_matches('.').replace(['[', ']'], ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_becomes_text_and_pictures() -> Result<()> {
        let svg = r#"<svg aria-label="Two lines. Thin.">"#;
        let picture = format!("{BEGIN}{svg}{END}\n");
        let stdout = format!("\n  one \n\ntwo ```\n{picture}\nthree  \n\n{picture}");
        let (text, pictures) = body(&stdout, "img/x-1")?;
        let expected = "````text\n  one\n\ntwo ```\n````\n![Two lines](img/x-1.svg)\n\
                        ```text\nthree\n```\n![Two lines](img/x-1-2.svg)\n";
        assert_eq!(text, expected);
        let first = Picture {
            file: "img/x-1.svg".into(),
            svg: format!("{svg}\n"),
        };
        assert_eq!(pictures[0], first);
        assert_eq!(body(" \n", "x")?, Default::default());
        assert!(body(&format!("{BEGIN}<svg>"), "x").is_err());
        assert!(body(&format!("{BEGIN}<svg>{END}"), "x").is_err());
        Ok(())
    }
}
