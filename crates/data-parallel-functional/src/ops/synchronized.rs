//! Statistics of batch norms over the values of several replicas, each with a part of a minibatch: in PyTorch,
//! `nn.SyncBatchNorm`. This module does not know the replicas or how they communicate: the caller hands in a
//! [`Summation`].

use candle_core::Result;

/// Sums vectors over all replicas that take part, for [`Backward::norms`](crate::Backward::norms).
///
/// All replicas bring vectors of the same lengths in the same order, because all evaluate the same
/// network and run its backward pass for the same gradients.
pub trait Summation: Send + Sync {
    /// Replaces `values` by the sums over all replicas, with the same bits in each. It waits until all
    /// replicas have brought their values.
    ///
    /// # Errors
    /// Where a replica no longer takes part. The forward or backward pass that needed the sums then
    /// ends with this error.
    fn sum(&self, values: &mut [f64]) -> Result<()>;
}

/// Two sums of each channel over `count` values a channel.
pub(crate) struct Sums {
    pub count: usize,
    pub of: [Vec<f64>; 2],
}

impl Sums {
    /// The sums over all replicas, from these sums of one part: one summation.
    pub fn over_all(&self, over: &dyn Summation) -> Result<Self> {
        let mut values = vec![self.count as f64];
        values.extend(self.of.iter().flatten());
        over.sum(&mut values)?;
        let (first, second) = values[1..].split_at(self.of[0].len());
        Ok(Self {
            count: values[0] as usize,
            of: [first.to_vec(), second.to_vec()],
        })
    }
}

/// The mean of each channel over `count` values a channel, and the sum of squares around it.
pub(crate) struct Moments {
    pub count: usize,
    pub mean: Vec<f64>,
    pub squares: Vec<f64>,
}

impl Moments {
    /// The moments over all replicas, from these moments of one part: one summation.
    ///
    /// The squares are summed around zero, which all parts have in common. With a large mean this loses
    /// little: in f64, 2⁻⁵³ · mean² of the variance. The rounding of the f32 values has lost more.
    pub fn over_all(&self, over: &dyn Summation) -> Result<Self> {
        let n = self.count as f64;
        let moments = || self.mean.iter().zip(&self.squares);
        let part = Sums {
            count: self.count,
            of: [
                moments().map(|(mean, _)| n * mean).collect(),
                moments().map(|(mean, sq)| sq + n * mean * mean).collect(),
            ],
        };
        let Sums { count, of: [x, xx] } = part.over_all(over)?;
        let mean: Vec<f64> = x.iter().map(|x| x / count as f64).collect();
        let around = |((x, xx), mean): ((&f64, &f64), &f64)| match xx - x * mean {
            rounded if rounded < 0. => 0.,
            squares => squares, // NaN as well, so that a diverged run shows
        };
        let squares = x.iter().zip(&xx).zip(&mean).map(around).collect();
        Ok(Self {
            count,
            mean,
            squares,
        })
    }
}
