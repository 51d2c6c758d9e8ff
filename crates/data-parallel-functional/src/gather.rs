//! The rows of all replicas, from those of each.

use crate::statistics::Summation;
use candle_core::Result;
use std::ops::Range;
use std::sync::Arc;

/// Which rows are this replica's, and how the replicas exchange them: as a sum, to which each brings its rows and zeros.
#[derive(Clone)]
pub(crate) struct Gather {
    pub rows: Range<usize>,
    /// The number of elements of a row.
    pub row: usize,
    /// The shape here, and of all.
    pub own: Vec<usize>,
    pub all: Vec<usize>,
    pub over: Arc<dyn Summation>,
}

impl Gather {
    /// The elements of its own rows.
    pub fn elements(&self) -> Range<usize> {
        self.rows.start * self.row..self.rows.end * self.row
    }

    /// The sum over all replicas.
    ///
    /// # Errors
    /// Where a replica no longer takes part.
    pub fn sum(&self, mut values: Vec<f64>) -> Result<Vec<f32>> {
        self.over.sum(&mut values)?;
        Ok(values.into_iter().map(|value| value as f32).collect())
    }
}
