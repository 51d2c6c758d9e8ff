//! Where a run stands: minibatches that were given, epochs that were completed.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use candle_core::Result;
use devices::{Context, ensure, lock};
use training::{Batch, DataIter, Loader, difference};

use super::another_run::other_data;
use super::epoch::Epoch;
use crate::trainer::Flags;

/// A place in a run, between two minibatches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Position {
    /// From 1.
    pub epoch: usize,
    /// The minibatches of this epoch that were given.
    pub given: usize,
    /// Those of all epochs.
    pub minibatches: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, given, .. } = self;
        match given {
            0 => write!(f, "after epoch {}", epoch - 1),
            given => write!(f, "in epoch {epoch}, after {given} of its minibatches"),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The minibatches of the present epoch that were given.
    given: usize,
    /// How many it has.
    of: usize,
    /// The minibatches of the epochs before.
    before: usize,
    /// The minibatches of the present epoch ended early.
    cut: bool,
    /// `save_every` has written the last checkpoint: no minibatch follows.
    ends: bool,
    /// How many minibatches were given when `save_every` was called last.
    asked_at: Option<usize>,
    /// The time of the present epoch's training before the clock began, which counts while minibatches are given.
    seconds: f64,
    clock: Option<Instant>,
    pub history: Vec<Epoch>,
    pub patience: Option<usize>,
    /// The CRC-32 of the best parameters.
    pub best_crc32: Option<u32>,
    /// The settings of the data; none before the first minibatch.
    pub data: Option<String>,
}

impl Progress {
    pub fn position(&self) -> Position {
        Position {
            epoch: self.history.len() + 1,
            given: self.given,
            minibatches: self.before + self.given,
        }
    }

    /// Begins an epoch of the run in a folder, or goes on in it. Returns how many of its minibatches were given before.
    pub fn begin<X: Batch, Y: Batch>(
        &mut self,
        folder: &Path,
        data: &DataIter<X, Y>,
        epoch: usize,
    ) -> Result<usize> {
        let next = self.history.len() + 1;
        ensure!(
            epoch == next,
            "minibatches of epoch {epoch}: the next epoch is {next}; take its number from Checkpoints::epochs, and end each \
             with end_epoch"
        );
        let settings = data.settings();
        if let Some(other) = &self.data
            && let Some((this, other)) = difference(&settings, other)
        {
            return Err(other_data(folder, &this, &other));
        }
        self.data = Some(settings);
        self.of = data.num_batches();
        self.cut = false;
        self.clock.get_or_insert_with(Instant::now);
        Ok(self.given)
    }

    fn stop_clock(&mut self) {
        self.seconds = self.seconds_so_far();
        self.clock = None;
    }

    fn seconds_so_far(&self) -> f64 {
        self.seconds
            + self
                .clock
                .map_or(0.0, |since| since.elapsed().as_secs_f64())
    }

    /// True if the minibatches of the present epoch ended early, because training is to end; not where the program took
    /// fewer, or others.
    pub fn is_cut(&self, is_stopping: bool) -> bool {
        self.cut || is_stopping && self.given < self.of
    }

    /// `save_every` was called; `ends` says whether it has written the last checkpoint.
    pub fn saved_every(&mut self, ends: bool) {
        self.ends |= ends;
        self.asked_at = Some(self.given);
    }

    /// True if no minibatch follows. If `save_every` was called after the last one, it decides, because what it wrote is
    /// then the state between two minibatches.
    fn ends_here(&self, flags: &[Flags]) -> bool {
        let wanted = flags.iter().any(Flags::is_stopping);
        let between_steps = flags.iter().all(Flags::is_between_steps);
        self.ends || wanted && between_steps && self.asked_at != Some(self.given)
    }

    pub fn end_epoch(&mut self, loss: f64, score: f64) -> Epoch {
        self.stop_clock();
        let best = self.best().map(|best| best.score);
        let ended = Epoch {
            epoch: self.history.len() + 1,
            loss,
            score,
            seconds: std::mem::take(&mut self.seconds),
            is_best: best.is_none_or(|best| score > best),
        };
        self.history.push(ended);
        self.before += std::mem::take(&mut self.given);
        self.of = 0;
        self.asked_at = None;
        ended
    }

    fn best(&self) -> Option<&Epoch> {
        self.history.iter().rfind(|epoch| epoch.is_best)
    }

    /// True if too many epochs have passed since the best one.
    pub fn is_out_of_patience(&self) -> bool {
        let since = self.best().map(|best| self.history.len() - best.epoch);
        self.patience
            .zip(since)
            .is_some_and(|(patience, since)| since >= patience)
    }

    pub fn position_text(&self) -> String {
        let given = self.given;
        let before = self.before;
        let seconds = self.seconds_so_far();
        format!("{given} {before} {seconds:?}")
    }

    /// A line for each epoch: loss, score, seconds.
    pub fn history_text(&self) -> String {
        let line =
            |epoch: &Epoch| format!("{:?} {:?} {:?}", epoch.loss, epoch.score, epoch.seconds);
        self.history.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// From its texts in a checkpoint.
    pub fn read(position: &str, history: &str) -> Result<Self> {
        let number = |text: Option<&str>| {
            let number = text.and_then(|text| text.parse::<f64>().ok());
            number.context("the position or the history of the checkpoint cannot be read")
        };
        let mut progress = Self::default();
        for line in history.lines() {
            let mut words = line.split(' ');
            let loss = number(words.next())?;
            let score = number(words.next())?;
            progress.seconds = number(words.next())?;
            progress.end_epoch(loss, score);
        }
        let mut words = position.split(' ');
        progress.given = number(words.next())? as usize;
        progress.before = number(words.next())? as usize;
        progress.seconds = number(words.next())?;
        Ok(progress)
    }
}

/// The minibatches of an epoch, counted as they are given.
pub(super) struct Counted<X, Y> {
    /// None after an error or the end.
    minibatches: Option<Result<Loader<X, Y>>>,
    progress: Arc<Mutex<Progress>>,
    /// Of each trainer.
    flags: Vec<Flags>,
}

impl<X, Y> Counted<X, Y> {
    pub fn new(
        minibatches: Result<Loader<X, Y>>,
        progress: Arc<Mutex<Progress>>,
        flags: Vec<Flags>,
    ) -> Self {
        Self {
            minibatches: Some(minibatches),
            progress,
            flags,
        }
    }
}

impl<X, Y> Iterator for Counted<X, Y> {
    type Item = Result<(X, Y)>;

    fn next(&mut self) -> Option<Self::Item> {
        let loader = match self.minibatches.as_mut()? {
            Ok(loader) => loader,
            Err(_) => return self.minibatches.take().and_then(Result::err).map(Err),
        };
        let ends = lock(&self.progress).ends_here(&self.flags);
        let next = if ends { None } else { loader.next() };
        let mut progress = lock(&self.progress);
        if next.is_some() {
            progress.given += 1; // an error takes the place of its minibatch
        } else {
            progress.cut = progress.given < progress.of;
            progress.stop_clock();
            self.minibatches = None;
        }
        next
    }
}
