//! The position of a run: minibatches that its steps have taken, epochs that were completed.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use candle_core::{Result, TensorId};
use devices::{Context, ensure, lock};
use training::{Batch, DataIter, Loader, difference};

use super::another_run::other_data;
use super::epoch::Epoch;
use super::given::{Begun, Given};
use crate::batch_tensors::BatchTensors;
use crate::trainer::Flags;
use crate::watchers::Watcher;

/// A place in a run, between two steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Position {
    /// From 1.
    pub epoch: usize,
    /// The minibatches of this epoch that steps have taken, of each data.
    pub taken: Vec<usize>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { epoch, taken } = self;
        if taken.iter().all(|taken| *taken == 0) {
            return write!(f, "after epoch {}", epoch - 1);
        }
        let taken = joined(taken, " and ");
        write!(f, "in epoch {epoch}, after {taken} of its minibatches")
    }
}

fn joined(numbers: &[usize], with: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(with)
}

#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The minibatches of the present epoch.
    pub given: Given,
    /// The minibatches of the epochs before.
    before: usize,
    /// `save_every` has written the last checkpoint: no minibatch follows.
    ends: bool,
    /// The number of minibatches that were given at the last call of `save_every`.
    asked_at: Option<usize>,
    /// The time of the present epoch's training before the clock began, which counts while minibatches are given.
    seconds: f64,
    clock: Option<Instant>,
    pub history: Vec<Epoch>,
    pub patience: Option<usize>,
    /// The CRC-32 of the best parameters.
    pub best_crc32: Option<u32>,
    /// The settings of each data, in the order in which an epoch asks for them.
    pub data: Vec<String>,
}

impl Watcher for Mutex<Progress> {
    fn step_on(&self, tensors: &[TensorId]) {
        lock(self).given.step_on(tensors);
    }
}

impl Progress {
    pub fn position(&self) -> Position {
        Position {
            epoch: self.history.len() + 1,
            taken: self.given.taken(),
        }
    }

    /// The number of minibatches that steps have taken in all epochs.
    pub fn minibatches(&self) -> usize {
        self.before + self.given.number_taken()
    }

    /// An error if a run could not go on at the position.
    pub fn check(&self) -> Result<()> {
        self.given.check(self.history.len() + 1)
    }

    /// Begins with a data of an epoch of the run in a folder, or goes on with it.
    fn begin<X: Batch, Y: Batch>(
        &mut self,
        folder: &Path,
        data: &DataIter<X, Y>,
        epoch: usize,
    ) -> Result<Begun> {
        let next = self.history.len() + 1;
        ensure!(
            epoch == next,
            "minibatches of epoch {epoch}: the next epoch is {next}; take its number from Checkpoints::epochs, and end each \
             with end_epoch"
        );
        let settings = data.settings();
        match self.data.get(self.given.place(data.number())) {
            None => self.data.push(settings),
            Some(other) => {
                if let Some((this, other)) = difference(&settings, other) {
                    return Err(other_data(folder, &this, &other));
                }
            }
        }
        let begun = self.given.begin(data.number(), data.num_batches(), epoch)?;
        self.clock.get_or_insert_with(Instant::now);
        Ok(begun)
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
        self.given.are_cut(is_stopping)
    }

    /// `save_every` was called; `ends` says whether it has written the last checkpoint.
    pub fn saved_every(&mut self, ends: bool) {
        self.ends |= ends;
        self.asked_at = Some(self.given.number_given());
    }

    /// True if no minibatch follows. If `save_every` was called after the last one, it decides, because what it wrote is
    /// then the state between two minibatches.
    fn ends_here(&self, flags: &[Flags]) -> bool {
        let wanted = flags.iter().any(Flags::is_stopping);
        let between_steps = flags.iter().all(Flags::is_between_steps);
        self.ends || wanted && between_steps && self.asked_at != Some(self.given.number_given())
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
        self.before += std::mem::take(&mut self.given).number_given();
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
        let taken = self.given.taken();
        let taken = if taken.is_empty() { vec![0] } else { taken };
        let taken = joined(&taken, ",");
        let before = self.before;
        let seconds = self.seconds_so_far();
        format!("{taken} {before} {seconds:?}")
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
        let taken = words.next().unwrap_or_default().split(',');
        let taken: Result<Vec<usize>> = taken
            .map(|taken| Ok(number(Some(taken))? as usize))
            .collect();
        progress.given = Given::after(&taken?);
        progress.before = number(words.next())? as usize;
        progress.seconds = number(words.next())?;
        Ok(progress)
    }
}

/// The minibatches of an epoch of one data.
pub(super) struct Counted<X, Y> {
    /// None after an error or the end.
    minibatches: Option<Result<(Loader<X, Y>, Begun)>>,
    progress: Arc<Mutex<Progress>>,
    /// Of each trainer.
    flags: Vec<Flags>,
}

impl<X: Batch, Y: Batch> Counted<X, Y> {
    /// Those that are left of an epoch of the run in a folder; `part` is what this process makes of them.
    pub fn begin(
        folder: &Path,
        data: &DataIter<X, Y>,
        epoch: usize,
        part: impl FnOnce(DataIter<X, Y>) -> DataIter<X, Y>,
        progress: Arc<Mutex<Progress>>,
        flags: Vec<Flags>,
    ) -> Self {
        let begun = lock(&progress).begin(folder, data, epoch);
        let minibatches = begun.and_then(|begun| {
            let rest = part(data.clone()).starting_at(epoch, begun.given)?;
            Ok((rest.epoch(epoch), begun))
        });
        Self {
            minibatches: Some(minibatches),
            progress,
            flags,
        }
    }
}

impl<X: Batch, Y: Batch> Iterator for Counted<X, Y> {
    type Item = Result<(X, Y)>;

    fn next(&mut self) -> Option<Self::Item> {
        let Ok((loader, begun)) = self.minibatches.as_mut()? else {
            return self.minibatches.take().and_then(Result::err).map(Err);
        };
        let ends = lock(&self.progress).ends_here(&self.flags);
        let next = if ends { None } else { loader.next() };
        let mut progress = lock(&self.progress);
        let Some(next) = next else {
            progress.given.end(begun);
            progress.stop_clock();
            self.minibatches = None;
            return None;
        };
        let minibatch = next.as_ref().ok();
        let tensors = minibatch.map(|(x, y)| BatchTensors::ids_of_program(x, y));
        let is_given = progress.given.give(begun, tensors);
        Some(is_given.and(next))
    }
}
