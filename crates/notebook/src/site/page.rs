//! A page's Markdown as mdBook and a browser without a network understand it: formulas as MathML, links into the
//! repository as links to pages of the site, outputs marked as such.

use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use math_core::MathDisplay;
use pulldown_cmark::{Event, Options, Parser, Tag};

use super::math::mathml;
use crate::chapter::{Chapter, Kind, Piece};

/// A page, and the repository that it links into.
pub struct Page<'a> {
    /// The repository.
    pub root: &'a Path,
    /// The file in the repository that the page shows.
    pub file: &'a Path,
    /// Where the page is in the site.
    pub site: &'a Path,
}

/// What became of a page.
pub struct Made {
    /// Its Markdown.
    pub text: String,
    /// The files of the repository that it links to.
    pub linked: Vec<PathBuf>,
}

/// Where the site has a file of the repository: chapters at the top, the rest in a folder.
pub fn address(file: &Path) -> PathBuf {
    let is_markdown = file.extension().is_some_and(|e| e == "md");
    match file.strip_prefix("notebooks-md") {
        Ok(page) if page == Path::new("README.md") => "index.html".into(),
        Ok(page) if is_markdown => page.with_extension("html"),
        // mdBook takes `x.md.html` in a link for a mistake
        _ if is_markdown => Path::new("code").join(file).with_extension("html"),
        _ => format!("code/{}.html", file.display()).into(),
    }
}

impl Page<'_> {
    /// Rewrites the page.
    ///
    /// # Errors
    /// If a formula is not understood, or a link leads nowhere.
    pub fn make(&self, text: &str) -> Result<Made> {
        let text: String = Chapter::parse(text)?.pieces.iter().map(piece).collect();
        let options = Options::ENABLE_TABLES | Options::ENABLE_MATH | Options::ENABLE_FOOTNOTES;
        let (mut changes, mut linked) = (Vec::new(), Vec::new());
        for (event, range) in Parser::new_ext(&text, options).into_offset_iter() {
            changes.extend(self.change(&text, event, range, &mut linked)?);
        }
        changes.sort_by_key(|(range, _)| range.start);
        let (mut made, mut end) = (String::new(), 0);
        for (range, new) in changes {
            made += &text[end..range.start];
            made += &new;
            end = range.end;
        }
        made += &text[end..];
        Ok(Made { text: made, linked })
    }

    /// What stands there instead.
    fn change(
        &self,
        text: &str,
        event: Event,
        range: Range<usize>,
        linked: &mut Vec<PathBuf>,
    ) -> Result<Option<(Range<usize>, String)>> {
        let (url, new) = match event {
            Event::InlineMath(latex) => {
                return Ok(Some((range, mathml(&latex, MathDisplay::Inline)?)));
            }
            Event::DisplayMath(latex) => {
                return Ok(Some((range, mathml(&latex, MathDisplay::Block)?)));
            }
            Event::Start(Tag::Link { dest_url: url, .. }) => {
                (url.clone(), self.link(&url, linked)?)
            }
            Event::Start(Tag::Image { dest_url: url, .. }) => (url.clone(), self.image(&url)?),
            _ => return Ok(None),
        };
        let Some(new) = new else {
            return Ok(None);
        };
        let at = text[range.clone()].rfind(&format!("]({url}"));
        let at = at.with_context(|| format!("write ({url}) right behind its [text]"))?;
        let start = range.start + at + "](".len();
        Ok(Some((start..start + url.len(), new)))
    }

    /// Where a link into the repository leads to in the site; `None` is for one within the page, or to elsewhere.
    fn link(&self, url: &str, linked: &mut Vec<PathBuf>) -> Result<Option<String>> {
        let (path, fragment) = url.split_once('#').unwrap_or((url, ""));
        let Some(file) = self.in_repository(path)? else {
            return Ok(None);
        };
        // `#L10-L20` is what GitHub has for several lines
        let fragment = fragment.split("-L").next().unwrap_or_default();
        let to = address(&file);
        if to.starts_with("code") {
            linked.push(file);
        }
        let up = "../".repeat(self.site.components().count() - 1);
        let hash = if fragment.is_empty() { "" } else { "#" };
        Ok(Some(format!("{up}{}{hash}{fragment}", to.display())))
    }

    /// A picture that mdBook does not find beside the chapters comes with the page.
    fn image(&self, url: &str) -> Result<Option<String>> {
        let Some(file) = self.in_repository(url)? else {
            return Ok(None);
        };
        if self.site.components().count() == 1 && file.starts_with("notebooks-md") {
            return Ok(None);
        }
        let kind = match file.extension().and_then(|e| e.to_str()) {
            Some("svg") => "svg+xml",
            Some("png") => "png",
            _ => return Err(anyhow::anyhow!("{url}: a picture is .svg or .png")),
        };
        let data = base64::prelude::BASE64_STANDARD.encode(fs::read(self.root.join(file))?);
        Ok(Some(format!("data:image/{kind};base64,{data}")))
    }

    /// The file of the repository that a relative link means.
    fn in_repository(&self, path: &str) -> Result<Option<PathBuf>> {
        if path.is_empty() || path.contains(':') {
            return Ok(None);
        }
        let mut file = self.file.parent().unwrap_or(Path::new("")).to_path_buf();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir => ensure!(file.pop(), "{path} leads out of the repository"),
                Component::CurDir => {}
                part => file.push(part),
            }
        }
        let there = self.root.join(&file).exists();
        ensure!(
            there,
            "{} links to {path}, which is not there",
            self.file.display()
        );
        Ok(Some(file))
    }
}

/// mdBook needs no more than the language of a listing, and an output is marked for the style sheet.
fn piece(piece: &Piece) -> String {
    let Piece { body, close, .. } = piece;
    match &piece.kind {
        Kind::Text => body.clone(),
        Kind::Code { .. } => format!("{}rust\n{body}{close}", close.trim_end()),
        Kind::Output { .. } | Kind::Recorded(_) => {
            format!("<div class=\"output\">\n\n{}\n\n</div>\n", body.trim())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Result<Made> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = Path::new("notebooks-md/page.md");
        let page = Page {
            root: &root,
            file,
            site: Path::new("page.html"),
        };
        page.make(text)
    }

    #[test]
    fn links_into_the_repository_lead_to_pages() -> Result<()> {
        let made =
            made("[`f`](../Cargo.toml#L3-L5), [table](README.md#a), [x](https://x.y) [a](#b)")?;
        let expected =
            "[`f`](code/Cargo.toml.html#L3), [table](index.html#a), [x](https://x.y) [a](#b)";
        assert_eq!(made.text, expected);
        assert_eq!(made.linked, [Path::new("Cargo.toml")]);
        Ok(())
    }

    #[test]
    fn a_link_to_nothing_is_an_error() {
        let error = made("[a](../nothing.rs)").err().map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(
            error.contains("notebooks-md/page.md links to ../nothing.rs"),
            "{error}"
        );
        assert!(made("[a](../../x)").is_err());
    }

    #[test]
    fn formulas_are_converted_but_not_in_code() -> Result<()> {
        let made = made("$k$ and `$k$`\n\n```sh\necho $a$\n```\n")?.text;
        assert!(
            made.starts_with("<math><mi>k</mi></math> and `$k$`"),
            "{made}"
        );
        assert!(made.ends_with("echo $a$\n```\n"), "{made}");
        Ok(())
    }

    #[test]
    fn listings_and_outputs_are_what_mdbook_shows() -> Result<()> {
        let made = made(
            "```rust file=\"a.rs\" item=\"f\"\nf();\n```\n\n<!-- output -->\n```text\n1\n```\n<!-- /output -->\n",
        )?;
        let output = "<div class=\"output\">\n\n```text\n1\n```\n\n</div>\n";
        assert_eq!(made.text, format!("```rust\nf();\n```\n\n{output}"));
        Ok(())
    }
}
