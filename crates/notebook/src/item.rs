//! Items of a Rust file by name: where they begin, and their text. rustfmt has formatted the file, so indentation
//! says where an item begins and ends. It does so in Python too.
//!
//! `syn` would give lines only with the feature `span-locations` of proc-macro2. Then `cargo test` would compile
//! every derive macro again after `cargo run`, and each crate that uses one.

use std::path::Path;

use anyhow::{Context, Result};
use similar::TextDiff;

use crate::chapter::{self, Source};

/// An item of a file.
#[derive(Debug, PartialEq)]
pub struct Item {
    /// The line that declares it, below its doc comment and attributes; 1 is the first.
    pub line: usize,
    /// Its text without doc comment and attributes, dedented; it ends with a newline.
    pub text: String,
}

/// Lines with their numbers.
type Lines<'a> = [(usize, &'a str)];

/// The text of a listing, from the file below `root`.
///
/// # Errors
/// If there is no such file, or no such item in it.
pub fn listing(root: &Path, source: &Source) -> Result<String> {
    let file = &source.file;
    let text = chapter::read(&root.join(file))?;
    let Some(since) = &source.since else {
        return items_of(&text, &source.items).with_context(|| file.clone());
    };
    let old = chapter::read(&root.join(file).with_file_name(since))?;
    if source.items.is_empty() {
        return Ok(difference(&old, &text));
    }
    let [old, new] = [&old, &text].map(|text| items_of(text, &source.items));
    let place = || format!("{file} since {since}");
    Ok(difference(
        &old.with_context(place)?,
        &new.with_context(place)?,
    ))
}

/// The text of some items, an empty line between them.
fn items_of(text: &str, names: &[String]) -> Result<String> {
    let items = names.iter().map(|name| Ok(find(text, name)?.text));
    Ok(items.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// Of more removed lines in a row, a difference shows how many they are, and which functions begin in them.
const REMOVED: usize = 6;

/// Changes from a file to the next one, with a line or two around each; imports and the first comment are left out, and
/// many removed lines in a row are counted.
pub fn difference(old: &str, new: &str) -> String {
    let [old, new] = [old, new].map(|text| {
        let mut is_import = false;
        let lines = text.split_inclusive('\n').filter(|line| {
            let begins = is_import || line.starts_with("use ");
            is_import = begins && !line.trim_end().ends_with(';');
            !begins && !line.starts_with("//!")
        });
        lines.collect::<String>().trim_start().to_owned()
    });
    let diff = TextDiff::from_lines(&old, &new);
    let hunks = diff.unified_diff().context_radius(2).to_string();
    let lines: Vec<&str> = hunks.lines().map(str::trim_end).collect();
    let is_removed = |line: &&str| line.starts_with('-');
    let mut shown = String::new();
    for run in lines.chunk_by(|a, b| is_removed(a) == is_removed(b)) {
        if run.len() > REMOVED && is_removed(&run[0]) {
            shown += &counted(run);
            continue;
        }
        for line in run {
            shown += if line.starts_with("@@") { "…" } else { line };
            shown.push('\n');
        }
    }
    shown
}

/// `-… 14 lines: reduce_scatter, join_parts`: how many lines are removed, and which functions begin in them.
fn counted(removed: &[&str]) -> String {
    let begun = removed.iter().filter_map(|line| {
        let line = line[1..].trim_start();
        let signature = line
            .strip_prefix("pub ")
            .unwrap_or(line)
            .strip_prefix("fn ")?;
        signature.split(['(', '<']).next()
    });
    let functions: Vec<&str> = begun.collect();
    let names = if functions.is_empty() { "" } else { ": " };
    format!(
        "-… {} lines{names}{}\n",
        removed.len(),
        functions.join(", ")
    )
}

/// The item `name` (`f`, `Type`, `impl Trait for Type`) or `Type::member` of a file.
///
/// # Errors
/// If the file has no such item.
pub fn find(source: &str, name: &str) -> Result<Item> {
    let lines: Vec<(usize, &str)> = (1..).zip(source.lines()).collect();
    let mut top = items(&lines, 0);
    let found = match name.split_once("::") {
        _ if name.starts_with("impl ") => top.find(|item| header(item) == name),
        Some((owner, member)) => top
            .filter(|item| has_members(item, owner))
            .flat_map(|item| items(item, 4))
            .find(|item| declares(item, member)),
        None => top.find(|item| declares(item, name)),
    };
    let item = found.with_context(|| format!("no item {name:?}"))?;
    let (line, first) = item[0];
    let width = indentation(first);
    let dedented = |(_, line): &(usize, &str)| line.get(width..).unwrap_or("").to_owned() + "\n";
    let text = item.iter().map(dedented).collect();
    Ok(Item { line, text })
}

/// The items of this indentation.
fn items<'a>(lines: &'a Lines<'a>, width: usize) -> impl Iterator<Item = &'a Lines<'a>> {
    let begins = move |line: &str| {
        indentation(line) == width
            && line[width..].starts_with(|c: char| c.is_alphabetic() || c == '_')
    };
    let goes_on = move |line: &str| {
        let rest = line.trim_start();
        let is_same = indentation(line) == width;
        rest.is_empty()
            || indentation(line) > width
            || is_same && (rest == "where" || rest.starts_with(['{', '}', ')', ']', '>']))
    };
    (0..lines.len())
        .filter(move |&i| begins(lines[i].1))
        .map(move |i| {
            let after = lines[i + 1..].iter();
            let inside = after.take_while(|(_, line)| goes_on(line)).count();
            let mut item = &lines[i..=i + inside];
            while let [rest @ .., (_, "")] = item {
                item = rest;
            }
            item
        })
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// True if the first word that is no keyword is `name`.
fn declares(item: &Lines, name: &str) -> bool {
    const KEYWORDS: &str = "pub crate super const async unsafe extern fn struct enum trait type static mut macro_rules def class";
    let words = item[0].1.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut names =
        words.skip_while(|word| word.is_empty() || KEYWORDS.split(' ').any(|k| k == *word));
    names.next() == Some(name)
}

/// True if fields, variants or associated items of the type `owner` are in an item.
fn has_members(item: &Lines, owner: &str) -> bool {
    let header = header(item);
    match header.strip_prefix("impl ") {
        Some(names) => names.rsplit(' ').next() == Some(owner),
        None => {
            let mut words = header.split(' ');
            let is_type = words.any(|word| ["struct", "enum", "trait"].contains(&word));
            is_type && declares(item, owner)
        }
    }
}

/// Text before an item's block, without generics and modules: `impl Module for Linear`.
fn header(item: &Lines) -> String {
    let lines: Vec<&str> = item.iter().map(|(_, line)| *line).collect();
    let text = lines.join(" ").replace("->", "");
    let before_block = text.split('{').next().unwrap_or_default();
    let declaration = before_block.split(" where ").next().unwrap_or_default();
    let mut depth = 0;
    let is_outside = |c: &char| {
        depth += i32::from(*c == '<');
        let is_outside = depth == 0;
        depth -= i32::from(*c == '>');
        is_outside
    };
    let plain: String = declaration.chars().filter(is_outside).collect();
    plain
        .split_whitespace()
        .map(|word| word.rsplit("::").next().unwrap_or(word))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn many_removed_lines_are_counted() {
        let removed = "fn sum() {\n    a();\n    b();\n}\n\npub fn copy<T>() {\n    c();\n}\n";
        let old = format!("one\n{removed}two\nthree\n");
        let expected = " one\n-… 8 lines: sum, copy\n two\n-three\n+four\n";
        assert_eq!(
            difference(&old, "one\ntwo\nfour\n"),
            format!("…\n{expected}")
        );
        let old = format!("one\n{}two\n", "x\n".repeat(REMOVED));
        let shown = difference(&old, "one\ntwo\n");
        assert_eq!(shown.matches("-x\n").count(), REMOVED, "{shown}");
    }

    const SOURCE: &str = r#"//! A file.
/// Not this fn area, nor
/// fn area in a doc comment.
#[derive(Debug)]
pub struct Circle {
    /// From the centre.
    pub radius: f64, // in m
}

impl fmt::Display for Other {
    fn fmt(&self) -> X {}
}

impl Circle {
    fn around(&self) -> f64 {}
}

pub enum Way {
    Ring,
}

fn area() -> f64 {
    3.0
}
"#;

    #[test]
    fn what_is_not_there_is_an_error() {
        let names = "are, f64, Circle::fmt, Way::Star, area::x, impl Way";
        for name in names.split(", ") {
            let error = find(SOURCE, name).unwrap_err().to_string();
            assert_eq!(error, format!("no item {name:?}"));
        }
    }

    /// Also in a checkout with other line ends.
    #[test]
    fn several_items_have_a_blank_line_between() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a.rs"), SOURCE.replace('\n', "\r\n"))?;
        let source = Source {
            file: "a.rs".into(),
            since: None,
            items: vec!["Circle::around".into(), "area".into()],
        };
        let expected = "fn around(&self) -> f64 {}\n\nfn area() -> f64 {\n    3.0\n}\n";
        assert_eq!(listing(folder.path(), &source)?, expected);
        Ok(())
    }
}
