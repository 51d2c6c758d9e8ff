//! Batch normalization: its sizes, and what statistics of several replicas together are. It keeps no
//! statistics of its own: the running ones belong to the caller.

use super::args;
use crate::ops::synchronized::{Moments, Summation, Sums};
use candle_core::{Result, Tensor, Var, bail};

/// Added to the variance, as in PyTorch.
pub(crate) const EPS: f64 = 1e-5;
/// The weight of a batch in the running statistics, as in PyTorch.
pub(crate) const MOMENTUM: f64 = 0.1;

/// Batch norm, then a sum with the shortcut where there is one, then ReLU.
#[derive(Clone)]
pub(crate) struct Norm {
    pub(crate) channels: usize,
    /// Values a channel that are here.
    pub(crate) count: usize,
    /// Pixels of an example.
    pub(crate) pixels: usize,
    pub(crate) running: [Var; 2],
    /// The number of batches that moved them, a scalar on the CPU.
    pub(crate) batches: Option<Var>,
    pub(crate) train: bool,
    pub(crate) relu: bool,
    /// Whether there is an input more that is added.
    pub(crate) shortcut: bool,
    /// Whether the last input is the bias of the convolution before this norm. The convolution leaves it out, because the
    /// batch's mean would subtract it again. So only the running mean needs it.
    pub(crate) shift: bool,
}

impl Norm {
    /// For inputs x, weight and bias of these shapes.
    pub(crate) fn new(
        [x, weight, bias]: [&[usize]; 3],
        running: [Var; 2],
        train: bool,
    ) -> Result<Self> {
        let op = "batch_norm2d";
        let [b, h, w, channels] = args::dims4(op, "(B, H, W, C)", x)?;
        let vector = |name, v| args::vector(op, name, v, channels, "channels of x");
        vector("running_mean", running[0].dims())?;
        vector("running_var", running[1].dims())?;
        vector("weight", weight)?;
        vector("bias", bias)?;
        args::check_float(op, "running_mean", running[0].dtype())?;
        args::check_float(op, "running_var", running[1].dtype())?;
        if channels == 0 {
            bail!("{op}: x has shape {x:?}, expected at least one channel")
        }
        Ok(Self {
            channels,
            count: b * h * w,
            pixels: h * w,
            running,
            batches: None,
            train,
            relu: false,
            shortcut: false,
            shift: false,
        })
    }

    /// Of the inputs: the value that is added after the norm.
    pub(crate) fn shortcut<T: Copy>(&self, x: &[T]) -> Option<T> {
        self.shortcut.then(|| x[3])
    }

    /// Of the inputs: the bias that the convolution left out.
    pub(crate) fn shift<T: Copy>(&self, x: &[T]) -> Option<T> {
        x.last().copied().filter(|_| self.shift)
    }

    /// Counts a batch that moved the running statistics.
    pub(crate) fn count_batch(&self) -> Result<()> {
        let Some(batches) = &self.batches else {
            return Ok(());
        };
        let count = batches.as_detached_tensor();
        batches.set(&(&count + count.ones_like()?)?)
    }

    /// An error if a batch in training is too small for statistics. If replicas share their statistics, `count` is that
    /// of the whole batch.
    pub(crate) fn check_count(&self, count: usize) -> Result<()> {
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
    pub(crate) fn of_batch(
        &self,
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
        self.check_count(count)?;
        let mean: Vec<f32> = batch.mean.iter().map(|mean| *mean as f32).collect();
        let var = batch.squares.iter().map(|sq| (sq / count as f64) as f32);
        let var: Vec<f32> = var.collect();
        let shifted = match shift {
            None => mean.clone(),
            Some(shift) => mean.iter().zip(shift).map(|(m, s)| m + s).collect(),
        };
        let inv_std = inv_std(&var);
        if keep {
            update_running(&self.running, &shifted, &var, count)?;
            self.count_batch()?;
        }
        Ok([mean, inv_std])
    }

    /// The two terms of the gradient of x that come through the batch's mean and variance, from the sums of
    /// dy · (x − mean) and of dy of this part. They are zero if the running statistics are used.
    pub(crate) fn through_statistics(
        &self,
        norms: Option<&dyn Summation>,
        here: Sums,
        inv_std: &[f32],
    ) -> Result<[Vec<f32>; 2]> {
        let batch = match norms {
            Some(norms) if self.train => here.over_all(norms)?,
            _ => here,
        };
        let count = batch.count as f32;
        let per_value = if self.train { 1. / count } else { 0. };
        let [dw, db] = &batch.of;
        let stretch = |(dw, inv_std): (&f64, &f32)| *dw as f32 * inv_std * per_value * inv_std;
        Ok([
            db.iter().map(|db| *db as f32 * per_value).collect(),
            dw.iter().zip(inv_std).map(stretch).collect(),
        ])
    }
}

/// 1 / √(variance + ε).
pub(crate) fn inv_std(var: &[f32]) -> Vec<f32> {
    var.iter().map(|v| 1. / (v + EPS as f32).sqrt()).collect()
}

/// Moves the running mean and variance towards a batch's mean and biased variance over `count`
/// values.
fn update_running(
    [running_mean, running_var]: &[Var; 2],
    mean: &[f32],
    var: &[f32],
    count: usize,
) -> Result<()> {
    let unbiased = count as f64 / (count - 1) as f64;
    let step = |running: &Var, batch: &[f32], scale: f64| {
        let (keep, share) = ((1. - MOMENTUM) as f32, (MOMENTUM * scale) as f32);
        let old = running.to_vec1::<f32>()?;
        let values = old.iter().zip(batch);
        let new: Vec<f32> = values.map(|(old, v)| old * keep + v * share).collect();
        running.set(&Tensor::from_vec(new, batch.len(), running.device())?)
    };
    step(running_mean, mean, 1.)?;
    step(running_var, var, unbiased)
}
