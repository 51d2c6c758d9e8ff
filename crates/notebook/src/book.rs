//! The folder of the chapters.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::chapter::{self, Chapter, Kind};

/// Folders of the chapters and of the files that they list, and the program that runs the chapters.
#[derive(Debug, Clone)]
pub struct Book {
    /// Folder in which the files of listings are looked for: the root of the repository.
    pub root: PathBuf,
    /// The folder of the pages, and of `img/`.
    pub folder: PathBuf,
    /// The binary of this crate, with the chapters' cells in it.
    pub program: PathBuf,
}

impl Book {
    /// `notebooks-md`, with the cells of `program`.
    ///
    /// # Errors
    /// If the repository is not where it was when this was built.
    pub fn of_this_repository(program: impl Into<PathBuf>) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
            .context("the repository")?;
        Ok(Self {
            folder: root.join("notebooks-md"),
            root,
            program: program.into(),
        })
    }

    /// The names of the chapters, or the given one.
    ///
    /// # Errors
    /// If there is no such chapter, or the folder cannot be read.
    pub fn chapters(&self, only: Option<&str>) -> Result<Vec<String>> {
        let all = chapter::pages(&self.folder)?;
        match only {
            None => Ok(all),
            Some(name) if all.iter().any(|c| c == name) => Ok(vec![name.to_owned()]),
            Some(name) => bail!("no chapter {name:?}, there are: {}", all.join(", ")),
        }
    }

    /// All pages: the chapters, the first page, the table of contents, and the documents of the repository's root.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn pages(&self) -> Result<Vec<String>> {
        let mut pages = chapter::pages(&self.folder)?;
        let others = "README SUMMARY ../README ../ARCHITECTURE ../CONTRIBUTING".split(' ');
        pages.extend(others.map(str::to_owned));
        pages.retain(|page| self.path(page).exists());
        Ok(pages)
    }

    /// The file of a page.
    pub fn path(&self, page: &str) -> PathBuf {
        self.folder.join(format!("{page}.md"))
    }

    /// The folder that a page's links start from.
    pub fn folder_of(&self, page: &str) -> PathBuf {
        self.path(page).with_file_name("")
    }

    /// The text of a page.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn text(&self, page: &str) -> Result<String> {
        chapter::read(&self.path(page))
    }

    /// A page in pieces.
    ///
    /// # Errors
    /// If it cannot be read, or is no chapter.
    pub fn chapter(&self, page: &str) -> Result<Chapter> {
        Chapter::parse(&self.text(page)?).with_context(|| self.name(page))
    }

    /// Output of programs on the real data, by their commands: the recorded blocks of all chapters.
    ///
    /// # Errors
    /// If a chapter cannot be read.
    pub fn recorded(&self) -> Result<BTreeMap<String, String>> {
        let mut recorded = BTreeMap::new();
        for page in self.chapters(None)? {
            for piece in self.chapter(&page)?.pieces {
                if let Kind::Recorded(command) = piece.kind {
                    recorded.insert(command, piece.body);
                }
            }
        }
        Ok(recorded)
    }

    /// Name of a page in messages.
    pub fn name(&self, page: &str) -> String {
        let folder = self.folder.file_name().unwrap_or_default();
        match page.strip_prefix("../") {
            Some(page) => format!("{page}.md"),
            None => format!("{}/{page}.md", folder.display()),
        }
    }

    /// The pictures in `img/`, relative to the folder: `img/splitting.svg`.
    ///
    /// # Errors
    /// If the folder is there and cannot be read.
    pub fn pictures(&self) -> Result<Vec<String>> {
        let folder = self.folder.join("img");
        let mut pictures = Vec::new();
        if folder.exists() {
            for entry in fs::read_dir(&folder)? {
                pictures.push(format!("img/{}", entry?.file_name().display()));
            }
        }
        Ok(pictures)
    }

    /// Writes a file of the folder, where it is another now; whether it was.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<bool> {
        let path = self.folder.join(file);
        if chapter::read(&path).is_ok_and(|old| old == text) {
            return Ok(false);
        }
        fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(true)
    }
}
