//! The folder of a run. One run at a time writes there: it locks the folder. Before each later write it compares the
//! locked folder with the one that has its name now. If they differ, the run ends. It knows no checkpoint: those are
//! in the module beside it.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::Result;
use devices::Context;

use crate::checkpoint_error::CheckpointError;
use crate::files;

/// The folder of a run: files in it appear whole or not at all.
///
/// ```
/// let place = tempfile::tempdir()?;
/// let folder = data_parallel_training::Folder::open(place.path())?;
/// folder.lock()?; // until `folder` is dropped
/// folder.write("notes.txt", b"lr 0.1")?;
/// assert_eq!(std::fs::read(place.path().join("notes.txt"))?, b"lr 0.1");
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The open file that is locked: the folder; on Windows, a file in it.
    file: OnceLock<File>,
}

impl Folder {
    /// Opens a folder that is there.
    ///
    /// # Errors
    /// If it is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::read_dir(path)?; // an error if it is no folder
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path).map(OnceLock::from).unwrap_or_default(),
        })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks the folder until this value is dropped, so that no second run writes to it. Where a folder cannot be
    /// locked, as on some network file systems, it does nothing.
    ///
    /// # Errors
    /// [`CheckpointError::InUse`].
    pub fn lock(&self) -> Result<()> {
        match self.try_lock() {
            Err(TryLockError::WouldBlock) => Err(CheckpointError::InUse(self.path.clone()).into()),
            _ => Ok(()),
        }
    }

    #[cfg(not(windows))]
    fn try_lock(&self) -> std::result::Result<(), TryLockError> {
        self.file.get().map_or(Ok(()), File::try_lock)
    }

    /// Windows locks no folder. So a run opens a file in it that no second run can open. Windows removes the file when the
    /// process ends, in whatever way. While it is open, the folder cannot be moved.
    #[cfg(windows)]
    fn try_lock(&self) -> std::result::Result<(), TryLockError> {
        use std::os::windows::fs::OpenOptionsExt;

        const FILE_FLAG_DELETE_ON_CLOSE: u32 = 0x0400_0000;
        const ERROR_SHARING_VIOLATION: i32 = 32;

        if self.file.get().is_some() {
            return Ok(());
        }
        let opened = File::options()
            .write(true)
            .create(true)
            .share_mode(0)
            .custom_flags(FILE_FLAG_DELETE_ON_CLOSE)
            .open(self.path.join(".lock"));
        match opened {
            Ok(file) => drop(self.file.set(file)),
            Err(error) if error.raw_os_error() == Some(ERROR_SHARING_VIOLATION) => {
                return Err(TryLockError::WouldBlock);
            }
            Err(error) => return Err(TryLockError::Error(error)),
        }
        Ok(())
    }

    /// An error if the name has no folder any more, or another one, in which nothing may be written.
    ///
    /// # Errors
    /// [`CheckpointError::Moved`].
    pub fn check(&self) -> Result<()> {
        let own = self.file.get().and_then(|file| file.metadata().ok());
        let is_there = match (own, fs::metadata(&self.path)) {
            (Some(own), Ok(found)) => is_same(&own, &found),
            (_, found) => !found.is_err_and(|error| error.kind() == ErrorKind::NotFound),
        };
        if is_there {
            Ok(())
        } else {
            Err(CheckpointError::Moved(self.path.clone()).into())
        }
    }

    /// Opens a file to be read.
    ///
    /// # Errors
    /// If it cannot be opened, or is no file: a symbolic link is none.
    pub fn read(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        if fs::symlink_metadata(&path)?.is_symlink() {
            return Err(io::Error::other("it is a symbolic link, not a file"));
        }
        files::open(&path)
    }

    /// Writes a file as a whole. The disk has it when this returns.
    ///
    /// # Errors
    /// If it cannot be written; a file that had the name stays.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        with_way_out(files::write(&path, bytes))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes a file as a whole, without waiting for the disk.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_unflushed(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        with_way_out(files::write_unflushed(&path, bytes))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file or an empty folder, if it is there.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        let is_dir = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        let removed = if is_dir {
            fs::remove_dir(&path)
        } else {
            if_there(fs::remove_file(&path))
        };
        with_way_out(removed).with_context(|| format!("cannot replace {}", path.display()))
    }

    /// Renames a file, if it is there.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let [from, to] = [from, to].map(|name| self.path.join(name));
        let renamed = if_there(files::rename(&from, &to));
        with_way_out(renamed)
            .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))
    }

    /// Removes what a run that was killed has left of files of these names that were not whole yet. What cannot be removed
    /// stays: it disturbs nothing.
    pub fn remove_partial(&self, names: &[&str]) {
        for found in self.names().unwrap_or_default() {
            if names.iter().any(|name| files::is_partial(&found, name)) {
                let _ = self.remove(&found);
            }
        }
    }

    /// The names of all files.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.path)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(entries
            .into_iter()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect())
    }
}

/// Where a folder cannot be written, such as another user's or an input that is read-only, the error says what to do.
pub(crate) fn with_way_out(written: io::Result<()>) -> io::Result<()> {
    written.map_err(|error| match error.kind() {
        kind @ (ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
            let way_out = "copy the folder to a place that can be written, and name the copy";
            let other = if cfg!(windows) {
                "close the program that has the file open, or "
            } else {
                ""
            };
            io::Error::new(kind, format!("{error}; {other}{way_out}"))
        }
        _ => error,
    })
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
    true // a folder with an open file cannot be moved
}
