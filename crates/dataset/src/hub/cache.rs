//! A dataset's folder in hf-hub's cache, in hf-hub's layout: `blobs/<SHA-256>` has the bytes of a file,
//! `snapshots/<commit>/<file>` links to them, and `refs/<revision>` names the commit. hf-hub and candle-datasets find
//! there what is kept here.
//!
//! Everything is made in a folder of its own and moved into place when it is whole, the data first: at no time does a name
//! lead to half a file. On a network disk, processes may not see each other's locks. Then each downloads the file,
//! and the last one stays.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::download::{LARGEST, Says, is_hash};
use super::watched::watched;
use crate::idx::hex;
use crate::options::{Name, StopFlag};
use crate::say::say;
use training::files::{age, make_folder, random_name, rename};

/// The branch on which the Hub keeps every dataset as parquet; candle-datasets reads it, so its cache is shared.
pub(super) const REVISION: &str = "refs/convert/parquet";
/// The folders of downloads that are not whole begin so.
const INCOMING: &str = "incoming";

/// A dataset's folder in the cache.
pub(super) struct Cache {
    folder: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub(super) fn of(cache: &Path, repo: &str) -> Self {
        let name = format!("datasets--{}", repo.replace('/', "--"));
        Cache {
            folder: cache.join(name),
            locks: cache.join(".locks"),
        }
    }

    /// Path of a file, if it is there. A text that is no commit's hash could lead out of the folder, as `..` does.
    pub(super) fn find(&self, file: &str) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.folder.join("refs").join(REVISION)).ok()?;
        let commit = Some(commit.trim()).filter(|commit| is_hash(commit, 40))?;
        let path = self.folder.join("snapshots").join(commit).join(file);
        path.exists().then_some(path)
    }

    /// Waits until no other process downloads `name`, and keeps others from it until the file is dropped.
    pub(super) fn lock(&self, name: Name, stop: &StopFlag) -> Result<File> {
        let path = self.locks.join(format!("{name}.lock"));
        let cannot_write = || format!("cannot write {}", path.display());
        make_folder(&self.locks).with_context(cannot_write)?;
        // another user's can be locked too
        let file = File::create(&path)
            .or_else(|_| File::open(&path))
            .with_context(cannot_write)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let waits = format!("another process is downloading {name}; waiting for its end");
            say(&waits);
            let waits = file.try_clone().with_context(cannot_write)?;
            watched("the lock", Duration::MAX, stop, move || waits.lock())?
                .with_context(cannot_write)?;
        }
        Ok(file)
    }

    /// Makes a folder that no other process has. Those that ended processes have left are removed, after a day: a file of
    /// these datasets takes less.
    pub(super) fn incoming(&self) -> Result<PathBuf> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let is_incoming = entry.file_name().to_string_lossy().starts_with(INCOMING);
            if is_incoming && age(&entry.path()).is_some_and(|age| age > DAY) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let name = format!("{INCOMING}-{}", random_name());
        let path = self.folder.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Moves `data`, which is in an [`incoming`](Self::incoming) folder and is what the Hub says, to where hf-hub looks for `file`.
    pub(super) fn keep(&self, data: &Path, file: &str, says: &Says) -> Result<()> {
        let blob = self.folder.join("blobs").join(&says.sum);
        let snapshots = self.folder.join("snapshots");
        let pointer = snapshots.join(&says.commit).join(file);
        let revision = self.folder.join("refs").join(REVISION);
        let link = data.with_extension("link");
        let commit = data.with_extension("commit");
        refer(&link, data, file, &says.sum)?;
        fs::write(&commit, &says.commit)?;
        for (from, to) in [(data, blob), (&link, pointer), (&commit, revision)] {
            fs::create_dir_all(to.parent().expect("it is in the cache"))?;
            rename(from, &to).with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }

    /// Checks that a file is in the folder, and has the SHA-256 that its data has for a name. Where the file system has
    /// no links, the file is a copy of such data. If another program made the cache, the data may not be there: then
    /// nothing says what the file should be.
    pub(super) fn check(&self, file: &str) -> Result<()> {
        let path = self
            .find(file)
            .with_context(|| format!("{file} is missing from the cache"))?;
        let shown = path.display();
        let data = fs::canonicalize(&path)?;
        ensure!(
            data.starts_with(fs::canonicalize(&self.folder)?),
            "{shown} links to {}, outside the cache: remove {shown}",
            data.display()
        );
        let len = fs::metadata(&data)?.len();
        ensure!(
            len <= LARGEST,
            "{shown} is damaged: {len} bytes; expected at most {LARGEST}"
        );
        let name = data.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let expected = if is_hash(name, 64) {
            vec![name.to_owned()]
        } else {
            ensure!(
                !path.is_symlink(),
                "{shown} links to {}, a file not named by its SHA-256: remove {shown}",
                data.display()
            );
            self.sums()
        };
        let bytes = fs::read(&data)?;
        let n = bytes.len();
        let found = hex(&Sha256::digest(&bytes));
        ensure!(
            expected.is_empty() || expected.contains(&found),
            "{shown} is damaged: {n} bytes with the SHA-256 {found}; expected {}",
            expected.join(" or ")
        );
        Ok(())
    }

    /// The SHA-256 of all data in the folder.
    fn sums(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("blobs"));
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let names = entries.into_iter().flatten().filter_map(name);
        names.filter(|name| is_hash(name, 64)).collect()
    }
}

/// Makes the entry of a snapshot for `file`: a link to the data, from as many folders down.
#[cfg(unix)]
fn refer(link: &Path, data: &Path, file: &str, sum: &str) -> io::Result<()> {
    let up = "../".repeat(2 + file.matches('/').count());
    std::os::unix::fs::symlink(format!("{up}blobs/{sum}"), link)
        .or_else(|_| fs::copy(data, link).map(drop)) // a file system without links
}

/// Makes the entry of a snapshot for a file: a copy, because a system other than Unix may refuse links.
#[cfg(not(unix))]
fn refer(link: &Path, data: &Path, _: &str, _: &str) -> io::Result<()> {
    fs::copy(data, link).map(drop)
}
