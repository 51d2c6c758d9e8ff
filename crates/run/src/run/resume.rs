//! What a run goes on from, and whether it is the same run.

use std::path::Path;

use anyhow::Result;

use crate::checkpoint::{Checkpoint, folder_of_a_run};
use crate::folder::Folder;
use crate::say::warn;

/// The checkpoint that a run goes on from, and its folder.
#[derive(Debug)]
pub(super) struct Resumed {
    pub folder: Folder,
    pub from: Checkpoint,
}

impl Resumed {
    /// The newest whole checkpoint of a folder; a process that `writes` there locks the folder first.
    pub fn load(path: &Path, writes: bool) -> Result<Self> {
        let folder = folder_of_a_run(path)?;
        if writes {
            folder.lock()?;
        }
        let (from, damaged) = Checkpoint::load(&folder)?;
        if let Some(why) = damaged {
            let step = from.lines.losses.len();
            warn(format_args!(
                "{why}; resuming from the previous checkpoint, of step {step}"
            ));
        }
        Ok(Self { folder, from })
    }
}

/// Says so, if another version of the program began the run.
pub(super) fn tell_versions(begun_by: &str) {
    let own = env!("CARGO_PKG_VERSION");
    if begun_by != own {
        warn(format_args!(
            "version {begun_by} began this run, and this is version {own}: results may differ in \
             the last digits"
        ));
    }
}
