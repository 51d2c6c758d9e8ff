//! Losses that are still on the devices. The host reads several of them together, some steps later.

use std::time::{Duration, Instant};

use candle_core::Result;

use crate::loss::BatchLoss;

/// How long losses stay unread: what the eye sees as at once.
const READ_EVERY: Duration = Duration::from_millis(100);
/// So many steps the host may be ahead of the devices.
const MOST: usize = 256;

/// The losses of the steps since the last look.
#[derive(Debug)]
pub struct Unread {
    losses: Vec<BatchLoss>,
    since: Instant,
}

impl Default for Unread {
    fn default() -> Self {
        Self {
            losses: Vec::new(),
            since: Instant::now(),
        }
    }
}

impl Unread {
    /// Adds the loss of a step; whether it is time to read.
    pub fn push(&mut self, loss: BatchLoss) -> bool {
        let at_hand = loss.is_at_hand();
        self.losses.push(loss);
        at_hand || self.losses.len() >= MOST || self.since.elapsed() > READ_EVERY
    }

    /// The examples and the mean loss of each step since the last call.
    ///
    /// # Errors
    /// If a device fails.
    pub fn read(&mut self) -> Result<impl Iterator<Item = (usize, f32)> + use<>> {
        let Self { losses, .. } = std::mem::take(self);
        let means = BatchLoss::means(&losses)?;
        let examples = losses.into_iter().map(|loss| loss.examples());
        Ok(examples.zip(means))
    }
}
