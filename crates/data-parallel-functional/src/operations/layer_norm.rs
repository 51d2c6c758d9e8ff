//! Layer normalization.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::sum;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::sum_of_chunks;
use crate::cpu::threads::for_each_chunk_with;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{D, Result, Tensor, bail};

/// Rows of a block, of which the gradients of weight and bias are added up together.
const BLOCK: usize = 64;

impl Value {
    /// Normalizes the last dimension, then scales it with `weight` and shifts it by `bias`, both (C,):
    /// (x − mean) / √(var + 1e-5) · weight + bias, of any shape (…, C). In PyTorch: `nn.LayerNorm`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[[10f32, 30.]], &Device::Cpu)?;
    /// let (weight, bias) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[0f32, 5.], &Device::Cpu)?);
    /// let y = Value::new(&x)?.layer_norm(&weight, &bias)?.eval()?.to_vec2::<f32>()?;
    /// assert!((y[0][0] + 1.).abs() < 1e-6 && (y[0][1] - 7.).abs() < 1e-6);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, or the sizes do not match.
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor) -> Result<Self> {
        self.layer_norm_eps(weight, bias, EPS)
    }

    /// [`layer_norm`](Self::layer_norm) with another number than 1e-5 under the root, such as 1e-12 for BERT.
    ///
    /// # Errors
    /// As [`layer_norm`](Self::layer_norm); or where `eps` is negative or no finite number.
    pub fn layer_norm_eps(&self, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Self> {
        args::eps("layer_norm", eps)?;
        let op = LayerNorm::new([self.dims(), weight.dims(), bias.dims()], eps)?;
        let others = [("weight", weight), ("bias", bias)];
        self.self_contained("layer_norm", op, &others, self.dims())
    }
}

/// Normalization of rows of `features` features.
#[derive(Debug, Clone, Copy)]
struct LayerNorm {
    features: usize,
    eps: f32,
}

/// Added to the variance, against a division by zero for a row of equal numbers; PyTorch's.
const EPS: f32 = 1e-5;

impl LayerNorm {
    /// From the shapes of x (…, C), weight and bias (C,).
    fn new([x, weight, bias]: [&[usize]; 3], eps: f32) -> Result<Self> {
        let Some(features) = x.last().copied().filter(|features| *features > 0) else {
            bail!("layer_norm: x has shape {x:?}, expected (…, C)")
        };
        args::vector("layer_norm", "weight", weight, features, "features of x")?;
        args::vector("layer_norm", "bias", bias, features, "features of x")?;
        Ok(Self { features, eps })
    }
}

impl SelfContained for LayerNorm {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let centered = x[0].broadcast_sub(&x[0].mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let y = centered.broadcast_div(&(variance + f64::from(self.eps))?.sqrt()?)?;
        y.broadcast_mul(&x[1])?.broadcast_add(&x[2])
    }
}

impl Kernel<Cpu> for LayerNorm {
    /// Saves the mean and 1 / √(variance + ε) of each row.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let c = self.features;
        let weight = x[1];
        let bias = x[2];
        let mut statistics = Buffer::new(y.len() / c * 2);
        for_each_chunk_with(
            y,
            BLOCK * c,
            [(&mut statistics, BLOCK * 2)],
            #[inline(always)]
            |i, y, [statistics]| {
                let x = x[0][i * BLOCK * c..].chunks_exact(c);
                let rows = y.chunks_exact_mut(c).zip(x);
                for ((y, x), of_row) in rows.zip(statistics.chunks_exact_mut(2)) {
                    let mean = sum(
                        c,
                        #[inline(always)]
                        |k| x[k],
                    ) / c as f32;
                    let squares = sum(
                        c,
                        #[inline(always)]
                        |k| (x[k] - mean) * (x[k] - mean),
                    );
                    let scale = 1. / (squares / c as f32 + self.eps).sqrt();
                    for k in 0..c {
                        y[k] = (x[k] - mean) * scale * weight[k] + bias[k];
                    }
                    of_row.copy_from_slice(&[mean, scale]);
                }
            },
        );
        Ok(vec![statistics])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let c = self.features;
        let x = at.x[0];
        let weight = at.x[1];
        let mut sums = Buffer::zeros(dy.len().div_ceil(BLOCK * c) * 2 * c);
        for_each_chunk_with(
            &mut dy,
            BLOCK * c,
            [(&mut sums, 2 * c)],
            #[inline(always)]
            |i, dy, [sums]| {
                let (dw, db) = sums.split_at_mut(c);
                let x = x[i * BLOCK * c..].chunks_exact(c);
                let rows = dy.chunks_exact_mut(c).zip(x);
                let statistics = at.saved[0][i * BLOCK * 2..].chunks_exact(2);
                for ((dy, x), of_row) in rows.zip(statistics) {
                    let mean = of_row[0];
                    let scale = of_row[1];
                    for k in 0..c {
                        dw[k] += dy[k] * (x[k] - mean) * scale;
                        db[k] += dy[k];
                        dy[k] *= weight[k];
                    }
                    let shift = sum(
                        c,
                        #[inline(always)]
                        |k| dy[k],
                    ) / c as f32;
                    let along = sum(
                        c,
                        #[inline(always)]
                        |k| dy[k] * (x[k] - mean),
                    ) / c as f32;
                    for k in 0..c {
                        dy[k] = scale * (dy[k] - shift - (x[k] - mean) * scale * scale * along);
                    }
                }
            },
        );
        let total = sum_of_chunks(&sums, 2 * c);
        dx[1].put(total[..c].iter().copied());
        dx[2].put(total[c..].iter().copied());
        dx[0].give(dy);
        Ok(())
    }
}
