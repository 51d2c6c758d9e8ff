//! The folder of a run. One run at a time writes there, and only as long as the folder keeps its name.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use training::files;

#[derive(Debug)]
pub(crate) struct Folder {
    pub path: PathBuf,
    /// The folder as an open file, which can be locked. Some systems cannot open a folder.
    file: Option<File>,
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::read_dir(path)?; // an error if it is no folder
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path).ok(),
        })
    }

    /// Locks the folder until this value is dropped, so that no second run writes to it. Where a folder cannot be
    /// locked, it does nothing.
    pub fn lock(&self) -> Result<()> {
        match self.file.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => bail!(
                "another run is writing to {}; name another folder, or wait for its end",
                self.path.display()
            ),
            _ => Ok(()),
        }
    }

    /// An error if the name has no folder any more, or another one, in which nothing may be written.
    pub fn check(&self) -> Result<()> {
        let own = self.file.as_ref().and_then(|file| file.metadata().ok());
        let is_there = match (own, fs::metadata(&self.path)) {
            (Some(own), Ok(found)) => is_same(&own, &found),
            (_, found) => !found.is_err_and(|error| error.kind() == ErrorKind::NotFound),
        };
        ensure!(
            is_there,
            "the folder {} was moved, removed or replaced during the run; nothing more was \
             written. If you moved it, continue with --resume and its new name",
            self.path.display()
        );
        Ok(())
    }

    /// Opens a file to be read.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        match fs::symlink_metadata(&path)?.is_symlink() {
            true => Err(io::Error::other("it is a symbolic link, not a file")),
            false => files::open(&path),
        }
    }

    /// Writes a file as a whole. The disk has it when this returns.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        files::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes a file as a whole, without waiting for the disk.
    pub fn draw(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        let partial = path.with_file_name(format!(".{name}.partial"));
        let drawn = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
        drawn
            .inspect_err(|_| drop(fs::remove_file(&partial)))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file or an empty folder, if it is there.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        let is_dir = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        let removed = match is_dir {
            true => fs::remove_dir(&path),
            false => if_there(fs::remove_file(&path)),
        };
        removed.with_context(|| format!("cannot replace {}", path.display()))
    }

    /// Renames a file, if it is there.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let [from, to] = [from, to].map(|name| self.path.join(name));
        let renamed = if_there(fs::rename(&from, &to));
        renamed.with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))
    }
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true // an open folder cannot be moved
}
