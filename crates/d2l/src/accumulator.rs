//! Sums over several variables at once.

use std::ops::Index;

/// `N` running sums, as in the book's "Softmax Regression Implementation from Scratch".
///
/// ```
/// let mut metric = d2l::Accumulator::<2>::new(); // correct predictions, predictions
/// metric.add([3.0, 4.0]);
/// metric.add([2.0, 4.0]);
/// assert_eq!(metric[0] / metric[1], 0.625);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Accumulator<const N: usize> {
    data: [f64; N],
}

impl<const N: usize> Accumulator<N> {
    /// `N` zeros.
    pub fn new() -> Self {
        Self { data: [0.0; N] }
    }

    /// Adds one number to each sum.
    pub fn add(&mut self, numbers: [f64; N]) {
        self.data.iter_mut().zip(numbers).for_each(|(d, n)| *d += n);
    }
}

impl<const N: usize> Default for Accumulator<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Index<usize> for Accumulator<N> {
    type Output = f64;

    fn index(&self, i: usize) -> &f64 {
        &self.data[i]
    }
}
