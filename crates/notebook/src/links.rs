//! The links of a page: to code by item and line, as in [`allreduce`](../crates/scratch/src/lib.rs#L137), and
//! to other files of the repository.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pulldown_cmark::{Event, Options, Parser, Tag};

use crate::{chapter, item};

/// Extensions of Markdown that pages have.
pub const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_MATH)
    .union(Options::ENABLE_GFM);

/// A link or a picture of a page.
#[derive(Debug, PartialEq)]
pub struct Link {
    /// The line of the page; 1 is the first.
    pub line: usize,
    /// Its target: `../crates/scratch/src/lib.rs#L137`.
    pub to: String,
    /// Its text, if that is one piece of code: `allreduce`.
    pub item: Option<String>,
    /// True if it is a picture.
    pub is_picture: bool,
    /// Its place in the page's text.
    range: Range<usize>,
}

/// The links and pictures of a page, in order.
pub fn of(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (event, range) in Parser::new_ext(text, OPTIONS).into_offset_iter() {
        let (dest_url, is_picture) = match event {
            Event::Start(Tag::Link { dest_url, .. }) => (dest_url, false),
            Event::Start(Tag::Image { dest_url, .. }) => (dest_url, true),
            _ => continue,
        };
        let item = text[range.clone()]
            .strip_prefix("[`")
            .and_then(|inside| Some(inside.split_once("`](")?.0))
            .filter(|item| !item.contains('`'));
        links.push(Link {
            line: text[..range.start].matches('\n').count() + 1,
            to: dest_url.into_string(),
            item: item.map(str::to_owned),
            is_picture,
            range,
        });
    }
    links
}

impl Link {
    /// The file it leads to, from the page's folder; none for another site, or a place in the same page.
    pub fn file(&self) -> Option<&str> {
        let file = self.to.split('#').next()?;
        (!file.is_empty() && !file.contains(':')).then_some(file)
    }

    /// The line of the code that it leads to.
    pub fn line_of_code(&self) -> Option<usize> {
        let (file, line) = self.to.split_once("#L")?;
        file.ends_with(".rs").then(|| line.parse().ok())?
    }

    /// Target that it has to have now: an item's line may be another.
    fn now(&self, folder: &Path) -> Result<String> {
        let Some(file) = self.file() else {
            return Ok(self.to.clone());
        };
        ensure!(folder.join(file).exists(), "{file} does not exist");
        if self.line_of_code().is_none() {
            return Ok(self.to.clone());
        }
        let item = self
            .item
            .as_deref()
            .context("the text of a link to a line is an item's name in backticks")?;
        let source = chapter::read(&folder.join(file))?;
        let line = item::find(&source, path_in_file(item))?.line;
        Ok(format!("{file}#L{line}"))
    }

    /// Place of its address in the text of the page, if it stands right behind the link's `[text]`.
    pub fn address(&self, text: &str) -> Option<Range<usize>> {
        let markdown = &text[self.range.clone()];
        let at = markdown.rfind(&format!("]({}", self.to))?;
        let start = self.range.start + at + "](".len();
        Some(start..start + self.to.len())
    }
}

/// `Trainer::step` of `concise::Trainer::step`, `sgd` of `d2l::sgd`: crates and modules are written small.
fn path_in_file(item: &str) -> &str {
    let mut path = item.trim_end_matches("()");
    while path.starts_with(char::is_lowercase)
        && let Some((_, rest)) = path.split_once("::")
    {
        path = rest;
    }
    path
}

/// A text with other words in some places.
pub fn replaced(text: &str, mut places: Vec<(Range<usize>, String)>) -> String {
    let mut replaced = text.to_owned();
    places.sort_by_key(|(range, _)| range.start);
    for (range, new) in places.into_iter().rev() {
        replaced.replace_range(range, &new);
    }
    replaced
}

/// A page with the present line of each item in the link to it. A link to an item that is not found stays.
pub fn renewed(folder: &Path, text: &str) -> String {
    let places = of(text)
        .into_iter()
        .filter_map(|link| Some((link.address(text)?, link.now(folder).ok()?)));
    replaced(text, places.collect())
}

/// Complaints about the links of a page, each with its line.
pub fn complaints(folder: &Path, text: &str) -> Vec<(usize, String)> {
    let mut complaints = Vec::new();
    for link in of(text) {
        let what = match link.now(folder) {
            Ok(now) if now == link.to => continue,
            Ok(now) => format!("{} is now {now}", link.to),
            Err(error) => format!("{}: {error:#}", link.to),
        };
        complaints.push((link.line, what));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A folder `pages` beside a file `a.rs`; the item `f` is in line 3 of this file, and `A::g` in line 6.
    fn folder() -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("pages"))?;
        let source = "//! A.\n\nfn f() {}\n\nimpl A {\n    fn g() {}\n}\n";
        fs::write(folder.path().join("a.rs"), source)?;
        Ok(folder)
    }

    #[test]
    fn links_to_code_are_checked_and_renewed() -> Result<()> {
        let folder = folder()?;
        let pages = folder.path().join("pages");
        let stale = "\n| [`f`](../a.rs#L33) | [`x::A::g`](../a.rs#L1) |\n";
        let lines: Vec<usize> = complaints(&pages, stale).iter().map(|c| c.0).collect();
        assert_eq!(lines, [2, 2]);
        let fresh = "\n| [`f`](../a.rs#L3) | [`x::A::g`](../a.rs#L6) |\n";
        assert_eq!(renewed(&pages, stale), fresh);
        assert_eq!(complaints(&pages, fresh), []);
        Ok(())
    }

    #[test]
    fn what_leads_nowhere_is_told() -> Result<()> {
        let folder = folder()?;
        for (count, page) in [
            (1, "[`h`](../a.rs#L3)"),
            (1, "[f](../a.rs#L3)"),
            (1, "[`f`, `g`](../a.rs#L3)"),
            (1, "[b](../b.rs)"),
            (1, "![b](img/b.svg)"),
            (1, "[![b](img/b.svg)](../a.rs)"),
            (0, "[all](../a.rs) [x](https://x.org/a.rs#L9)"),
            (0, "```\n[b](b.rs)\n```\n`[b](b.rs)` [b](#b)"),
        ] {
            let told = complaints(&folder.path().join("pages"), page);
            assert_eq!(told.len(), count, "{page}: {told:?}");
        }
        Ok(())
    }
}
