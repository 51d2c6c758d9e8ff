//! Where a run stands: its steps and epochs so far, and the bar that shows them.

use crate::bar::Bar;
use crate::lines::Step;

#[derive(Debug, Default)]
pub(super) struct Progress {
    pub bar: Bar,
    /// Steps with a known loss.
    pub step: usize,
    /// Steps that were taken.
    pub taken: usize,
    /// Examples of this epoch, with those of unread losses.
    pub given: usize,
    /// Examples of the last step.
    pub examples_of_step: usize,
    examples: usize,
    loss_sum: f64,
    /// Mean losses of the epochs that are complete.
    pub losses: Vec<f64>,
}

impl Progress {
    /// Counts a step, the loss of which is not known yet.
    pub fn take(&mut self, examples: usize) {
        self.taken += 1;
        self.examples_of_step = examples;
        self.given += examples;
    }

    /// Counts the loss of the next step, and gives its line.
    pub fn step(&mut self, examples: usize, loss: f32) -> Step {
        self.step += 1;
        self.examples += examples;
        self.loss_sum += f64::from(loss) * examples as f64;
        self.bar.step(examples, loss);
        Step {
            epoch: self.losses.len() + 1,
            step: self.step,
            examples,
            loss,
        }
    }

    /// The epoch that ended, its mean loss, and how many examples it had.
    pub fn end_epoch(&mut self) -> (usize, f64, usize) {
        let examples = std::mem::take(&mut self.examples);
        let loss = std::mem::take(&mut self.loss_sum) / examples as f64;
        self.given = 0;
        self.losses.push(loss);
        (self.losses.len(), loss, examples)
    }
}
