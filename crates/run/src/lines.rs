//! The lines of a run's tables. Checkpoints keep them as well: tables that are lost can be written anew.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::table::csv;

/// One line of `steps.csv`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    pub epoch: usize,
    pub step: usize,
    pub examples: usize,
    pub loss: f32,
}

/// One line of `epochs.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Epoch {
    pub epoch: usize,
    pub loss: f64,
    pub test_acc: f64,
    pub seconds: f64,
}

/// How many examples the training set and a minibatch have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub examples: usize,
    pub batch: usize,
}

impl Sizes {
    pub fn steps_per_epoch(self) -> usize {
        self.examples.div_ceil(self.batch)
    }

    /// The line of step `i`, counted from 0.
    fn step(self, i: usize, loss: f32) -> Step {
        let (epoch, batch) = (i / self.steps_per_epoch(), i % self.steps_per_epoch());
        Step {
            epoch: epoch + 1,
            step: i + 1,
            examples: self.batch.min(self.examples - batch * self.batch),
            loss,
        }
    }
}

/// All lines so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Lines {
    /// The loss of each step.
    pub losses: Vec<f32>,
    pub epochs: Vec<Epoch>,
}

impl Lines {
    pub fn steps(&self, sizes: Sizes) -> impl Iterator<Item = Step> {
        let losses = self.losses.iter().enumerate();
        losses.map(move |(i, loss)| sizes.step(i, *loss))
    }

    /// `steps.csv` and `epochs.csv`.
    pub fn tables(&self, sizes: Sizes) -> Result<[Vec<u8>; 2]> {
        let steps: Vec<Step> = self.steps(sizes).collect();
        let steps = [&b"epoch,step,examples,loss\n"[..], &csv(&steps)?].concat();
        let epochs = [&b"epoch,loss,test_acc,seconds\n"[..], &csv(&self.epochs)?].concat();
        Ok([steps, epochs])
    }

    /// An error, if a run of this size cannot have so many lines.
    pub fn check(&self, sizes: Sizes, num_epochs: usize) -> Result<()> {
        let (steps, completed, batches) = (
            self.losses.len(),
            self.epochs.len(),
            sizes.steps_per_epoch(),
        );
        let (least, most) = (completed * batches, num_epochs.min(completed + 1) * batches);
        ensure!(
            (least..=most).contains(&steps),
            "the checkpoint counts {steps} steps and {completed} completed epochs of {batches} \
             steps; expected {least} to {most} steps"
        );
        Ok(())
    }
}
