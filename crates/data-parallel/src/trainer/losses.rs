//! The losses of a trainer's steps: read from the devices some steps later, and added up.

use candle_core::Result;
use training::{BatchLoss, ReadLoss, Unread};

use crate::error::Kind;

/// What a trainer knows of its losses.
#[derive(Default)]
pub(crate) struct Losses {
    /// Those that are not yet known to be finite.
    unread: Unread<StepLabel>,
    /// Those since the last [`Trainer::mean_loss`](crate::Trainer::mean_loss).
    pub since_mean: LossSum,
    /// Those of the present epoch of [`Checkpoints`](crate::Checkpoints).
    pub of_epoch: LossSum,
}

/// The losses of several minibatches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LossSum {
    /// Of all examples.
    pub sum: f64,
    /// The number of examples, or what else the mean is over.
    pub divisor: f64,
}

impl LossSum {
    fn add(&mut self, loss: &ReadLoss<StepLabel>) {
        if loss.divisor > 0.0 {
            self.sum += f64::from(loss.mean) * loss.divisor;
            self.divisor += loss.divisor;
        }
    }

    pub fn mean(self) -> f64 {
        self.sum / self.divisor
    }
}

/// A step, as an error names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepLabel {
    /// From 1.
    pub number: usize,
    pub lr: f64,
}

impl Losses {
    /// Counts the loss of a step.
    ///
    /// # Errors
    /// With `checks`, if one of the losses that can be read by now is NaN or infinite. Its step was taken.
    pub fn push(&mut self, loss: &BatchLoss, of_step: StepLabel, checks: bool) -> Result<()> {
        let is_time = self.unread.push(loss.clone(), of_step);
        if is_time { self.read(checks) } else { Ok(()) }
    }

    /// Reads the losses that are still on the devices.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn read(&mut self, checks: bool) -> Result<()> {
        for read in self.unread.read()? {
            self.since_mean.add(&read);
            self.of_epoch.add(&read);
            let StepLabel { number, lr } = read.note;
            let loss = read.mean;
            let has_mean = read.divisor > 0.0;
            if checks && has_mean && !loss.is_finite() {
                return Err(Kind::Diverged.says(format!(
                    "step {number}, at learning rate {lr:?}: the loss is {loss}. The step was taken; try a smaller rate, \
                     or clip_norm"
                )));
            }
        }
        Ok(())
    }

    /// The sums since the last mean and of the epoch, with the losses that are still on the devices.
    pub fn so_far(&self) -> Result<[LossSum; 2]> {
        let mut sums = [self.since_mean, self.of_epoch];
        for read in self.unread.peek()? {
            sums.iter_mut().for_each(|sum| sum.add(&read));
        }
        Ok(sums)
    }
}
