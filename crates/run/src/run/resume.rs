//! What a run goes on from.

use std::path::Path;

use anyhow::Result;
use training::CheckpointFolder;

use crate::lines::Sizes;
use crate::saved_run::{SavedRun, folder_of_a_run};
use crate::say::{is_quiet, say, warn};

/// The checkpoint that a run goes on from, and its folder.
#[derive(Debug)]
pub(super) struct Resumed {
    pub folder: CheckpointFolder,
    pub from: SavedRun,
}

impl Resumed {
    /// The newest whole checkpoint of a folder; the process that writes there locks the folder first. GPUs take the
    /// algorithms that the run took.
    pub fn load(path: &Path) -> Result<Self> {
        let mut folder = folder_of_a_run(path)?;
        if !is_quiet() {
            folder.folder().lock()?;
        }
        let (from, damaged) = SavedRun::load(&mut folder)?;
        if let Some(why) = damaged {
            let step = from.lines.losses.len();
            warn(format_args!(
                "{why}; resuming from the previous checkpoint, of step {step}"
            ));
        }
        functional::set_algorithms(&from.header.algorithms);
        Ok(Self { folder, from })
    }

    /// Says where the run goes on, and if another version of the program began it.
    pub fn say(&self, sizes: Sizes, is_finished: bool) {
        let (folder, completed) = (
            self.folder.folder().path().display(),
            self.from.lines.epochs.len(),
        );
        let (step, epoch, all) = (self.from.lines.losses.len(), completed + 1, sizes.epochs);
        if is_finished {
            say(format_args!(
                "the run in {folder} is complete; nothing to do"
            ));
        } else if completed < all {
            say(format_args!(
                "resuming {folder} in epoch {epoch} of {all}, after step {step}"
            ));
        } else {
            say(format_args!(
                "the run in {folder} has completed all epochs; writing its last files"
            ));
        }
        let (begun_by, own) = (&self.from.header.version, env!("CARGO_PKG_VERSION"));
        if begun_by != own {
            warn(format_args!(
                "version {begun_by} began this run, and this is version {own}: results may differ \
                 in the last digits"
            ));
        }
    }
}
