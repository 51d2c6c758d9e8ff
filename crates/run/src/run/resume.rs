//! A run that goes on from a checkpoint.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use d2l::Timer;

use super::Run;
use super::progress::Progress;
use super::settings::same_settings;
use crate::checkpoint::Checkpoint;
use crate::loss_curve::LossCurve;
use crate::record::{self, Epoch, Record, Step};
use crate::say::warn;
use crate::{say, weights};

impl Run {
    /// Takes up the run where a checkpoint was taken; one that went to its end is left as it is.
    pub(super) fn go_on(
        &mut self,
        resumed: Resumed,
        tensors: &[(String, Tensor)],
        writes: bool,
    ) -> Result<Vec<Tensor>> {
        let folder = self.setup.options.resume.clone().unwrap_or_default();
        let cannot = || format!("--resume {}", folder.display());
        let Resumed { mut from, lock } = resumed;
        let (header, mut kept) = (&from.header, std::mem::take(&mut from.tensors));
        same_settings(&header.settings, &self.settings()).with_context(cannot)?;
        let params = weights::take_all(&mut kept, tensors).with_context(cannot)?;
        let lines = Record::lines(&folder, header);
        let (steps, epochs) = lines.with_context(cannot)?;
        self.check_lines(&steps, &epochs).with_context(cannot)?;
        let loss = self.catch_up(&steps, &epochs, header.seconds)?;
        let finished = epochs.len() == self.num_epochs && Record::is_finished(&folder);
        if writes && !finished {
            let record = Record::go_on(&folder, lock, loss, &from);
            self.files.record = Some(record.with_context(cannot)?);
        }
        say(format_args!("{}", self.taken_up(&folder, finished)));
        tell_versions(&header.version);
        self.rest = kept;
        Ok(params)
    }

    /// Refuses lines that belong to another run, or that were edited.
    fn check_lines(&self, steps: &[Step], epochs: &[Epoch]) -> Result<()> {
        let (batches, completed) = (self.train_iter.num_batches(), epochs.len());
        let most = self.num_epochs.min(completed + 1) * batches;
        ensure!(
            completed * batches <= steps.len() && steps.len() <= most,
            "the checkpoint counts {} steps and {completed} completed epochs of {batches} steps; \
             expected {} to {most} steps",
            steps.len(),
            completed * batches
        );
        let numbered =
            |(i, step): (usize, &Step)| (step.epoch, step.step) == (i / batches + 1, i + 1);
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

    /// Stands where a run stands that has had these steps and epochs; the loss that it has seen.
    fn catch_up(&mut self, steps: &[Step], epochs: &[Epoch], seconds: f64) -> Result<LossCurve> {
        let begun = steps.iter().filter(|step| step.epoch > epochs.len());
        self.train_iter = (self.train_iter.clone()).starting_at(epochs.len() + 1, begun.count());
        let times = epochs.iter().map(|epoch| epoch.seconds).collect();
        self.timer = Timer::after(times, seconds);
        self.progress = Progress::after(epochs, steps);
        (self.files.kept, self.files.tried) = (steps.len(), steps.len());
        for epoch in epochs {
            self.animator.add(epoch.epoch as f64, &[epoch.test_acc])?;
        }
        let mut loss = self.loss_curve();
        for step in steps {
            loss.add(step.loss)?;
        }
        Ok(loss)
    }

    fn taken_up(&self, folder: &Path, finished: bool) -> String {
        let (folder, p) = (folder.display(), &self.progress);
        match finished {
            true => format!("the run in {folder} is complete; nothing to do"),
            false if p.losses.len() == self.num_epochs => {
                format!("the run in {folder} has completed all epochs; writing its last files")
            }
            false => format!(
                "resuming {folder} in epoch {} of {}, after step {}",
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

/// The checkpoint that a run goes on from, and the lock of its folder.
#[derive(Debug)]
pub(super) struct Resumed {
    from: Checkpoint,
    lock: Option<File>,
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
        Ok(Self { from, lock })
    }
}

fn tell_versions(begun_by: &str) {
    let own = env!("CARGO_PKG_VERSION");
    if begun_by != own {
        warn(format_args!(
            "version {begun_by} began this run, and this is version {own}: results may differ in \
             the last digits"
        ));
    }
}
