//! Statistics of batch norms: those of a minibatch, and the running ones that they move. Where several replicas have a part
//! of the minibatch each, they are over all parts: in PyTorch, `nn.SyncBatchNorm`. This module does not know the replicas
//! or how they communicate: the caller hands in a [`Summation`].

use crate::descriptors::norm::Norm;
use candle_core::{Result, Tensor, Var, bail};

/// Sums vectors over all replicas that take part, for [`BackwardOptions::norms`](crate::BackwardOptions::norms).
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

    /// Called by a batch norm that has nothing to sum, because it uses its running statistics.
    fn note_frozen(&self) {}
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

/// Counts a batch that moved the running statistics.
pub(crate) fn count_batch(norm: &Norm) -> Result<()> {
    let Some(batches) = &norm.batches else {
        return Ok(());
    };
    let count = batches.as_detached_tensor();
    batches.set(&(&count + count.ones_like()?)?)
}

/// An error if a batch in training is too small for statistics. If replicas share their statistics, `count` is that
/// of the whole batch.
pub(crate) fn check_count(count: usize) -> Result<()> {
    if count < 2 {
        bail!(
            "batch_norm2d: x has {count} values per channel; training needs at least 2, give a \
             larger batch"
        )
    }
    Ok(())
}

/// The mean and 1 / √(variance + ε) of each channel of a batch, from the moments of what is here, and over
/// all replicas of `norms`. With `keep` it moves the running statistics.
pub(crate) fn batch_statistics(
    norm: &Norm,
    norms: Option<&dyn Summation>,
    keep: bool,
    here: Moments,
    shift: Option<&[f32]>,
) -> Result<[Vec<f32>; 2]> {
    let batch = match norms {
        None => here,
        Some(norms) => here.over_all(norms)?,
    };
    let count = batch.count;
    check_count(count)?;
    let mean: Vec<f32> = batch.mean.iter().map(|mean| *mean as f32).collect();
    let var = batch.squares.iter().map(|sq| (sq / count as f64) as f32);
    let var: Vec<f32> = var.collect();
    let shifted = match shift {
        None => mean.clone(),
        Some(shift) => mean.iter().zip(shift).map(|(m, s)| m + s).collect(),
    };
    let inv_std = inv_std(&var, norm.how.eps);
    if keep {
        update_running(norm, &shifted, &var, count)?;
        count_batch(norm)?;
    }
    Ok([mean, inv_std])
}

/// The two terms of the gradient of x that come through the batch's mean and variance, from the sums of
/// dy · (x − mean) and of dy of this part. They are zero if the running statistics are used.
pub(crate) fn gradient_through_statistics(
    norm: &Norm,
    norms: Option<&dyn Summation>,
    here: Sums,
    inv_std: &[f32],
) -> Result<[Vec<f32>; 2]> {
    let batch = match norms {
        Some(norms) if norm.train => here.over_all(norms)?,
        _ => here,
    };
    let count = batch.count as f32;
    let per_value = if norm.train { 1. / count } else { 0. };
    let [dw, db] = &batch.of;
    let stretch = |(dw, inv_std): (&f64, &f32)| *dw as f32 * inv_std * per_value * inv_std;
    Ok([
        db.iter().map(|db| *db as f32 * per_value).collect(),
        dw.iter().zip(inv_std).map(stretch).collect(),
    ])
}

/// 1 / √(variance + ε).
pub(crate) fn inv_std(var: &[f32], eps: f32) -> Vec<f32> {
    var.iter().map(|v| 1. / (v + eps).sqrt()).collect()
}

/// Moves the running mean and variance towards a batch's mean and biased variance over `count`
/// values.
fn update_running(norm: &Norm, mean: &[f32], var: &[f32], count: usize) -> Result<()> {
    let [running_mean, running_var] = &norm.running;
    let momentum = norm.how.momentum;
    let unbiased = count as f64 / (count - 1) as f64;
    let step = |running: &Var, batch: &[f32], scale: f64| {
        let keep = (1. - momentum) as f32;
        let share = (momentum * scale) as f32;
        let old = running.to_vec1::<f32>()?;
        let values = old.iter().zip(batch);
        let new: Vec<f32> = values.map(|(old, v)| old * keep + v * share).collect();
        running.set(&Tensor::from_vec(new, batch.len(), running.device())?)
    };
    step(running_mean, mean, 1.)?;
    step(running_var, var, unbiased)
}
