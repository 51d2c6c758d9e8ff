//! Files that appear whole or not at all, whatever ends the program.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// Writes what is to be the file `path` beside it, under a name that nobody takes for it, and waits until the disk
/// has it. Returns that name, for [`take_place`].
pub(crate) fn beside(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let partial = partial(path);
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    match write() {
        Ok(()) => Ok(partial),
        Err(error) => {
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

/// Gives a file that was written beside its name, which the disk has then as well.
pub(crate) fn take_place(partial: &Path, path: &Path) -> Result<()> {
    let renamed = fs::rename(partial, path);
    if renamed.is_err() {
        let _ = fs::remove_file(partial);
    }
    renamed?;
    match path.parent() {
        // elsewhere a folder cannot be opened
        Some(folder) if cfg!(unix) => File::open(folder_or_here(folder))?.sync_all(),
        _ => Ok(()),
    }
}

/// The name under which [`beside`] writes.
pub(crate) fn partial(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

fn folder_or_here(folder: &Path) -> &Path {
    match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    }
}
