//! A run that goes on from a checkpoint.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::Tensor;

use super::Run;
use super::progress::Progress;
use super::settings::same_settings;
use crate::checkpoint::Checkpoint;
use crate::process::warn;
use crate::record::Record;
use crate::{Timer, say, weights};

impl Run {
    /// Takes up the run where a checkpoint was taken; one that went to its end is left as it is.
    pub(super) fn go_on(
        &mut self,
        checkpoint: Checkpoint,
        tensors: &[(String, Tensor)],
        writes: bool,
    ) -> Result<Vec<Tensor>> {
        let folder = self.options.resume.clone().unwrap_or_default();
        let cannot = || format!("--resume {}", folder.display());
        let (header, mut kept) = (checkpoint.header, checkpoint.tensors);
        same_settings(&header.settings, &self.settings()).with_context(cannot)?;
        let params = weights::take_all(&mut kept, tensors).with_context(cannot)?;
        let lines = Record::lines(&folder, &header);
        let (steps, epochs) = lines.with_context(cannot)?;
        let mut loss = self.loss_curve();
        for step in &steps {
            loss.add(step.loss)?;
        }
        for epoch in &epochs {
            self.animator.add(epoch.epoch as f64, &[epoch.test_acc])?;
        }
        let begun = steps.iter().filter(|step| step.epoch > epochs.len());
        self.train_iter = (self.train_iter.clone()).starting_at(epochs.len() + 1, begun.count());
        let seconds = epochs.iter().map(|epoch| epoch.seconds).collect();
        self.timer = Timer::after(seconds, header.seconds);
        self.progress = Progress::after(&epochs, &steps);
        self.kept = steps.len();
        let finished = epochs.len() == self.num_epochs && Record::is_finished(&folder);
        if writes && !finished {
            self.record = Some(Record::go_on(&folder, loss, &header).with_context(cannot)?);
        }
        say(format_args!("{}", self.taken_up(&folder, finished)));
        self.rest = kept;
        Ok(params)
    }

    fn taken_up(&self, folder: &Path, finished: bool) -> String {
        let (folder, p) = (folder.display(), &self.progress);
        match finished {
            true => format!("the run in {folder} went to its end, and stays as it is"),
            false => format!(
                "going on in {folder}, in epoch {} of {}, after step {}",
                p.losses.len() + 1,
                self.num_epochs,
                p.step
            ),
        }
    }

    /// What a checkpoint has beside the tensors of [`init`](Self::init), for the network to take up; empty where the
    /// run begins.
    pub fn take_rest(&mut self) -> HashMap<String, Tensor> {
        std::mem::take(&mut self.rest)
    }
}

/// The newest checkpoint of a folder that is whole.
pub(super) fn load_checkpoint(folder: &Path) -> Result<Checkpoint> {
    let (checkpoint, damaged) = Checkpoint::load(folder)?;
    if let Some(why) = damaged {
        let step = checkpoint.header.steps;
        warn(format_args!(
            "{why}; going on from the one before it, of step {step}"
        ));
    }
    Ok(checkpoint)
}
