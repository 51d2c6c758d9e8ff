//! The folder of a run: taken for a run that begins or goes on, and the file of its best parameters. It knows no trainer.

use std::path::Path;

use candle_core::Result;
use devices::{Context, find, io_kind, wrap};
use training::files::make_folder;
use training::{Checkpoint, CheckpointError, CheckpointFolder, Folder};

use super::another_run::{BEST, NEXT_BEST};
use super::content;

/// Treatment of a run that is in the folder already.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Start {
    /// It goes on.
    GoOn,
    /// It is an error.
    New,
    /// It gives way to this one.
    Replace,
}

/// Opens and locks the folder, and reads the newest checkpoint if the run goes on, and what is to be said of it.
pub(super) fn take(
    path: &Path,
    start: Start,
) -> Result<(CheckpointFolder, Option<(usize, Checkpoint)>)> {
    let made = make_folder(path).and_then(|()| CheckpointFolder::open(path));
    let mut folder = made.with_context(|| format!("cannot make the folder {}", path.display()))?;
    folder.folder().lock()?;
    if start != Start::GoOn {
        if start == Start::New && folder.is_begun()? {
            let text = format!("{} already holds a run", path.display());
            return Err(wrap(CheckpointError::OtherRun(text)));
        }
        return Ok((folder, None));
    }
    folder.folder().remove_partial(&[BEST, NEXT_BEST]);
    let Some(found) = folder.newest()? else {
        let best = path.join(BEST);
        if best.exists() {
            return Err(wrap(CheckpointError::NoneIsWhole(format!(
                "{} is there and no checkpoint of its run: move it, or open another folder",
                best.display()
            ))));
        }
        return Ok((folder, None));
    };
    let mut checkpoint = found.checkpoint;
    if let Some(why) = found.damaged {
        let note = format!(
            "{why}; an older checkpoint is taken, after minibatch {}",
            found.step
        );
        checkpoint.texts.insert(content::NOTE.to_owned(), note);
    }
    Ok((folder, Some((found.step, checkpoint))))
}

/// Ends what a run that was killed has begun: gives the parameters of the best epoch their name, if the checkpoint knows
/// them. Others are of an epoch that comes again.
pub(super) fn name_best(folder: &Folder, known: Option<u32>) -> Result<()> {
    match std::fs::read(folder.path().join(NEXT_BEST)) {
        Ok(bytes) if Some(crc32fast::hash(&bytes)) == known => folder.rename(NEXT_BEST, BEST),
        _ => Ok(()),
    }
}

/// True if a file could not be written, and the run has its folder all the same.
pub(super) fn is_of_the_disk(error: &candle_core::Error) -> bool {
    io_kind(error).is_some() && find::<CheckpointError>(error).is_none()
}
