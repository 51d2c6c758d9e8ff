//! The site that mdBook makes of the chapters. It needs no network. It begins with the first part of the README. Formulas
//! become MathML, and every file of the repository that a page links to becomes a page.

mod page;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use collective::{Algorithm, Schedule};
use mdbook_driver::MDBook;
use mdbook_preprocessor::book::{Book, BookItem, Chapter, SectionNumber};
use mdbook_preprocessor::{Preprocessor, PreprocessorContext};

use crate::chapter;
use page::{Place, address};

/// The name of the part of the site that has the files of the repository.
const CODE: &str = "The code";
/// The heading of the last section of the README that the start page has.
const START: &str = "\n## Start here\n";
/// The page to play with has the schedules of 1 to this many members. Of more it shows only the costs.
const MEMBERS: usize = 16;

/// Builds the site of a folder of chapters in another folder.
///
/// # Errors
/// If a page cannot be made.
pub fn build(chapters: &Path, site: &Path) -> Result<()> {
    let mut book = MDBook::load(chapters)?;
    book.config.build.build_dir = site.to_path_buf();
    book.with_preprocessor(Site);
    book.build()?;
    let play = site.join("play");
    let trace = fs::read_to_string(play.join("trace.json"))?;
    fs::write(play.join("trace.js"), format!("const TRACE = {trace};\n"))?;
    fs::write(play.join("schedules.js"), schedules())?;
    Ok(())
}

/// The schedules of all algorithms, for a script that a browser loads from a file.
fn schedules() -> String {
    let of = |algorithm| {
        let all: Vec<String> = (1..=MEMBERS)
            .map(|k| Schedule::new(algorithm, k).json())
            .collect();
        format!("{algorithm}: [\n{}]", all.join(",\n"))
    };
    let all = Algorithm::ALL.map(of).join(",\n");
    format!("const SCHEDULES = {{\n{all}}};\n")
}

/// Changes pages before mdBook shows them.
struct Site;

impl Preprocessor for Site {
    fn name(&self) -> &str {
        "notebook"
    }

    fn run(&self, context: &PreprocessorContext, mut book: Book) -> Result<Book> {
        let folder = context.root.canonicalize()?;
        let root = folder
            .parent()
            .context("notebooks-md lies in the repository")?;
        let mut linked = Vec::new();
        let mut done = Ok(());
        book.for_each_chapter_mut(|chapter| {
            if done.is_ok() {
                done = rewrite(root, chapter, &mut linked);
            }
        });
        done?;
        book.items.insert(0, start(root, &mut linked)?.into());
        let mut pages = BTreeMap::new();
        while let Some(file) = linked.pop() {
            if pages.contains_key(&file) {
                continue;
            }
            let page =
                shown(root, &file, &mut linked).with_context(|| file.display().to_string())?;
            pages.insert(file, page);
        }
        let chapters = book.chapters().filter(|c| c.number.is_some()).count() as u32;
        book.push_item(index(chapters + 1, pages));
        Ok(book)
    }
}

/// A chapter of the book; the files that it links to join `linked`.
fn rewrite(root: &Path, chapter: &mut Chapter, linked: &mut Vec<PathBuf>) -> Result<()> {
    let source = chapter.source_path.as_ref();
    let file = Path::new("notebooks-md").join(source.context("a page has a file")?);
    let place = Place::of(&file);
    let made = page::page(root, &place, &chapter.content, linked);
    chapter.content = made.with_context(|| file.display().to_string())?;
    chapter.path = Some(place.address.with_extension("md"));
    Ok(())
}

/// The start page: what the README says first, how to begin, and a link to all of it.
fn start(root: &Path, linked: &mut Vec<PathBuf>) -> Result<Chapter> {
    let readme = chapter::read(&root.join("README.md"))?;
    let (before, rest) = readme.split_once(START).with_context(|| {
        let heading = START.trim();
        format!(
            "README.md has no heading {heading:?}: the start page of the site ends with its section"
        )
    })?;
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let text = format!("{before}{START}{section}\n[More in the README](README.md)\n");
    let place = Place {
        file: Path::new("README.md"),
        address: "index.html".into(),
    };
    let content = page::page(root, &place, &text, linked).context("README.md")?;
    let mut chapter = Chapter::new("Start", content, "index.md", Vec::new());
    chapter.source_path = None; // nothing that mdBook could look for
    Ok(chapter)
}

/// A file that a page links to: Markdown as it is read, others as they are.
fn shown(root: &Path, file: &Path, linked: &mut Vec<PathBuf>) -> Result<String> {
    let path = root.join(file);
    if path.is_dir() {
        return source::folder(&path, file);
    }
    let text = chapter::read(&path)?;
    if file.extension().is_some_and(|e| e == "md") {
        return page::page(root, &Place::of(file), &text, linked);
    }
    Ok(source::page(file, &text))
}

/// One entry in the table of contents, with all pages below it: by their numbers mdBook knows that they are.
fn index(number: u32, pages: BTreeMap<PathBuf, String>) -> BookItem {
    let mut content = format!("# {CODE}\n\nThe files that the chapters link to.\n\n");
    let mut index = Chapter::new(CODE, String::new(), "code.md", Vec::new());
    for (i, (file, text)) in (1..).zip(pages) {
        let name = file.display().to_string();
        let page = address(&file);
        content += &format!("- [{name}]({})\n", page.display());
        let mut chapter = Chapter::new(&name, text, page.with_extension("md"), vec![CODE.into()]);
        chapter.number = Some(SectionNumber::new([number, i]));
        chapter.source_path = None; // nothing that mdBook could look for
        index.sub_items.push(BookItem::Chapter(chapter));
    }
    index.content = content;
    index.number = Some(SectionNumber::new([number]));
    index.source_path = None;
    index.into()
}
