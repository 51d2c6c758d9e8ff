//! Losses that are still on the devices. The host reads several of them together, some steps later.

use std::time::{Duration, Instant};

use candle_core::Result;

use crate::loss::BatchLoss;

/// Time that losses stay unread: to the eye it is no delay.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Number of steps that the host may be ahead of the devices.
const MOST: usize = 256;

/// The losses of the steps since the last look, each with a note, such as the number of its step.
#[derive(Debug)]
pub struct Unread<N = ()> {
    losses: Vec<BatchLoss>,
    notes: Vec<N>,
    since: Instant,
}

/// A loss that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadLoss<N> {
    /// The note that was given with it.
    pub note: N,
    /// Examples in the minibatch.
    pub examples: usize,
    /// Divisor of the sum of their losses.
    pub divisor: f64,
    /// The mean loss of an example.
    pub mean: f32,
}

impl<N> Default for Unread<N> {
    fn default() -> Self {
        Self {
            losses: Vec::new(),
            notes: Vec::new(),
            since: Instant::now(),
        }
    }
}

impl<N> Unread<N> {
    /// Adds the loss of a step; whether it is time to read.
    pub fn push(&mut self, loss: BatchLoss, note: N) -> bool {
        let at_hand = loss.is_at_hand();
        self.losses.push(loss);
        self.notes.push(note);
        at_hand || self.losses.len() >= MOST || self.since.elapsed() > READ_EVERY
    }

    /// Returns the losses that [`read`](Self::read) would return; they stay unread.
    ///
    /// # Errors
    /// If a device fails.
    pub fn peek(&self) -> Result<Vec<ReadLoss<N>>>
    where
        N: Clone,
    {
        let mut copy = Self {
            losses: self.losses.clone(),
            notes: self.notes.clone(),
            since: self.since,
        };
        copy.read()
    }

    /// The losses since the last call.
    ///
    /// # Errors
    /// If a device fails.
    pub fn read(&mut self) -> Result<Vec<ReadLoss<N>>> {
        let Self { losses, notes, .. } = std::mem::take(self);
        let means = BatchLoss::means(&losses)?;
        let read = |((note, loss), mean): ((N, BatchLoss), f32)| ReadLoss {
            note,
            examples: loss.examples(),
            divisor: loss.divisor(),
            mean,
        };
        Ok(notes.into_iter().zip(losses).zip(means).map(read).collect())
    }
}
