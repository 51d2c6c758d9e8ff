//! A page's Markdown as mdBook and a browser without a network understand it: formulas as MathML, links into the
//! repository as links to pages of the site, outputs marked as such.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use math_core::{LatexToMathML, MathCoreConfig, MathDisplay};
use pulldown_cmark::{Event, Parser};

use crate::chapter::{Chapter, Kind, Piece};
use crate::links::{self, Link};

/// Address in the site of a file of the repository: chapters and their pictures at the top, the rest in a folder.
pub fn address(file: &Path) -> PathBuf {
    let is_markdown = file.extension().is_some_and(|e| e == "md");
    match file.strip_prefix("notebooks-md") {
        // `index.html` is the start page
        Ok(page) if page == Path::new("README.md") => "chapters.html".into(),
        Ok(page) if is_markdown => page.with_extension("html"),
        Ok(picture) if picture.starts_with("img") => picture.into(),
        // mdBook takes `x.md.html` in a link for a mistake
        _ if is_markdown => Path::new("code").join(file).with_extension("html"),
        _ => format!("code/{}.html", file.display()).into(),
    }
}

/// Source of a page's text, and the page's place in the site.
pub struct Place<'a> {
    /// The file of the repository.
    pub file: &'a Path,
    /// The path in the site.
    pub address: PathBuf,
}

impl<'a> Place<'a> {
    /// That of a page with all of a file.
    pub fn of(file: &'a Path) -> Self {
        let address = address(file);
        Self { file, address }
    }
}

/// The page that shows the Markdown `text` of a file. The files that it links to in the folder join `linked`.
///
/// # Errors
/// If a formula is not understood, or a link leads nowhere.
pub fn page(root: &Path, place: &Place, text: &str, linked: &mut Vec<PathBuf>) -> Result<String> {
    let text: String = Chapter::parse(text)?.pieces.iter().map(piece).collect();
    let mut places = Vec::new();
    for (event, range) in Parser::new_ext(&text, links::OPTIONS).into_offset_iter() {
        let (latex, display) = match event {
            Event::InlineMath(latex) => (latex, MathDisplay::Inline),
            Event::DisplayMath(latex) => (latex, MathDisplay::Block),
            _ => continue,
        };
        places.push((range, mathml(&latex, display)?));
    }
    for link in links::of(&text) {
        let Some(path) = link.file() else { continue };
        let range = link
            .address(&text)
            .with_context(|| format!("write ({path}) right behind its [text]"))?;
        places.push((range, target(root, place, &link, path, linked)?));
    }
    Ok(links::replaced(&text, places))
}

/// Target in the site of a link or picture with this path.
fn target(
    root: &Path,
    from: &Place,
    link: &Link,
    path: &str,
    linked: &mut Vec<PathBuf>,
) -> Result<String> {
    let file = in_repository(root, from.file, path)?;
    let to = address(&file);
    if to.starts_with("code") {
        // mdBook copies only what lies beside the chapters
        if link.is_picture {
            let data = BASE64_STANDARD.encode(fs::read(root.join(file))?);
            return Ok(format!("data:image/svg+xml;base64,{data}"));
        }
        linked.push(file);
    }
    // `#L10-L20` is what GitHub has for several lines
    let fragment = link.to[path.len()..].split("-L").next().unwrap_or_default();
    let up = "../".repeat(from.address.components().count() - 1);
    Ok(format!("{up}{}{fragment}", to.display()))
}

/// The file of the repository that a relative link means.
fn in_repository(root: &Path, from: &Path, path: &str) -> Result<PathBuf> {
    let mut file = from.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => ensure!(file.pop(), "{path} leads out of the repository"),
            Component::CurDir => {}
            part => file.push(part),
        }
    }
    ensure!(
        root.join(&file).exists(),
        "{} links to {path}, which is not there",
        from.display()
    );
    Ok(file)
}

/// mdBook needs no more than the language of a listing, and an output is marked for the style sheet.
fn piece(piece: &Piece) -> String {
    let Piece { body, close, .. } = piece;
    match &piece.kind {
        Kind::Text => body.clone(),
        Kind::Output(_) if body.is_empty() => String::new(),
        Kind::Code { .. } => format!("{}{}\n{body}{close}", close.trim_end(), piece.language()),
        Kind::Output(_) | Kind::Recorded(_) => {
            format!("\n<div class=\"output\">\n\n{}\n\n</div>\n", body.trim())
        }
    }
}

/// A formula as MathML, which browsers show by themselves, in one line and with entities in place of what would be
/// Markdown.
fn mathml(latex: &str, display: MathDisplay) -> Result<String> {
    let converter = LatexToMathML::new(MathCoreConfig::default()).map_err(|e| anyhow!("{e:?}"))?;
    let made = converter
        .convert_with_local_state(latex, display)
        .map_err(|e| anyhow!("${latex}$: {e:?}"))?;
    let mut safe = String::new();
    for c in made.mathml.replace('\n', " ").chars() {
        if r"\`*_[]{}|~$".contains(c) {
            safe += &format!("&#{};", c as u32)
        } else {
            safe.push(c)
        }
    }
    Ok(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<(String, Vec<PathBuf>)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut linked = Vec::new();
        let file = Path::new("notebooks-md/page.md");
        let text = page(&root, &Place::of(file), text, &mut linked)?;
        Ok((text, linked))
    }

    #[test]
    fn links_into_the_repository_lead_to_pages() -> Result<()> {
        let (text, linked) =
            made("[`f`](../Cargo.toml#L3-L5), [table](README.md#a), [x](https://x.y) [a](#b)")?;
        let expected =
            "[`f`](code/Cargo.toml.html#L3), [table](chapters.html#a), [x](https://x.y) [a](#b)";
        assert_eq!(text, expected);
        assert_eq!(linked, [Path::new("Cargo.toml")]);
        Ok(())
    }

    #[test]
    fn a_link_to_nothing_is_an_error() {
        let error = made("[a](../nothing.rs)").unwrap_err().to_string();
        let expected = "notebooks-md/page.md links to ../nothing.rs, which is not there";
        assert_eq!(error, expected);
        assert!(made("[a](../../x)").is_err());
    }

    #[test]
    fn formulas_are_converted_but_not_in_code() -> Result<()> {
        let (text, _) = made("$k$ and `$k$`\n\n```sh\necho $a$\n```\n")?;
        let expected = "<math><mi>k</mi></math> and `$k$`\n\n```sh\necho $a$\n```\n";
        assert_eq!(text, expected);
        let (half, _) = made(r"$[a_1] * \frac{1}{2}$")?;
        let is_markdown = half.contains(['[', '_', '*']);
        assert!(half.contains("<mfrac>") && !is_markdown, "{half}");
        let error = made(r"$\frac{1}$").unwrap_err().to_string();
        assert!(error.contains(r"\frac{1}"), "{error}");
        Ok(())
    }

    #[test]
    fn listings_and_outputs_are_what_mdbook_shows() -> Result<()> {
        let listing = "```rust file=\"a.rs\" item=\"f\"\nf();\n```\n\n";
        let output = "<!-- output -->\n```text\n1\n```\n<!-- /output -->\n";
        let (text, _) = made(&format!("{listing}{output}"))?;
        let output = "<div class=\"output\">\n\n```text\n1\n```\n\n</div>\n";
        assert_eq!(text, format!("```rust\nf();\n```\n\n{output}"));
        let difference = "```diff file=\"b.rs\" since=\"a.rs\"\n-f();\n+g();\n```\n";
        let (text, _) = made(difference)?;
        assert_eq!(text, "```diff\n-f();\n+g();\n```\n");
        Ok(())
    }

    #[test]
    fn a_part_of_the_readme_is_a_page_at_the_top() -> Result<()> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let place = Place {
            file: Path::new("README.md"),
            address: "index.html".into(),
        };
        let text = "[chapters](notebooks-md/README.md), [all](README.md)";
        let text = page(&root, &place, text, &mut Vec::new())?;
        assert_eq!(text, "[chapters](chapters.html), [all](code/README.html)");
        Ok(())
    }
}
