//! What a run goes on from, and whether it is the same run.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::checkpoint::Checkpoint;
use crate::record::{self, Epoch, Step};
use crate::say::warn;

/// The checkpoint that a run goes on from, and the lock of its folder.
#[derive(Debug)]
pub(super) struct Resumed {
    pub folder: PathBuf,
    pub from: Checkpoint,
    pub lock: Option<File>,
}

impl Resumed {
    /// The newest whole checkpoint of a folder; a process that `writes` there locks the folder first.
    pub fn load(folder: &Path, writes: bool) -> Result<Self> {
        let lock = match writes {
            true => record::lock(folder)?,
            false => None,
        };
        let (from, damaged) = Checkpoint::load(folder)?;
        if let Some(why) = damaged {
            let step = from.header.steps;
            warn(format_args!(
                "{why}; resuming from the previous checkpoint, of step {step}"
            ));
        }
        Ok(Self {
            folder: folder.to_owned(),
            from,
            lock,
        })
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

/// Refuses lines that belong to another run, or that were edited.
pub(super) fn check_lines(
    steps: &[Step],
    epochs: &[Epoch],
    batches: usize,
    num_epochs: usize,
) -> Result<()> {
    let completed = epochs.len();
    let least = completed * batches;
    let most = num_epochs.min(completed + 1) * batches;
    ensure!(
        (least..=most).contains(&steps.len()),
        "the checkpoint counts {} steps and {completed} completed epochs of {batches} steps; \
         expected {least} to {most} steps",
        steps.len()
    );
    let numbered = |(i, step): (usize, &Step)| (step.epoch, step.step) == (i / batches + 1, i + 1);
    ensure!(
        steps.iter().enumerate().all(numbered),
        "steps.csv does not list the steps of this run in order; it was edited, or belongs to \
         another run"
    );
    ensure!(
        (1..).zip(epochs).all(|(i, epoch)| epoch.epoch == i),
        "epochs.csv does not list the epochs of this run in order; it was edited, or belongs \
         to another run"
    );
    Ok(())
}
