//! An epoch, as it is shown.

use std::fmt;

/// An epoch that was completed; it prints as `epoch 3, loss 0.121, score 0.984 (best), 1.2 s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// The mean loss of an example, before its step; of the first trainer where there are several.
    pub loss: f64,
    /// What [`Checkpoints::end_epoch`](crate::Checkpoints::end_epoch) was told.
    pub score: f64,
    /// The time of its training, without the evaluation.
    pub seconds: f64,
    /// Whether no epoch before had such a large score.
    pub is_best: bool,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            epoch,
            loss,
            score,
            seconds,
            is_best,
        } = self;
        let best = if *is_best { " (best)" } else { "" };
        write!(
            f,
            "epoch {epoch}, loss {loss:.3}, score {score:.3}{best}, {seconds:.1} s"
        )
    }
}
