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
    /// The folder `lab` of the repository.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open() -> Result<Self> {
        Self::in_folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab"))
    }

    /// Copies in another folder.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn in_folder(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("{folder:?}"))?;
        let folder = folder.canonicalize()?;
        Ok(Self { folder })
    }

    /// The reader's copy of an exercise. The first call makes it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn copy(&self, exercise: &Exercise) -> Result<PathBuf> {
        let path = self.folder.join(exercise.name).with_extension("rs");
        if !path.exists() {
            fs::write(&path, exercise.gap).with_context(|| format!("{path:?}"))?;
        }
        Ok(path)
    }

    /// Whether the reader has a copy of an exercise.
    pub fn has(&self, exercise: &Exercise) -> bool {
        self.folder
            .join(exercise.name)
            .with_extension("rs")
            .exists()
    }

    /// Begins an exercise anew. A copy that was changed stays beside the new one, as `NAME.rs.old`.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn reset(&self, exercise: &Exercise) -> Result<PathBuf> {
        let path = self.copy(exercise)?;
        if fs::read_to_string(&path)? != exercise.gap {
            fs::rename(&path, path.with_extension("rs.old"))?;
        }
        self.copy(exercise)
    }

    /// The first exercise that is not solved.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn next(&self) -> Result<Option<&'static Exercise>> {
        for exercise in ALL {
            if !self.is_solved(exercise)? {
                return Ok(Some(exercise));
            }
        }
        Ok(None)
    }

    /// Whether the reader's copy was found right, and is still the same.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn is_solved(&self, exercise: &Exercise) -> Result<bool> {
        let line = self.line(exercise)?;
        Ok(self.solved()?.lines().any(|solved| solved == line))
    }

    /// Notes that the reader's copy is right.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn solve(&self, exercise: &Exercise) -> Result<()> {
        let others = self.solved()?;
        let others = others
            .lines()
            .filter(|line| !line.starts_with(exercise.name));
        let line = self.line(exercise)?;
        let lines: Vec<&str> = others.chain([line.as_str()]).collect();
        Ok(fs::write(self.folder.join("solved.txt"), lines.join("\n"))?)
    }

    /// What `solved.txt` says of a copy that is right.
    fn line(&self, exercise: &Exercise) -> Result<String> {
        let path = self.folder.join(exercise.name).with_extension("rs");
        let answer = if path.exists() {
            fs::read(&path)?
        } else {
            Vec::new()
        };
        Ok(format!(
            "{} {:08x}",
            exercise.name,
            crc32fast::hash(&answer)
        ))
    }

    fn solved(&self) -> Result<String> {
        let path = self.folder.join("solved.txt");
        Ok(if path.exists() {
            fs::read_to_string(path)?
        } else {
            String::new()
        })
    }
}
