//! Files that appear whole or not at all, whatever ends the program.

use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// Writes the bytes of the file `path` to a file beside it, under another name, and waits until they are on
/// the disk. Returns that name, for [`take_place`].
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

/// Renames the file that [`beside`] wrote; on Unix it waits until the new name is on the disk.
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
