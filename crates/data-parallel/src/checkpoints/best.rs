//! Reads the parameters of the best epoch.

use std::path::Path;

use candle_core::Result;
use devices::{Context, ensure};
use training::{files, weights};

use super::another_run::{BEST, NEXT_BEST};

/// The file's bytes, which have this checksum.
///
/// # Errors
/// If the file cannot be read, or has another checksum.
pub(super) fn read(folder: &Path, crc32: Option<u32>) -> Result<Vec<u8>> {
    let is_known = |bytes: &Vec<u8>| crc32 == Some(crc32fast::hash(bytes));
    let next = std::fs::read(folder.join(NEXT_BEST));
    if let Some(bytes) = next.ok().filter(is_known) {
        return Ok(bytes); // it could not get its name yet
    }
    let best = folder.join(BEST);
    let cannot = || format!("cannot read parameters from {}", best.display());
    let file = files::open(&best).with_context(cannot)?;
    let bytes = weights::read(file).with_context(cannot)?;
    ensure!(
        is_known(&bytes),
        "{}: the parameters are not those that this run wrote; the file was changed, or is damaged",
        best.display()
    );
    Ok(bytes)
}
