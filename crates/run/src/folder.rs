//! The folder of a run, held open: what is read and written belongs to this folder, also after it was moved, and
//! never to another one that has got its name.

use std::fs::TryLockError;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata, OpenOptions};

#[derive(Debug)]
pub(crate) struct Folder {
    pub dir: Dir,
    /// Where the folder was when it was opened, for messages.
    pub path: PathBuf,
    /// The folder as a file, which can be locked and flushed; some systems have none.
    file: Option<std::fs::File>,
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = Dir::open_ambient_dir(path, ambient_authority())?;
        Ok(Self {
            file: dir.open(".").ok().map(File::into_std),
            dir,
            path: path.to_owned(),
        })
    }

    /// Locks the folder until this value is dropped, so that no second run writes to it. Where a folder cannot be
    /// locked, it does nothing.
    pub fn lock(&self) -> Result<()> {
        match self.file.as_ref().map(std::fs::File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) => bail!(
                "another run is writing to {}; name another folder, or wait for its end",
                self.path.display()
            ),
            _ => Ok(()),
        }
    }

    pub fn cannot_write(&self, name: &str) -> String {
        format!("cannot write {}", self.path.join(name).display())
    }

    /// Opens a file to be read.
    pub fn read(&self, name: &str) -> io::Result<std::fs::File> {
        check_is_file(&self.dir.metadata(name)?)?;
        Ok(self.dir.open(name)?.into_std())
    }

    /// Opens a file to which lines are added.
    pub fn append(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        self.dir.open_with(name, options.append(true).create(true))
    }

    /// Removes a file, if it is there.
    pub fn remove(&self, name: &str) -> Result<()> {
        let removed = if_there(self.dir.remove_file(name));
        removed.with_context(|| format!("cannot replace {}", self.path.join(name).display()))
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.dir.rename(from, &self.dir, to)
    }

    /// Writes a file: it appears whole or not at all, whatever ends the program. The disk has it then.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.put(name, None, bytes, true)
    }

    /// As [`write`](Self::write); the file that had the name gets the name `previous`.
    pub fn write_keeping(&self, name: &str, previous: &str, bytes: &[u8]) -> io::Result<()> {
        self.put(name, Some(previous), bytes, true)
    }

    /// As [`write`](Self::write), without waiting for the disk.
    pub fn draw(&self, name: &str, picture: &str) -> io::Result<()> {
        self.put(name, None, picture.as_bytes(), false)
    }

    fn put(&self, name: &str, keep: Option<&str>, bytes: &[u8], waits: bool) -> io::Result<()> {
        let partial = partial(name);
        let write = || {
            let mut file = self.dir.create(&partial)?;
            file.write_all(bytes)?;
            if waits {
                file.sync_all()?;
            }
            keep.map_or(Ok(()), |keep| if_there(self.rename(name, keep)))?;
            self.rename(&partial, name)?;
            match &self.file {
                Some(folder) if waits && cfg!(unix) => folder.sync_all(),
                _ => Ok(()),
            }
        };
        write().inspect_err(|_| drop(self.dir.remove_file(&partial)))
    }
}

/// The name of a file until it is whole.
pub(crate) fn partial(name: &str) -> String {
    format!(".{name}.partial")
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// An error that says what is there, if it is no file: opening a FIFO would wait, and a device has no end.
pub(crate) fn check_path_is_file(path: &Path) -> io::Result<()> {
    check_is_file(&Metadata::from_just_metadata(std::fs::metadata(path)?))
}

fn check_is_file(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    #[cfg(unix)]
    let is_fifo = cap_std::fs::FileTypeExt::is_fifo(&kind);
    #[cfg(not(unix))]
    let is_fifo = false;
    let what = match is_fifo {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a folder",
        true => "a FIFO",
        false => "a device or a socket",
    };
    Err(io::Error::other(format!("it is {what}, not a file")))
}
