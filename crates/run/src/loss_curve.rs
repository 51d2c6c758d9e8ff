//! The training loss of a run by step, with no more points than a picture can show.

use anyhow::Result;
use d2l::Animator;

/// A picture is 560 pixels wide: more points would only make it larger.
const POINTS: usize = 1000;

/// Means over equal stretches of steps; the x axis counts epochs.
#[derive(Debug)]
pub(crate) struct LossCurve {
    animator: Animator,
    steps_per_epoch: usize,
    /// Steps that make a point.
    stretch: usize,
    steps: usize,
    sum: f64,
}

impl LossCurve {
    pub fn new(epochs: usize, steps_per_epoch: usize) -> Self {
        Self {
            animator: Animator::new("epoch", &["train loss"], (0.0, epochs as f64)),
            steps_per_epoch,
            stretch: (epochs * steps_per_epoch).div_ceil(POINTS),
            steps: 0,
            sum: 0.0,
        }
    }

    /// Adds a step's loss.
    pub fn add(&mut self, loss: f32) -> Result<()> {
        self.steps += 1;
        self.sum += f64::from(loss);
        if !self.steps.is_multiple_of(self.stretch) {
            return Ok(());
        }
        let mean = std::mem::take(&mut self.sum) / self.stretch as f64;
        // in the middle of its stretch; after the first epoch, x is 1
        let middle = self.steps as f64 - (self.stretch - 1) as f64 / 2.0;
        self.animator
            .add(middle / self.steps_per_epoch as f64, &[mean])
    }

    pub fn svg(&self) -> Result<String> {
        self.animator.svg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_is_drawn_step_by_step_and_a_long_one_in_means() -> Result<()> {
        let mut short = LossCurve::new(2, 4);
        for loss in [3.0, 2.0, 1.0] {
            short.add(loss)?;
        }
        assert_eq!(short.animator.x(), [0.25, 0.5, 0.75]);
        assert_eq!(short.animator.y(0), [3.0, 2.0, 1.0]);
        let mut long = LossCurve::new(10, 201); // 2010 steps: three make a point
        for step in 0..2010 {
            long.add(step as f32)?;
        }
        assert_eq!(long.animator.y(0).len(), 670);
        assert_eq!(long.animator.y(0)[..2], [1.0, 4.0]);
        assert_eq!(long.animator.x()[..2], [2.0 / 201.0, 5.0 / 201.0]);
        Ok(())
    }
}
