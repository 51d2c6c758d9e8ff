//! The links of a page: to code by item and line, as in [`allreduce`](../crates/scratch/src/lib.rs#L137), and
//! to other files of the repository.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::item;

/// A link or a picture of a page.
#[derive(Debug, PartialEq)]
pub struct Link {
    /// The line of the page; 1 is the first.
    pub line: usize,
    /// Where it leads: `../crates/scratch/src/lib.rs#L137`.
    pub to: String,
    /// Its text, if that is one piece of code: `allreduce`.
    pub item: Option<String>,
    /// Where its Markdown is in the text.
    range: Range<usize>,
}

/// The links and pictures of a page, in order.
pub fn of(text: &str) -> Vec<Link> {
    let (mut links, mut open, mut inside) = (Vec::new(), None, Vec::new());
    let options = Options::ENABLE_TABLES | Options::ENABLE_MATH | Options::ENABLE_GFM;
    for (event, range) in Parser::new_ext(text, options).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => {
                open = Some(dest_url.to_string());
                inside.clear();
            }
            Event::End(TagEnd::Link) => links.extend(open.take().map(|to| Link {
                line: line_of(text, &range),
                to,
                item: match &inside[..] {
                    [Event::Code(item)] => Some(item.to_string()),
                    _ => None,
                },
                range,
            })),
            Event::Start(Tag::Image { dest_url, .. }) => links.push(Link {
                line: line_of(text, &range),
                to: dest_url.to_string(),
                item: None,
                range,
            }),
            event => inside.push(event),
        }
    }
    links
}

fn line_of(text: &str, range: &Range<usize>) -> usize {
    text[..range.start].matches('\n').count() + 1
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

    /// The line where the item is that it names.
    ///
    /// # Errors
    /// If it names none, or the file has no such item.
    pub fn line_of_item(&self, folder: &Path) -> Result<usize> {
        let item = self.item.as_deref();
        let item = item.context(
            "a link to a line has an item's name in backticks as its text, and nothing else",
        )?;
        let file = self.file().context("no file")?;
        let source = fs::read_to_string(folder.join(file)).with_context(|| file.to_owned())?;
        let found = item::find(&source, &path_in_file(item)).with_context(|| file.to_owned())?;
        Ok(found.line)
    }
}

/// `Trainer::step` of `concise::Trainer::step`, `sgd` of `d2l::sgd`: crates and modules are written small.
fn path_in_file(item: &str) -> String {
    let is_module = |name: &&str| name.starts_with(char::is_lowercase);
    let names: Vec<&str> = item.trim_end_matches("()").split("::").collect();
    let modules = names[..names.len() - 1]
        .iter()
        .take_while(|n| is_module(n))
        .count();
    names[modules..].join("::")
}

/// A page with the present line of each item in the link to it. A link to an item that is not found stays.
pub fn renewed(folder: &Path, text: &str) -> String {
    let mut renewed = text.to_owned();
    for link in of(text).iter().rev() {
        let now = (link.line_of_code(), link.line_of_item(folder));
        if let (Some(old), Ok(new)) = now {
            let [old, new] = [old, new].map(|line| format!("#L{line})"));
            let markdown = text[link.range.clone()].replace(&old, &new);
            renewed.replace_range(link.range.clone(), &markdown);
        }
    }
    renewed
}

/// What is wrong with the links of a page: line and complaint.
pub fn complaints(folder: &Path, text: &str) -> Vec<(usize, String)> {
    let complaint = |link: &Link| {
        let file = link.file()?;
        if !folder.join(file).exists() {
            return Some(format!("{file} does not exist"));
        }
        let line = link.line_of_code()?;
        match link.line_of_item(folder) {
            Ok(now) => (now != line).then(|| format!("{} is in line {now}", link.to)),
            Err(error) => Some(format!("{}: {error:#}", link.to)),
        }
    };
    let links = of(text);
    links
        .iter()
        .filter_map(|link| Some((link.line, complaint(link)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder `pages` beside a file `a.rs`; the item `f` is in line 3 of this file, and `A::g` in line 6.
    fn folder() -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("pages"))?;
        fs::write(
            folder.path().join("a.rs"),
            "//! A.\n\nfn f() {}\n\nimpl A {\n    fn g() {}\n}\n",
        )?;
        Ok(folder)
    }

    #[test]
    fn links_to_code_are_checked_and_renewed() -> Result<()> {
        let folder = folder()?;
        let pages = folder.path().join("pages");
        let fresh =
            "[`f`](../a.rs#L3) [`x::A::g`](../a.rs#L6) [all](../a.rs) [x](https://x.org/a.rs#L9)\n";
        assert_eq!(complaints(&pages, fresh), []);
        let stale = "\n| [`f`](../a.rs#L33) | [`x::A::g`](../a.rs#L1) |\n";
        let lines: Vec<usize> = complaints(&pages, stale).iter().map(|c| c.0).collect();
        assert_eq!(lines, [2, 2]);
        let renewed = renewed(&pages, stale);
        assert_eq!(
            renewed,
            "\n| [`f`](../a.rs#L3) | [`x::A::g`](../a.rs#L6) |\n"
        );
        assert_eq!(complaints(&pages, &renewed), []);
        Ok(())
    }

    #[test]
    fn what_leads_nowhere_is_told() -> Result<()> {
        let folder = folder()?;
        for page in [
            "[`h`](../a.rs#L3)",
            "[f](../a.rs#L3)",
            "[`f`, `g`](../a.rs#L3)",
            "[b](../b.rs)",
            "![b](img/b.svg)",
            "[![b](img/b.svg)](../a.rs)",
        ] {
            let told = complaints(&folder.path().join("pages"), page);
            assert_eq!(told.len(), 1, "{page}: {told:?}");
        }
        let told = complaints(folder.path(), "```\n[b](b.rs)\n```\n`[b](b.rs)` [b](#b)");
        assert_eq!(told, []);
        Ok(())
    }
}
