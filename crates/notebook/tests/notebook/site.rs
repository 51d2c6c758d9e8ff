//! The site that mdBook makes of the chapters: built here, and every page of it read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use mdbook_driver::MDBook;
use notebook::book::Book;
use notebook::chapter::Kind;
use notebook::site::Site;

/// So many characters of a cell, or of what it printed, are beside each other in a window 1280 pixels wide:
/// `--content-max-width` of site.css leaves room for 107, and rustfmt stops at 100.
const COLUMNS: usize = 107;

/// What is broken in the site.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let mut site = MDBook::load(&book.folder)?;
    site.config.build.build_dir = folder.path().to_path_buf();
    site.with_preprocessor(Site);
    site.build()?;
    let files = Files::read(folder.path())?;
    let mut complaints = long_lines(book)?;
    for (page, html) in files.with("html") {
        complaints.extend(files.broken(page, html));
        complaints.extend(formulas(html).map(|text| format!("{}: {text}", page.display())));
    }
    for (sheet, css) in files.with("css") {
        let urls = css.split("url(").skip(1);
        let urls = urls.map(|rest| {
            rest.split(')')
                .next()
                .unwrap_or("")
                .trim_matches(['"', '\''])
        });
        complaints.extend(urls.filter_map(|url| files.missing(sheet, url)));
    }
    let formulas = files.with("html").any(|(_, html)| html.contains("<math"));
    if !formulas {
        complaints.push("no page has a formula".into());
    }
    Ok(complaints)
}

/// Lines of cells and outputs that a reader would have to move.
fn long_lines(book: &Book) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for page in book.chapters(None)? {
        for piece in book.chapter(&page)?.pieces {
            let lines = (piece.line + 1..).zip(piece.body.lines());
            // a picture's line is its description
            let shown =
                lines.filter(|(_, line)| piece.kind != Kind::Text && !line.starts_with("!["));
            let long = shown.filter(|(_, line)| line.chars().count() > COLUMNS);
            complaints.extend(long.map(|(line, _)| {
                format!(
                    "{}:{line} has more than {COLUMNS} characters",
                    book.name(&page)
                )
            }));
        }
    }
    Ok(complaints)
}

/// What is left of LaTeX, outside code.
fn formulas(html: &str) -> impl Iterator<Item = String> {
    let prose = html
        .split("<main>")
        .nth(1)
        .and_then(|rest| rest.split("</main>").next());
    let parts = prose.unwrap_or("").split("<code");
    let rest = parts.map(|part| part.rsplit("</code>").next().unwrap_or(part).to_owned());
    let left = rest.filter(|text| text.contains('$'));
    left.map(|text| {
        format!(
            "a formula is left in {:?}",
            text.chars().take(200).collect::<String>()
        )
    })
}

/// The files of the site, by their paths in it.
struct Files {
    texts: BTreeMap<PathBuf, String>,
    /// The ids in each page.
    ids: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl Files {
    fn read(folder: &Path) -> Result<Self> {
        let (mut texts, mut folders) = (BTreeMap::new(), vec![folder.to_path_buf()]);
        while let Some(next) = folders.pop() {
            for entry in fs::read_dir(next)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                let name = path.strip_prefix(folder).context("it is in the folder")?;
                texts.insert(name.to_path_buf(), text);
            }
        }
        let ids = |text: &String| tags(text).flat_map(|tag| attribute(tag, "id")).collect();
        let pages = texts
            .iter()
            .filter(|(path, _)| path.extension().is_some_and(|e| e == "html"));
        let ids = pages
            .map(|(path, text)| (path.clone(), ids(text)))
            .collect();
        Ok(Self { texts, ids })
    }

    fn with(&self, extension: &str) -> impl Iterator<Item = (&Path, &str)> {
        let files = self
            .texts
            .iter()
            .map(|(path, text)| (path.as_path(), text.as_str()));
        files.filter(move |(path, _)| path.extension().is_some_and(|e| e == extension))
    }

    /// Links, pictures, sheets and scripts of a page that are not there. It may link to other sites, and
    /// loads nothing from them.
    fn broken(&self, page: &Path, html: &str) -> Vec<String> {
        let mut broken = Vec::new();
        for tag in tags(html) {
            let link =
                attribute(tag, "href").filter(|to| !(tag.starts_with("a ") && to.contains("://")));
            broken.extend(link.and_then(|to| self.missing(page, &to)));
            broken.extend(attribute(tag, "src").and_then(|from| self.missing(page, &from)));
        }
        broken
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

/// What stands between `<` and `>`, but not in scripts.
fn tags(html: &str) -> impl Iterator<Item = &str> {
    let mut in_script = false;
    let tags = html.split('<').skip(1).filter(move |tag| {
        let was_in_script = in_script;
        in_script = match in_script {
            true => !tag.starts_with("/script"),
            false => tag.starts_with("script"),
        };
        !was_in_script
    });
    tags.filter_map(|tag| tag.split('>').next())
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let value = tag.split_once(&format!(" {name}=\""))?.1;
    Some(value.split('"').next()?.replace("&amp;", "&"))
}
