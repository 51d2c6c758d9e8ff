//! The reader's copies of the exercises, and which of them are solved.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::exercise::{ALL, Exercise};

/// The folder with the reader's copies.
///
/// `solved.txt` in it has a line for each solved exercise: its name, and the checksum of the file that was right. So an
/// exercise whose file was changed afterwards counts as not solved.
#[derive(Debug)]
pub struct Desk {
    folder: PathBuf,
}

impl Desk {
    /// The folder `lab` of the repository, which is made when something is written there.
    pub fn open() -> Self {
        Self::in_folder(repository().join("lab"))
    }

    /// Copies in another folder.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The reader's copy of an exercise. The first call makes it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn copy(&self, exercise: &Exercise) -> Result<PathBuf> {
        let path = self.path(exercise);
        if !path.exists() {
            let made =
                fs::create_dir_all(&self.folder).and_then(|()| fs::write(&path, exercise.gap));
            made.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(path)
    }

    /// True if the reader has a copy of an exercise.
    pub fn has(&self, exercise: &Exercise) -> bool {
        self.path(exercise).exists()
    }

    /// Begins an exercise anew. A copy that was changed is kept beside the new one, as `NAME.rs.old` or `NAME.rs.old2`;
    /// returns its path.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn reset(&self, exercise: &Exercise) -> Result<Option<PathBuf>> {
        let path = self.copy(exercise)?;
        if read(&path)? == exercise.gap.as_bytes() {
            return Ok(None);
        }
        let mut old = path.with_extension("rs.old");
        let mut number = 1;
        while old.exists() {
            number += 1;
            old = path.with_extension(format!("rs.old{number}"));
        }
        let renamed = fs::rename(&path, &old);
        renamed
            .with_context(|| format!("cannot rename {} to {}", path.display(), old.display()))?;
        self.copy(exercise)?;
        Ok(Some(old))
    }

    /// The first exercise that is not solved.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn next(&self) -> Result<Option<&'static Exercise>> {
        self.after(&ALL[ALL.len() - 1])
    }

    /// The next exercise after this one that is not solved; at the end, the first.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn after(&self, exercise: &Exercise) -> Result<Option<&'static Exercise>> {
        let place = ALL.iter().position(|other| other.name == exercise.name);
        let (before, after) = ALL.split_at(place.context("an exercise of another lab")? + 1);
        for next in after.iter().chain(before) {
            if !self.is_solved(next)? {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    /// True if the reader's copy was found right, and is still the same.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn is_solved(&self, exercise: &Exercise) -> Result<bool> {
        if !self.has(exercise) {
            return Ok(false);
        }
        let line = line(exercise, &read(&self.path(exercise))?);
        Ok(self.solved()?.lines().any(|solved| solved == line))
    }

    /// Notes that this answer is right.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn solve(&self, exercise: &Exercise, answer: &[u8]) -> Result<()> {
        let solved = self.solved()?;
        let line = line(exercise, answer);
        let mut lines: Vec<&str> = solved.lines().collect();
        lines.retain(|line| !line.starts_with(exercise.name));
        lines.push(&line);
        let path = self.folder.join(SOLVED);
        // beside it first: on a full disk the lines of the others would be lost
        let new = path.with_extension("new");
        let written = fs::write(&new, lines.join("\n")).and_then(|()| fs::rename(&new, &path));
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    fn path(&self, exercise: &Exercise) -> PathBuf {
        self.folder.join(exercise.name).with_extension("rs")
    }

    fn solved(&self) -> Result<String> {
        let path = self.folder.join(SOLVED);
        if !path.exists() {
            return Ok(String::new());
        }
        // a line that was damaged is of no exercise
        Ok(String::from_utf8_lossy(&read(&path)?).into_owned())
    }
}

/// The folder of the repository. It is not made canonical, because on Windows such a path begins with `\\?\`.
pub fn repository() -> &'static Path {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.ancestors().nth(2).unwrap_or(folder)
}

const SOLVED: &str = "solved.txt";

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Line of `solved.txt` for an answer that is right.
fn line(exercise: &Exercise, answer: &[u8]) -> String {
    format!("{} {:08x}", exercise.name, crc32fast::hash(answer))
}
