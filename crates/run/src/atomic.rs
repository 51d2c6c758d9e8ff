//! Atomic writes: a file appears whole or not at all, whatever ends the program.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// Writes a file, and waits until it is on the disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    Partial::write(path, bytes)?.persist()
}

/// A file that is on the disk under another name, and goes away with this value unless it gets its own.
pub(crate) struct Partial {
    path: PathBuf,
    partial: PathBuf,
}

impl Partial {
    pub fn write(path: &Path, bytes: &[u8]) -> Result<Self> {
        let this = Self {
            path: path.to_owned(),
            partial: partial(path),
        };
        let mut file = File::create(&this.partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(this)
    }

    /// Gives the file its name; on Unix it waits until the name is on the disk.
    pub fn persist(self) -> Result<()> {
        fs::rename(&self.partial, &self.path)?;
        // elsewhere a folder cannot be opened
        if cfg!(unix) {
            let folder = self.path.parent().filter(|f| !f.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.partial);
    }
}

/// The name of a file until it is whole.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}
