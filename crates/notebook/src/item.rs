//! Items of a Rust file by name: where they begin, and their text. No parser: the files are formatted by
//! rustfmt, so an item begins at an indentation and ends at the first line there that closes it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::chapter::Source;

/// An item of a file.
#[derive(Debug, PartialEq)]
pub struct Item {
    /// The line that declares it, below its doc comment and attributes; 1 is the first.
    pub line: usize,
    /// Its text without doc comment and attributes, dedented; it ends with a newline.
    pub text: String,
}

/// The text of a listing, from the file below `root`.
///
/// # Errors
/// If there is no such file, or no such item in it.
pub fn listing(root: &Path, source: &Source) -> Result<String> {
    let file = &source.file;
    let text = fs::read_to_string(root.join(file)).with_context(|| file.clone())?;
    if source.items.is_empty() {
        return Ok(without_head(&text));
    }
    let find = |name: &String| Ok(find(&text, name).with_context(|| file.clone())?.text);
    Ok(source
        .items
        .iter()
        .map(find)
        .collect::<Result<Vec<_>>>()?
        .join("\n"))
}

/// A file without its `//!` head.
fn without_head(text: &str) -> String {
    let is_head = |line: &&str| line.starts_with("//!") || line.trim().is_empty();
    text.split_inclusive('\n').skip_while(is_head).collect()
}

/// The item `name` (`f`, `Type`, `impl Trait for Type`) or `Type::method` of a file.
///
/// # Errors
/// If there is none.
pub fn find(source: &str, name: &str) -> Result<Item> {
    let lines: Vec<&str> = source.lines().collect();
    let (begin, end) = place(&lines, name).with_context(|| format!("no item {name:?}"))?;
    let width = indentation(lines[begin]);
    let dedented = lines[begin..=end]
        .iter()
        .map(|line| line.get(width..).unwrap_or("").to_owned() + "\n");
    Ok(Item {
        line: begin + 1,
        text: dedented.collect(),
    })
}

/// The first and the last line of an item.
fn place(lines: &[&str], name: &str) -> Option<(usize, usize)> {
    if let Some(header) = name.strip_prefix("impl ") {
        let is = |i| impl_header(lines, i).is_some_and(|h| h == header);
        return declared(lines, 0, is).next();
    }
    let Some((owner, member)) = name.split_once("::") else {
        return declared(lines, 0, |i| declares(lines[i], name)).next();
    };
    let is_owner = |i: usize| declares(lines[i], owner) || implements(lines, i, owner);
    declared(lines, 0, is_owner).find_map(|(begin, end)| {
        let is_member = |i: usize| i > begin && i < end && declares_member(lines[i], member);
        declared(lines, 4, is_member).next()
    })
}

/// The items at an indentation of `width` with a first line that `is` accepts.
fn declared(
    lines: &[&str],
    width: usize,
    is: impl Fn(usize) -> bool,
) -> impl Iterator<Item = (usize, usize)> {
    let begins = (0..lines.len()).filter(move |&i| indentation(lines[i]) == width && is(i));
    begins.filter_map(move |begin| {
        let ends = |line: &&str| indentation(line) == width && line.ends_with(['}', ';', ',']);
        let code = lines[begin..]
            .iter()
            .map(|line| line.split(" //").next().unwrap_or(line));
        Some((
            begin,
            begin + code.map(str::trim_end).position(|line| ends(&line))?,
        ))
    })
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

const BEFORE: [&str; 10] = [
    "pub", "crate", "super", "in", "const", "async", "unsafe", "extern", "C", "static",
];
const KEYWORDS: [&str; 10] = [
    "fn",
    "struct",
    "enum",
    "const",
    "static",
    "mut",
    "type",
    "trait",
    "union",
    "macro_rules",
];

/// Whether a line declares an item of that name.
fn declares(line: &str, name: &str) -> bool {
    let words = words(line);
    let Some(i) = words.iter().position(|w| *w == name) else {
        return false;
    };
    let keyword = i.checked_sub(1).map(|i| words[i]);
    keyword.is_some_and(|k| KEYWORDS.contains(&k))
        && words[..i - 1].iter().all(|w| BEFORE.contains(w))
}

/// The same inside a type, where fields and variants have no keyword.
fn declares_member(line: &str, name: &str) -> bool {
    let named = words(line).into_iter().find(|w| !BEFORE.contains(w));
    declares(line, name) || named == Some(name)
}

fn words(line: &str) -> Vec<&str> {
    if line.trim_start().starts_with(['/', '#']) {
        return Vec::new();
    }
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|w| !w.is_empty())
        .collect()
}

/// The header of the `impl` that begins at line `i`, without generics: `Module for Linear`.
fn impl_header(lines: &[&str], i: usize) -> Option<String> {
    if !lines[i].trim_start().starts_with("impl") {
        return None;
    }
    let end = lines[i..].iter().position(|line| line.contains('{'))?;
    let (mut header, mut depth, mut before) = (String::new(), 0, ' ');
    for c in lines[i..=i + end].join(" ").chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ if depth == 0 => header.push(c),
            _ => (),
        }
        before = c;
    }
    let header = header.split('{').next()?.split(" where ").next()?;
    let header: Vec<&str> = header
        .trim_start()
        .strip_prefix("impl")?
        .split_whitespace()
        .collect();
    Some(header.join(" "))
}

/// Whether line `i` begins an `impl` of the type.
fn implements(lines: &[&str], i: usize, name: &str) -> bool {
    let of = |header: String| header.rsplit([' ', ':', '&']).next() == Some(name);
    impl_header(lines, i).is_some_and(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"//! A file.
//! Of two lines.

use std::fmt;

/// Not this fn area, nor
/// fn area in a doc comment.
#[derive(Debug)]
pub struct Circle {
    /// From the centre.
    pub radius: f64, // in m
}

pub struct Unit;

impl<'a, F: Fn() -> f64> fmt::Display for Other<'a, F>
where
    F: Send,
{
    /// A trait's.
    fn fmt(&self) -> X {
        x
    }
}

impl Circle {
    /// The area.
    #[must_use]
    pub const fn area(
        &self,
        scale: f64,
    ) -> f64 {
        if true {
            1.0
        } else {
            2.0
        }
    }

    fn around(&self) -> f64 {}
}

pub(crate) const SIDES: [u8; 2] = [
    1, //
    2,
]; // the end

pub enum Way {
    Ring,
    Tree { base: usize },
}

fn area() -> f64 {
    3.0
}
"#;

    fn text(name: &str) -> (usize, String) {
        let item = find(SOURCE, name).unwrap();
        (item.line, item.text)
    }

    #[test]
    fn items_are_found_by_name() {
        let circle =
            "pub struct Circle {\n    /// From the centre.\n    pub radius: f64, // in m\n}\n";
        assert_eq!(text("Circle"), (9, circle.into()));
        assert_eq!(text("Unit"), (14, "pub struct Unit;\n".into()));
        assert_eq!(
            text("area"),
            (53, "fn area() -> f64 {\n    3.0\n}\n".into())
        );
        assert_eq!(text("SIDES").1.lines().count(), 4);
        assert_eq!(text("impl fmt::Display for Other").1.lines().count(), 9);
        assert_eq!(text("impl Circle").0, 26);
    }

    #[test]
    fn members_are_found_and_dedented() {
        let area = text("Circle::area");
        assert_eq!(area.0, 29);
        assert!(
            area.1.starts_with("pub const fn area(\n    &self,\n"),
            "{}",
            area.1
        );
        assert!(area.1.ends_with("        2.0\n    }\n}\n"), "{}", area.1);
        assert_eq!(
            text("Circle::around"),
            (40, "fn around(&self) -> f64 {}\n".into())
        );
        assert_eq!(text("Circle::radius").0, 11);
        assert_eq!(text("Other::fmt").0, 21);
        assert_eq!(text("Way::Ring").0, 49);
        assert_eq!(text("Way::Tree").1, "Tree { base: usize },\n");
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        for name in [
            "are",
            "f64",
            "Circle::fmt",
            "Way::Star",
            "area::x",
            "impl Way",
        ] {
            let error = find(SOURCE, name).unwrap_err().to_string();
            assert_eq!(error, format!("no item {name:?}"));
        }
    }

    #[test]
    fn a_whole_file_goes_without_its_head() {
        assert!(without_head(SOURCE).starts_with("use std::fmt;\n"));
    }

    #[test]
    fn several_items_have_a_blank_line_between() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a.rs"), SOURCE)?;
        let source = Source {
            file: "a.rs".into(),
            items: vec!["Unit".into(), "area".into()],
        };
        let expected = "pub struct Unit;\n\nfn area() -> f64 {\n    3.0\n}\n";
        assert_eq!(listing(folder.path(), &source)?, expected);
        Ok(())
    }
}
