//! Batch normalization on the CPU, over all but the last dimension. It keeps no statistics of its
//! own: the running ones belong to the caller, and only training mode changes them.

use crate::activation::positive;
use crate::buffer::Buffer;
use crate::operation::{At, Grad, Operation};
use crate::storage::tensor;
use crate::threads::{for_each_chunk, for_each_chunk_of_two};
use crate::{Expr, args};
use candle_core::{Result, Tensor, Var, bail};

/// Added to the variance, as in PyTorch.
pub(crate) const EPS: f64 = 1e-5;
/// The weight of a batch in the running statistics, as in PyTorch.
const MOMENTUM: f64 = 0.1;
/// Pixels of a block: its sums are f32, and f64 combines them.
const BLOCK: usize = 256;

/// Normalizes each channel of `x` (B, H, W, C), then scales it with `weight` and shifts it by
/// `bias`, both (C,): (x − mean) / √(var + 1e-5) · weight + bias.
///
/// With `train` the mean and the (biased) variance are the batch's, and the running statistics,
/// both (C,), move towards them: running = 0.9 · running + 0.1 · batch, where the batch's variance
/// is the unbiased one. Without `train` the running statistics are used. In the book:
/// `nn.BatchNorm2d`.
///
/// # Errors
/// Where a tensor is not f32, the channels do not match, or a training batch has fewer than two
/// values a channel.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
/// let (weight, bias) = (Tensor::new(&[2f32], &Device::Cpu)?, Tensor::new(&[10f32], &Device::Cpu)?);
/// let (mean, var) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[1f32], &Device::Cpu)?);
/// let y = functional::batch_norm2d(&x, &weight, &bias, &mean, &var, true)?;
/// let y = y.flatten_all()?.to_vec1::<f32>()?;
/// assert!((y[0] - 8.).abs() < 1e-4 && (y[1] - 12.).abs() < 1e-4);
/// // 0.9 · 0 + 0.1 · 2 and 0.9 · 1 + 0.1 · 2
/// assert!((mean.to_vec1::<f32>()?[0] - 0.2).abs() < 1e-6);
/// assert!((var.to_vec1::<f32>()?[0] - 1.1).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn batch_norm2d(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    running_mean: &Var,
    running_var: &Var,
    train: bool,
) -> Result<Tensor> {
    Expr::new(x)
        .batch_norm2d(weight, bias, running_mean, running_var, train)
        .eval()
}

/// Checks the shapes of x, weight and bias and of the running statistics; returns the channels and
/// the values a channel.
pub(crate) fn check(
    [x, weight, bias]: [&[usize]; 3],
    running: &[Var; 2],
    train: bool,
) -> Result<[usize; 2]> {
    let op = "batch_norm2d";
    let [b, h, w, channels] = args::dims4(op, "(B, H, W, C)", x)?;
    let vector = |name, v| args::vector(op, name, v, channels, "channels of x");
    vector("running_mean", running[0].dims())?;
    vector("running_var", running[1].dims())?;
    vector("weight", weight)?;
    vector("bias", bias)?;
    args::check_float(op, "running_mean", &running[0])?;
    args::check_float(op, "running_var", &running[1])?;
    let count = b * h * w;
    if train && count < 2 {
        bail!(
            "batch_norm2d: x has shape {x:?}, {count} values a channel; training needs at least 2, \
             give a larger batch"
        )
    }
    Ok([channels, count])
}

/// Moves the running mean and variance towards a batch's mean and biased variance over `count`
/// values.
pub(crate) fn update_running(
    [running_mean, running_var]: &[Var; 2],
    mean: &Tensor,
    var: &Tensor,
    count: usize,
) -> Result<()> {
    let unbiased = count as f64 / (count - 1) as f64;
    let step = |running: &Var, batch: &Tensor, scale: f64| {
        let old = (running.as_detached_tensor() * (1. - MOMENTUM))?;
        running.set(&(old + (batch.detach() * (MOMENTUM * scale))?)?)
    };
    step(running_mean, mean, 1.)?;
    step(running_var, var, unbiased)
}

/// Mean and biased variance of each of `c` channels: by blocks, each around its own mean, so that
/// nothing is lost where the mean is large.
fn statistics(x: &[f32], c: usize) -> [Vec<f32>; 2] {
    let size = BLOCK * c;
    let blocks = block_sums(x.len(), c, |i, mean, squares| {
        let x = &x[i * size..x.len().min((i + 1) * size)];
        let n = (x.len() / c) as f32;
        for row in x.chunks_exact(c) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += x);
        }
        mean.iter_mut().for_each(|m| *m /= n);
        for row in x.chunks_exact(c) {
            for ((s, m), x) in squares.iter_mut().zip(&*mean).zip(row) {
                *s += (x - m) * (x - m);
            }
        }
    });
    combine(&blocks, x.len() / c, c)
}

/// The statistics of all blocks, each given as its mean and its sum of squares around it.
fn combine(blocks: &[f32], count: usize, c: usize) -> [Vec<f32>; 2] {
    let rows = |i: usize| BLOCK.min(count - i * BLOCK) as f64;
    let blocks = || blocks.chunks_exact(2 * c).enumerate();
    let mean = |k: usize| -> f64 {
        let total: f64 = blocks().map(|(i, b)| rows(i) * f64::from(b[k])).sum();
        total / count as f64
    };
    let var = |k: usize, mean: f64| -> f64 {
        let around = |b: &[f32]| (f64::from(b[k]) - mean).powi(2);
        let total: f64 = blocks()
            .map(|(i, b)| f64::from(b[c + k]) + rows(i) * around(b))
            .sum();
        total / count as f64
    };
    let means: Vec<f64> = (0..c).map(mean).collect();
    let vars = means.iter().enumerate().map(|(k, m)| var(k, *m) as f32);
    [means.iter().map(|m| *m as f32).collect(), vars.collect()]
}

/// Two vectors of `c` for each block of x, one after the other, filled by `f(i, first, second)`.
fn block_sums(len: usize, c: usize, f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync) -> Buffer {
    let mut sums = Buffer::zeros(len.div_ceil((BLOCK * c).max(1)) * 2 * c);
    for_each_chunk(&mut sums, 2 * c, |i, sums| {
        let (first, second) = sums.split_at_mut(c);
        f(i, first, second);
    });
    sums
}

/// Batch norm, then a sum with the last input where there is a shortcut, then ReLU.
pub(crate) struct Norm {
    channels: usize,
    count: usize,
    running: [Var; 2],
    train: bool,
    shortcut: bool,
    relu: bool,
}

impl Norm {
    /// For inputs x, weight, bias of these shapes, and one more of x's where there is a shortcut.
    pub(crate) fn new(
        dims: [&[usize]; 3],
        running: &[Var; 2],
        train: bool,
        shortcut: bool,
        relu: bool,
    ) -> Result<Self> {
        let [channels, count] = check(dims, running, train)?;
        Ok(Self {
            channels,
            count,
            running: running.clone(),
            train,
            shortcut,
            relu,
        })
    }

    /// The mean and 1 / √(variance + ε) of each channel.
    fn statistics(&self, x: &[f32]) -> Result<[Vec<f32>; 2]> {
        let c = self.channels;
        let [mean, var] = if self.train {
            let batch = statistics(x, c);
            let [mean, var] = batch.each_ref().map(|v| tensor(v.clone(), c));
            update_running(&self.running, &mean?, &var?, self.count)?;
            batch
        } else {
            [self.running[0].to_vec1()?, self.running[1].to_vec1()?]
        };
        let inv_std = var.iter().map(|v| 1. / (v + EPS as f32).sqrt()).collect();
        Ok([mean, inv_std])
    }
}

/// weight · inv_std
fn scale(weight: &[f32], inv_std: &[f32]) -> Vec<f32> {
    weight.iter().zip(inv_std).map(|(w, s)| w * s).collect()
}

/// What batch norm makes of one value; the same to the bit wherever it is computed.
#[inline(always)]
fn normalized(x: f32, mean: f32, scale: f32, bias: f32) -> f32 {
    (x - mean) * scale + bias
}

impl Operation for Norm {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], keep: bool) -> Result<Vec<Buffer>> {
        let [mean, inv_std] = self.statistics(x[0])?;
        let (c, scale, bias) = (self.channels, scale(x[1], &inv_std), x[2]);
        let size = BLOCK * c;
        for_each_chunk(y, size, |i, y| {
            let rows = x[0][i * size..].chunks_exact(c);
            let y = y.chunks_exact_mut(c);
            match x.get(3) {
                None => y.zip(rows).for_each(|(y, x)| {
                    let values = x.iter().zip(&mean).zip(&scale).zip(bias);
                    for (y, (((x, mean), scale), bias)) in y.iter_mut().zip(values) {
                        let v = normalized(*x, *mean, *scale, *bias);
                        *y = if self.relu { positive(v) } else { v };
                    }
                }),
                Some(other) => {
                    let others = other[i * size..].chunks_exact(c);
                    y.zip(rows).zip(others).for_each(|((y, x), other)| {
                        let values = x.iter().zip(&mean).zip(&scale).zip(bias).zip(other);
                        for (y, ((((x, mean), scale), bias), other)) in y.iter_mut().zip(values) {
                            let v = normalized(*x, *mean, *scale, *bias) + other;
                            *y = if self.relu { positive(v) } else { v };
                        }
                    });
                }
            }
        });
        Ok(match keep {
            true => [mean, inv_std].map(|v| Buffer::copy_of(&v)).into(),
            false => vec![],
        })
    }

    fn backward(&self, at: At<'_>, mut dy: Buffer, dx: &mut [Grad<'_>]) {
        let (mean, inv_std) = (&at.kept[0], &at.kept[1]);
        let scale = scale(at.x[1], inv_std);
        let channels = Channels {
            mean,
            scale: &scale,
            bias: at.x[2],
        };
        let masked = self.relu && self.shortcut;
        if masked {
            // the shortcut's gradient is the masked one
            crate::activation::mask_all(at.y, &mut dy);
        }
        let relu = self.relu && !self.shortcut;
        let [dw, db] = channels.sums(at.x[0], &dy, relu);
        let dw: Vec<f32> = dw
            .iter()
            .zip(&inv_std[..])
            .map(|(v, s)| (v * f64::from(*s)) as f32)
            .collect();
        let db: Vec<f32> = db.iter().map(|v| *v as f32).collect();
        if dx[0].wanted() {
            // what a shift and a stretch of x would have changed through the statistics
            let per_value = if self.train {
                1. / self.count as f32
            } else {
                0.
            };
            let shift: Vec<f32> = db.iter().map(|db| db * per_value).collect();
            let stretch: Vec<f32> = dw
                .iter()
                .zip(&inv_std[..])
                .map(|(dw, s)| dw * s * per_value)
                .collect();
            if self.shortcut && dx[3].wanted() {
                let mut dz = Buffer::new(dy.len());
                channels.dx(at.x[0], &mut dy, &mut dz, &shift, &stretch);
                dx[0].give(dz);
            } else {
                channels.dx_in_place(at.x[0], &mut dy, relu, &shift, &stretch);
                dx[0].give(std::mem::take(&mut dy));
            }
        }
        dx[1].put(dw.into_iter());
        dx[2].put(db.into_iter());
        if let Some(other) = dx.get_mut(3).filter(|other| other.wanted()) {
            other.give(dy);
        }
    }
}

/// What each channel is normalized with.
struct Channels<'a> {
    mean: &'a [f32],
    scale: &'a [f32],
    bias: &'a [f32],
}

impl Channels<'_> {
    /// For each channel the sums of dy · (x − mean) and of dy, which counts as zero where ReLU had
    /// cut the value off.
    fn sums(&self, x: &[f32], dy: &[f32], relu: bool) -> [Vec<f64>; 2] {
        let (c, size) = (self.mean.len(), BLOCK * self.mean.len());
        let blocks = block_sums(x.len(), c, |i, dw, db| {
            let end = x.len().min((i + 1) * size);
            let (x, dy) = (&x[i * size..end], &dy[i * size..end]);
            for (x, dy) in x.chunks_exact(c).zip(dy.chunks_exact(c)) {
                let channels = self.mean.iter().zip(self.scale).zip(self.bias);
                let sums = dw.iter_mut().zip(&mut *db);
                for (((dw, db), ((mean, scale), bias)), (x, dy)) in
                    sums.zip(channels).zip(x.iter().zip(dy))
                {
                    let cut = relu && normalized(*x, *mean, *scale, *bias) <= 0.;
                    let dy = if cut { 0. } else { *dy };
                    *dw += dy * (x - mean);
                    *db += dy;
                }
            }
        });
        let total = |k: usize| {
            blocks[k..]
                .iter()
                .step_by(2 * c)
                .map(|v| f64::from(*v))
                .sum()
        };
        [(0..c).map(total).collect(), (c..2 * c).map(total).collect()]
    }

    /// The gradient of x, beside the one of y.
    fn dx(&self, x: &[f32], dy: &mut [f32], dx: &mut [f32], shift: &[f32], stretch: &[f32]) {
        let (c, size) = (self.mean.len(), BLOCK * self.mean.len());
        for_each_chunk_of_two((dx, size), (dy, size), |i, dx, dy| {
            let rows = x[i * size..].chunks_exact(c).zip(dy.chunks_exact(c));
            for (dx, (x, dy)) in dx.chunks_exact_mut(c).zip(rows) {
                let channels = self.mean.iter().zip(self.scale).zip(shift).zip(stretch);
                for (dx, ((x, dy), (((mean, scale), shift), stretch))) in
                    dx.iter_mut().zip(x.iter().zip(dy).zip(channels))
                {
                    *dx = scale * (dy - shift - (x - mean) * stretch);
                }
            }
        });
    }

    /// The gradient of x, over the one of y.
    fn dx_in_place(&self, x: &[f32], dy: &mut [f32], relu: bool, shift: &[f32], stretch: &[f32]) {
        let (c, size) = (self.mean.len(), BLOCK * self.mean.len());
        for_each_chunk(dy, size, |i, dy| {
            for (dy, x) in dy.chunks_exact_mut(c).zip(x[i * size..].chunks_exact(c)) {
                let channels = self
                    .mean
                    .iter()
                    .zip(self.scale)
                    .zip(self.bias)
                    .zip(shift)
                    .zip(stretch);
                for (dy, (x, ((((mean, scale), bias), shift), stretch))) in
                    dy.iter_mut().zip(x.iter().zip(channels))
                {
                    let cut = relu && normalized(*x, *mean, *scale, *bias) <= 0.;
                    let d = if cut { 0. } else { *dy };
                    *dy = scale * (d - shift - (x - mean) * stretch);
                }
            }
        });
    }
}
