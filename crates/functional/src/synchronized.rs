//! Batch norms with statistics over the values of several replicas, each with a part of a minibatch: in
//! PyTorch, `nn.SyncBatchNorm`. This module does not know the replicas or how they communicate: the caller
//! hands in a [`Summation`].

use crate::scoped;
use candle_core::Result;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static OVER: Cell<Option<Arc<dyn Summation>>> = const { Cell::new(None) };
}

/// Sums vectors over all replicas that take part, for [`with_synchronized_norms`].
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

/// Runs `f`. Inside, batch norms in training mode that this thread evaluates take their statistics over
/// the values of all replicas that `over` sums over. Their backward passes sum over the same replicas,
/// later and on other threads as well. Calls nest, and the effect ends even if `f` panics.
///
/// Then a minibatch in parts gives what it gives as a whole: the results, the gradients of x, and the
/// running statistics. The gradients of weight and bias are those of one part; their sum over all parts
/// is the gradient of the whole. A part may have one value a channel, or none. In PyTorch:
/// `nn.SyncBatchNorm`.
///
/// Each batch norm sums once in forward, and once in backward if x has a gradient. On a GPU the host
/// waits for the GPU before each sum. On devices that are neither the CPU nor an NVIDIA GPU it is an error.
///
/// ```
/// use candle_core::{Device, Result, Tensor, Var};
/// use functional::{Summation, batch_norm2d, with_synchronized_norms};
/// use std::sync::Arc;
///
/// /// Two replicas that have the same values.
/// struct Twins;
///
/// impl Summation for Twins {
///     fn sum(&self, values: &mut [f64]) -> Result<()> {
///         values.iter_mut().for_each(|v| *v *= 2.);
///         Ok(())
///     }
/// }
///
/// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
/// let (weight, bias) = (Tensor::new(&[1f32], &Device::Cpu)?, Tensor::new(&[0f32], &Device::Cpu)?);
/// let (mean, var) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[0f32], &Device::Cpu)?);
/// let over: Arc<dyn Summation> = Arc::new(Twins);
/// with_synchronized_norms(&over, || batch_norm2d(&x, &weight, &bias, &mean, &var, true))?;
/// // 1, 3, 1, 3: the mean is 2, the unbiased variance 4 / 3, and a tenth of them is taken
/// assert!((mean.to_vec1::<f32>()?[0] - 0.2).abs() < 1e-6);
/// assert!((var.to_vec1::<f32>()?[0] - 0.4 / 3.).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn with_synchronized_norms<R>(over: &Arc<dyn Summation>, f: impl FnOnce() -> R) -> R {
    scoped::with(&OVER, Some(over.clone()), f)
}

/// The summation of batch norms in training mode; none where each norm uses its own values alone.
pub(crate) fn over() -> Option<Arc<dyn Summation>> {
    let over = OVER.take();
    OVER.set(over.clone());
    over
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
