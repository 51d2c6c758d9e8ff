//! A dataset's folder in hf-hub's cache, in hf-hub's layout: `blobs/<SHA-256>` has the bytes of a file,
//! `snapshots/<commit>/<file>` links to them, and `refs/<revision>` names the commit. hf-hub and candle-datasets find
//! there what is kept here.
//!
//! Everything is made in `incoming` and moved into place when it is whole, the data first: at no time does a name
//! lead to half a file.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use sha2::{Digest, Sha256};

use super::REVISION;
use super::download::{Says, is_hex};
use crate::idx::hex;

/// Waits until no other process downloads what `name` says, and keeps others from it until the file is dropped.
pub(super) fn alone(cache: &Path, name: &str) -> Result<File> {
    let folder = cache.join(".locks");
    let path = folder.join(format!("{name}.lock"));
    let lock = || {
        fs::create_dir_all(&folder)?;
        let file = File::create(&path)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            // with stderr closed the line is lost, and the run goes on
            let _ = writeln!(
                io::stderr(),
                "another process is downloading {name}; waiting for its end"
            );
            file.lock()?;
        }
        Ok(file)
    };
    lock().map_err(|error: io::Error| anyhow!("cannot write {}: {error}", path.display()))
}

/// Makes an empty folder in a dataset's folder. The caller holds the lock of [`alone`], so it removes only
/// files that an ended process has left.
pub(super) fn incoming(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("incoming");
    let make = || match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(&path),
    };
    make().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Moves `data`, which is in `incoming` and is what the Hub says, to where hf-hub looks for `file`.
pub(super) fn keep(folder: &Path, data: &Path, file: &str, says: &Says) -> Result<()> {
    let blob = folder.join("blobs").join(&says.sum);
    let snapshots = folder.join("snapshots");
    let pointer = snapshots.join(&says.commit).join(file);
    let revision = folder.join("refs").join(REVISION);
    let (link, commit) = (data.with_extension("link"), data.with_extension("commit"));
    refer(&link, data, file, &says.sum)?;
    fs::write(&commit, &says.commit)?;
    for (from, to) in [(data, blob), (&link, pointer), (&commit, revision)] {
        fs::create_dir_all(to.parent().expect("it is in the cache"))?;
        fs::rename(from, &to).with_context(|| format!("cannot write {}", to.display()))?;
    }
    Ok(())
}

/// What will stand in a snapshot for `file`: a link to the data, from as many folders down.
#[cfg(unix)]
fn refer(link: &Path, _: &Path, file: &str, sum: &str) -> io::Result<()> {
    let up = "../".repeat(2 + file.matches('/').count());
    std::os::unix::fs::symlink(format!("{up}blobs/{sum}"), link)
}

/// What will stand in a snapshot for a file: a copy, because a system other than Unix may refuse links.
#[cfg(not(unix))]
fn refer(link: &Path, data: &Path, _: &str, _: &str) -> io::Result<()> {
    fs::copy(data, link).map(drop)
}

/// Whether a file of the cache is in the dataset's folder, and has the SHA-256 that its data has for a name. Where the
/// system has no links, there is no such name: it was compared when it came.
pub(super) fn check(folder: &Path, path: &Path) -> Result<()> {
    let shown = path.display();
    let data = fs::canonicalize(path)?;
    ensure!(
        data.starts_with(fs::canonicalize(folder)?),
        "{shown} links to {}, outside the cache: remove {shown}",
        data.display()
    );
    let sum = data.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if sum.len() != 64 || !is_hex(sum) {
        ensure!(
            cfg!(not(unix)),
            "{shown} links to {}, a file not named by its SHA-256: remove {shown}",
            data.display()
        );
        return Ok(());
    }
    let bytes = fs::read(&data)?;
    let (n, found) = (bytes.len(), hex(&Sha256::digest(&bytes)));
    ensure!(
        found == sum,
        "{shown} is damaged: {n} bytes with the SHA-256 {found}; expected {sum}"
    );
    Ok(())
}
