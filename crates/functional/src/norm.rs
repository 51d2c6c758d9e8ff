//! Batch normalization on the CPU, over all but the last dimension. It keeps no statistics of its
//! own: the running ones belong to the caller, and only training mode changes them.

use crate::storage::{read, slice, tensor};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, Var, bail};

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
    if !x.device().is_cpu() {
        return plain::batch_norm2d(x, weight, bias, running_mean, running_var, train);
    }
    let running = [running_mean, running_var];
    let args = Arguments::new(x, weight, bias, running, train)?;
    let (x, c) = (args.x.contiguous()?, args.channels);
    let [mean, var] = if train {
        let batch = read([&x], |[x]| statistics(x, c))?;
        let [mean, var] = batch.each_ref().map(|v| tensor(v.clone(), c));
        update_running(running, &mean?, &var?, args.count)?;
        batch
    } else {
        [running_mean.to_vec1()?, running_var.to_vec1()?]
    };
    let inv_std = var.iter().map(|v| 1. / (v + EPS as f32).sqrt()).collect();
    let op = Normalize {
        mean,
        inv_std,
        train,
    };
    x.apply_op3(&args.weight.contiguous()?, &args.bias.contiguous()?, op)
}

/// What [`batch_norm2d`] and its plain twin were given, checked.
pub(crate) struct Arguments {
    pub(crate) x: Tensor,
    pub(crate) weight: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) channels: usize,
    /// Values a channel.
    pub(crate) count: usize,
}

impl Arguments {
    pub(crate) fn new(
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        running: [&Var; 2],
        train: bool,
    ) -> Result<Self> {
        let op = "batch_norm2d";
        let x = args::float(op, "x", x)?;
        let [b, h, w, channels] = args::dims4(op, "(B, H, W, C)", &x)?;
        let vector = |name, v| {
            args::vector(op, name, v, channels, "channels of x")?;
            args::float(op, name, v)
        };
        vector("running_mean", running[0])?;
        vector("running_var", running[1])?;
        let count = b * h * w;
        if train && count < 2 {
            bail!(
                "batch_norm2d: x has shape {:?}, {count} values a channel; training needs at least \
                 2, give a larger batch",
                x.dims()
            )
        }
        Ok(Self {
            x,
            weight: vector("weight", weight)?,
            bias: vector("bias", bias)?,
            channels,
            count,
        })
    }
}

/// Moves the running mean and variance towards a batch's mean and biased variance over `count`
/// values.
pub(crate) fn update_running(
    [running_mean, running_var]: [&Var; 2],
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
    let blocks = block_sums(x, c, |i, mean, squares| {
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
fn block_sums(x: &[f32], c: usize, f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync) -> Vec<f32> {
    let mut sums = vec![0.; x.len().div_ceil((BLOCK * c).max(1)) * 2 * c];
    for_each_chunk(&mut sums, 2 * c, |i, sums| {
        let (first, second) = sums.split_at_mut(c);
        f(i, first, second);
    });
    sums
}

/// (x − mean) · inv_std · weight + bias, with statistics fixed before.
struct Normalize {
    mean: Vec<f32>,
    inv_std: Vec<f32>,
    /// Whether the statistics came from x, and so depend on it.
    train: bool,
}

impl Normalize {
    fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let c = weight.len();
        let scale: Vec<f32> = weight
            .iter()
            .zip(&self.inv_std)
            .map(|(w, s)| w * s)
            .collect();
        let mut y = vec![0.; x.len()];
        for_each_chunk(&mut y, BLOCK * c, |i, y| {
            let rows = x[i * BLOCK * c..].chunks_exact(c);
            for (y, x) in y.chunks_exact_mut(c).zip(rows) {
                let channels = x.iter().zip(&self.mean).zip(&scale).zip(bias);
                for (y, (((x, mean), scale), bias)) in y.iter_mut().zip(channels) {
                    *y = (x - mean) * scale + bias;
                }
            }
        });
        y
    }

    /// The gradients of weight and bias: sums over dy · (x − mean) · inv_std, and over dy.
    fn dw_db(&self, x: &[f32], dy: &[f32]) -> [Vec<f32>; 2] {
        let (c, size) = (self.mean.len(), BLOCK * self.mean.len());
        let blocks = block_sums(x, c, |i, dw, db| {
            let end = x.len().min((i + 1) * size);
            let (x, dy) = (&x[i * size..end], &dy[i * size..end]);
            for (x, dy) in x.chunks_exact(c).zip(dy.chunks_exact(c)) {
                let sums = dw.iter_mut().zip(&mut *db);
                for (((dw, db), (x, mean)), dy) in sums.zip(x.iter().zip(&self.mean)).zip(dy) {
                    *dw += dy * (x - mean);
                    *db += dy;
                }
            }
        });
        let total = |k: usize| -> f64 {
            blocks[k..]
                .iter()
                .step_by(2 * c)
                .map(|v| f64::from(*v))
                .sum()
        };
        let dw = self
            .inv_std
            .iter()
            .enumerate()
            .map(|(k, s)| (total(k) * f64::from(*s)) as f32);
        [dw.collect(), (c..2 * c).map(|k| total(k) as f32).collect()]
    }

    fn dx(&self, x: &[f32], weight: &[f32], dy: &[f32], dw: &[f32], db: &[f32]) -> Vec<f32> {
        let c = weight.len();
        let per_value = if self.train {
            c as f32 / x.len() as f32
        } else {
            0.
        };
        let scale: Vec<f32> = weight
            .iter()
            .zip(&self.inv_std)
            .map(|(w, s)| w * s)
            .collect();
        // what a shift and a stretch of x would have changed through the statistics
        let shift: Vec<f32> = db.iter().map(|db| db * per_value).collect();
        let stretch: Vec<f32> = dw
            .iter()
            .zip(&self.inv_std)
            .map(|(dw, s)| dw * s * per_value)
            .collect();
        let mut dx = vec![0.; x.len()];
        for_each_chunk(&mut dx, BLOCK * c, |i, dx| {
            let start = i * BLOCK * c;
            let rows = x[start..].chunks_exact(c).zip(dy[start..].chunks_exact(c));
            for (dx, (x, dy)) in dx.chunks_exact_mut(c).zip(rows) {
                let channels = scale.iter().zip(&shift).zip(&stretch).zip(&self.mean);
                let values = x.iter().zip(dy).zip(channels);
                for (dx, ((x, dy), (((scale, shift), stretch), mean))) in dx.iter_mut().zip(values)
                {
                    *dx = scale * (dy - shift - (x - mean) * stretch);
                }
            }
        });
        dx
    }
}

impl CustomOp3 for Normalize {
    fn name(&self) -> &'static str {
        "batch-norm2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (weight, bias) = (slice(weight, weight_layout)?, slice(bias, bias_layout)?);
        let y = self.forward(slice(x, x_layout)?, weight, bias);
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let ([dw, db], dx) = read([x, weight, dy], |[xs, weight, dy]| {
            let [dw, db] = self.dw_db(xs, dy);
            let dx = x.track_op().then(|| self.dx(xs, weight, dy, &dw, &db));
            ([dw, db], dx)
        })?;
        let tracked =
            |t: &Tensor, g: Vec<f32>| t.track_op().then(|| tensor(g, t.shape())).transpose();
        Ok((
            dx.map(|dx| tensor(dx, x.shape())).transpose()?,
            tracked(weight, dw)?,
            tracked(bias, db)?,
        ))
    }
}
