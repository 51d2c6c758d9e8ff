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
    /// True if no epoch before had such a large score.
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
            "epoch {epoch}, loss {}, score {}{best}, {seconds:.1} s",
            Three(*loss),
            Three(*score)
        )
    }
}

/// A number with three decimals, or three digits where it is small.
struct Three(f64);

impl fmt::Display for Three {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        if size >= 0.1 || size == 0.0 || !size.is_finite() {
            return write!(f, "{:.3}", self.0);
        }
        if size < 1e-4 {
            return write!(f, "{:.2e}", self.0);
        }
        let zeros = -size.log10().floor() as usize; // 3 for 0.00123
        write!(f, "{:.*}", zeros + 2, self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_keep_three_digits() {
        let shown = |number| Three(number).to_string();
        assert_eq!(
            [0.98444, -1.5, 0.0].map(shown),
            ["0.984", "-1.500", "0.000"]
        );
        assert_eq!(
            [0.01234, -0.00123456, 1.234e-6].map(shown),
            ["0.0123", "-0.00123", "1.23e-6"]
        );
        assert_eq!([f64::INFINITY, f64::NAN].map(shown), ["inf", "NaN"]);
    }
}
