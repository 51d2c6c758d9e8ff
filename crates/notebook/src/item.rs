//! Items of a Rust file by name: where they begin, and their text.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::TokenTree;
use quote::ToTokens;

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
    let mut listing = Vec::new();
    for name in &source.items {
        listing.push(find(&text, name).with_context(|| file.clone())?.text);
    }
    Ok(listing.join("\n"))
}

/// The item `name` (`f`, `Type`, `impl Trait for Type`) or `Type::member` of a file.
///
/// # Errors
/// If the file is not Rust, or has no such item.
pub fn find(source: &str, name: &str) -> Result<Item> {
    let items = syn::parse_file(source)?.items;
    let found = match name.split_once("::") {
        _ if name.starts_with("impl ") => items.iter().find_map(|item| match item {
            syn::Item::Impl(i) if header(i) == name => Some(declaration(item)),
            _ => None,
        }),
        Some((owner, member)) => items
            .iter()
            .flat_map(|item| members(item, owner))
            .find(|tokens| declares(tokens, member)),
        None => items
            .iter()
            .map(declaration)
            .find(|tokens| declares(tokens, name)),
    };
    let tokens = found.with_context(|| format!("no item {name:?}"))?;
    let first = tokens[0].span().start().line;
    let last = tokens[tokens.len() - 1].span().end().line;
    let lines: Vec<&str> = source.lines().take(last).skip(first - 1).collect();
    let width = lines[0].len() - lines[0].trim_start().len();
    let dedented = lines
        .iter()
        .map(|line| line.get(width..).unwrap_or("").to_owned() + "\n");
    Ok(Item {
        line: first,
        text: dedented.collect(),
    })
}

/// The tokens of an item below its doc comment and attributes.
fn declaration(item: impl ToTokens) -> Vec<TokenTree> {
    let mut tokens: Vec<TokenTree> = item.to_token_stream().into_iter().collect();
    while matches!(&tokens[0], TokenTree::Punct(sign) if sign.as_char() == '#') {
        tokens.drain(..2); // `#` and `[…]`
    }
    tokens
}

/// Whether the first word that is no keyword is `name`.
fn declares(declaration: &[TokenTree], name: &str) -> bool {
    const KEYWORDS: &str =
        "pub const async unsafe extern fn struct enum trait type static mut macro_rules";
    let words = declaration.iter().filter_map(|token| match token {
        TokenTree::Ident(word) => Some(word),
        _ => None,
    });
    let mut names = words.skip_while(|word| KEYWORDS.split(' ').any(|keyword| *word == keyword));
    names.next().is_some_and(|word| word == name)
}

/// The fields, variants or associated items of an item, if it belongs to the type `owner`.
fn members(item: &syn::Item, owner: &str) -> Vec<Vec<TokenTree>> {
    match item {
        syn::Item::Struct(i) if i.ident == owner => i.fields.iter().map(declaration).collect(),
        syn::Item::Enum(i) if i.ident == owner => i.variants.iter().map(declaration).collect(),
        syn::Item::Trait(i) if i.ident == owner => i.items.iter().map(declaration).collect(),
        syn::Item::Impl(i) if name_of(&i.self_ty) == owner => {
            i.items.iter().map(declaration).collect()
        }
        _ => Vec::new(),
    }
}

/// `impl Module for Linear`, without generics and modules.
fn header(item: &syn::ItemImpl) -> String {
    let owner = name_of(&item.self_ty);
    match &item.trait_ {
        Some((_, path, _)) => format!("impl {} for {owner}", last(path)),
        None => format!("impl {owner}"),
    }
}

fn name_of(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => last(&path.path),
        _ => String::new(),
    }
}

fn last(path: &syn::Path) -> String {
    let last = path.segments.last();
    last.map_or(String::new(), |segment| segment.ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"//! A file.
/// Not this fn area, nor
/// fn area in a doc comment.
#[derive(Debug)]
pub struct Circle {
    /// From the centre.
    pub radius: f64, // in m
}

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
    ) -> f64 {
        1.0
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
        assert_eq!(text("Circle"), (5, circle.into()));
        let area = "fn area() -> f64 {\n    3.0\n}\n";
        assert_eq!(text("area"), (42, area.into()));
        let sides = "pub(crate) const SIDES: [u8; 2] = [\n    1, //\n    2,\n]; // the end\n";
        assert_eq!(text("SIDES"), (32, sides.into()));
        let other = text("impl Display for Other");
        assert_eq!((other.0, other.1.lines().count()), (10, 9));
        assert_eq!(text("impl Circle").0, 20);
    }

    #[test]
    fn members_are_found_and_dedented() {
        let area = "pub const fn area(\n    &self,\n) -> f64 {\n    1.0\n}\n";
        assert_eq!(text("Circle::area"), (23, area.into()));
        assert_eq!(text("Circle::around").1, "fn around(&self) -> f64 {}\n");
        assert_eq!(text("Circle::radius").0, 7);
        assert_eq!(text("Other::fmt").0, 15);
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
    fn several_items_have_a_blank_line_between() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a.rs"), SOURCE)?;
        let source = Source {
            file: "a.rs".into(),
            items: vec!["Circle::around".into(), "area".into()],
        };
        let expected = "fn around(&self) -> f64 {}\n\nfn area() -> f64 {\n    3.0\n}\n";
        assert_eq!(listing(folder.path(), &source)?, expected);
        Ok(())
    }
}
