//! The site that mdBook makes of the chapters: built here, and every page of it read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use notebook::book::Book;
use notebook::chapter::Kind;
use notebook::site;
use regex::Regex;

/// So many characters of a cell, or of what it printed, are beside each other in a window 1280 pixels wide:
/// `--content-max-width` of site.css leaves room for 107, and rustfmt stops at 100.
const COLUMNS: usize = 107;

/// What is broken in the site.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    site::build(&book.folder, folder.path())?;
    let files = Files::read(folder.path())?;
    let mut complaints = long_lines(book)?;
    let (code, mut formulas) = (Regex::new("(?s)<code.*?</code>")?, 0);
    for (page, html) in files.with("html") {
        complaints.extend(files.broken(page, html)?);
        formulas += html.matches("<math").count();
        let prose = code.replace_all(shown(html).unwrap_or(""), "");
        if let Some(line) = prose.lines().find(|line| line.contains('$')) {
            complaints.push(format!("{}: a formula is left in {line:?}", page.display()));
        }
    }
    let url = Regex::new(r#"url\(["']?([^"')]*)"#)?;
    for (sheet, css) in files.with("css") {
        let urls = url.captures_iter(css);
        complaints.extend(urls.filter_map(|url| files.missing(sheet, &url[1])));
    }
    if formulas == 0 {
        complaints.push("no page has a formula".into());
    }
    complaints.extend(start_page(&files)?);
    complaints.extend(differences(book, &files)?);
    complaints.extend(timelines(book, &files)?);
    if !files
        .texts
        .keys()
        .any(|file| file.to_string_lossy().contains("searchindex"))
    {
        complaints.push("the site has no search".into());
    }
    Ok(complaints)
}

/// What the start page does not have: what this is, how to begin, the way to the chapters; and no more sections.
fn start_page(files: &Files) -> Result<Vec<String>> {
    let index = files.shown("index.html").context("index.html")?;
    let has = [
        "no GPU",
        "git clone",
        "cargo run -p scratch -- --gpus 2",
        "cargo run -p concise -- --gpus 2",
        r#"href="chapters.html""#,
    ];
    let missing = has.into_iter().filter(|words| !index.contains(words));
    let mut complaints: Vec<String> = missing
        .map(|words| format!("index.html does not have {words:?}"))
        .collect();
    let sections = index.matches("<h2").count();
    if sections != 1 {
        complaints.push(format!("index.html has {sections} sections, not 1"));
    }
    Ok(complaints)
}

/// Pages with differences that the browser does not colour as such: `play` looks at the colours.
fn differences(book: &Book, files: &Files) -> Result<Vec<String>> {
    let (mut all, mut complaints) = (0, Vec::new());
    for page in book.chapters(None)? {
        let text = book.text(&page)?;
        let count = text
            .lines()
            .filter(|line| line.starts_with("```diff"))
            .count();
        let html = files.shown(&format!("{page}.html")).context(page.clone())?;
        let shown = html.matches(r#"<code class="language-diff"#).count();
        if shown != count {
            complaints.push(format!("{page}.html shows {shown} differences of {count}"));
        }
        all += count;
    }
    if all == 0 {
        complaints.push("no page has a difference".into());
    }
    Ok(complaints)
}

/// Timelines whose letters are smaller than 10 px on a phone, where `site.css` shows them with this width at least.
fn timelines(book: &Book, files: &Files) -> Result<Vec<String>> {
    let width = Regex::new(r#"alt\^="Timeline"\][^}]*min-width: (\d+)px"#)?;
    let sheets = files.with("css");
    let least = sheets.filter_map(|(_, css)| width.captures(css)?[1].parse::<f64>().ok());
    let least = least.fold(0.0, f64::max);
    let size = Regex::new(r#"^<svg[^>]* width="(\d+)"[^>]* font-size="(\d+)"[^>]*"Timeline of "#)?;
    let (mut all, mut complaints) = (0, Vec::new());
    for file in book.pictures()? {
        let svg = fs::read_to_string(book.folder.join(&file))?;
        let Some(found) = size.captures(&svg) else {
            continue;
        };
        all += 1;
        let (width, letters): (f64, f64) = (found[1].parse()?, found[2].parse()?);
        let shown = letters * least / width;
        if shown < 10.0 {
            complaints.push(format!("{file} has letters of {shown:.1} px on a phone"));
        }
    }
    if all == 0 {
        complaints.push("no picture is a timeline".into());
    }
    Ok(complaints)
}

/// What a page shows beside the contents.
fn shown(html: &str) -> Option<&str> {
    let rest = html.split("<main>").nth(1)?;
    rest.split("</main>").next()
}

/// Lines of cells and outputs that a reader would have to move.
fn long_lines(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for page in book.chapters(None)? {
        for piece in book.chapter(&page)?.pieces {
            for (line, text) in (piece.line + 1..).zip(piece.body.lines()) {
                // a picture's line is its description
                let is_shown = piece.kind != Kind::Text && !text.starts_with("![");
                if is_shown && text.chars().count() > COLUMNS {
                    let place = format!("{}:{line}", book.name(&page));
                    complaints.push(format!("{place} has more than {COLUMNS} characters"));
                }
            }
        }
    }
    Ok(complaints)
}

/// The files of the site, by their paths in it.
struct Files {
    texts: BTreeMap<PathBuf, String>,
    /// The ids in each page.
    ids: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Files {
    fn read(folder: &Path) -> Result<Self> {
        let id = Regex::new(r#"<[^>]* id="([^"]*)""#)?;
        let (mut texts, mut ids) = (BTreeMap::new(), BTreeMap::new());
        let mut folders = vec![folder.to_path_buf()];
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                let name = path.strip_prefix(folder).context("it is in the folder")?;
                if name.extension().is_some_and(|e| e == "html") {
                    let of_page = id.captures_iter(&text).map(|id| id[1].to_owned());
                    ids.insert(name.to_path_buf(), of_page.collect());
                }
                texts.insert(name.to_path_buf(), text);
            }
        }
        Ok(Self { texts, ids })
    }

    /// What a page shows beside the contents.
    fn shown(&self, page: &str) -> Option<&str> {
        shown(self.texts.get(Path::new(page))?)
    }

    fn with(&self, extension: &str) -> impl Iterator<Item = (&Path, &str)> {
        let all = self.texts.iter();
        let all = all.map(|(path, text)| (path.as_path(), text.as_str()));
        all.filter(move |(path, _)| path.extension().is_some_and(|e| e == extension))
    }

    /// Links, pictures, sheets and scripts of a page that are not there. It may link to other sites, and
    /// loads nothing from them.
    fn broken(&self, page: &Path, html: &str) -> Result<Vec<String>> {
        let script = Regex::new("(?s)(<script[^>]*>).*?</script>")?;
        let address = Regex::new(r#"<(\w+)[^>]* (?:href|src)="([^"]*)""#)?;
        let html = script.replace_all(html, "$1");
        let addresses = address.captures_iter(&html).filter_map(|found| {
            let to = found[2].replace("&amp;", "&");
            let is_elsewhere = &found[1] == "a" && to.contains("://");
            (!is_elsewhere).then_some(to)
        });
        let broken = addresses.filter_map(|to| self.missing(page, &to));
        Ok(broken.collect())
    }

    fn missing(&self, from: &Path, url: &str) -> Option<String> {
        if url.starts_with("data:") || url.starts_with("javascript:") {
            return None;
        }
        let (path, id) = url.split_once('#').unwrap_or((url, ""));
        let mut file = from.parent().unwrap_or(from).to_path_buf();
        match path {
            "" => file = from.to_path_buf(),
            "/" => return None, // of 404.html, which may be shown anywhere
            _ => Path::new(path).components().for_each(|part| match part {
                Component::ParentDir => _ = file.pop(),
                part => file.push(part),
            }),
        }
        let found = match self.ids.get(&file) {
            Some(ids) => id.is_empty() || ids.contains(id),
            None => self.texts.contains_key(&file),
        };
        (!found).then(|| format!("{}: there is no {url}", from.display()))
    }
}
