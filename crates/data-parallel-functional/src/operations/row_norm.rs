//! Normalization of rows: layer normalization, and division by the root of the mean square.

use crate::cpu::activation::inlined;
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

/// Added to the variance, against a division by zero for a row of equal numbers; PyTorch's.
const EPS: f32 = 1e-5;

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
        let parameters = [("weight", weight), ("bias", bias)];
        RowNorm::<true>::of("layer_norm", self, &parameters, eps)
    }

    /// Divides the last dimension by the root of its mean square, then scales it with `weight` (C,):
    /// x / √(mean(x²) + eps) · weight, of any shape (…, C). In PyTorch: `nn.RMSNorm`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[[1f32, 7.]], &Device::Cpu)?; // the mean square is 25
    /// let weight = Tensor::new(&[1f32, 10.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.rms_norm(&weight, 0.)?.eval()?.to_vec2::<f32>()?, [[0.2, 14.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, the sizes do not match, or `eps` is negative or no finite number.
    pub fn rms_norm(&self, weight: &Tensor, eps: f32) -> Result<Self> {
        RowNorm::<false>::of("rms_norm", self, &[("weight", weight)], eps)
    }
}

/// Normalization of rows of `features` features. If it is `CENTERED`, it is around their mean, and a bias follows.
#[derive(Debug, Clone, Copy)]
struct RowNorm<const CENTERED: bool> {
    features: usize,
    eps: f32,
}

impl<const CENTERED: bool> RowNorm<CENTERED> {
    fn of(name: &str, x: &Value, parameters: &[(&str, &Tensor)], eps: f32) -> Result<Value> {
        args::eps(name, eps)?;
        let dims = x.dims();
        let Some(features) = dims.last().copied().filter(|features| *features > 0) else {
            bail!("{name}: x has shape {dims:?}, expected (…, C)")
        };
        for (of, tensor) in parameters {
            args::vector(name, of, tensor.dims(), features, "features of x")?;
        }
        x.self_contained(name, Self { features, eps }, parameters, dims)
    }
}

impl<const CENTERED: bool> SelfContained for RowNorm<CENTERED> {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let centered = if CENTERED {
            x[0].broadcast_sub(&x[0].mean_keepdim(D::Minus1)?)?
        } else {
            x[0].clone()
        };
        let square = centered.sqr()?.mean_keepdim(D::Minus1)?;
        let normal = centered.broadcast_div(&(square + f64::from(self.eps))?.sqrt()?)?;
        let scaled = normal.broadcast_mul(&x[1])?;
        if CENTERED {
            scaled.broadcast_add(&x[2])
        } else {
            Ok(scaled)
        }
    }
}

/// The mean of `f(k)` for each `k` below `n`.
#[inline(always)]
fn mean_of(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    sum(n, f) / n as f32
}

impl<const CENTERED: bool> Kernel<Cpu> for RowNorm<CENTERED> {
    /// Saves the mean, or 0, and 1 / √(mean square + ε) of each row.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let c = self.features;
        let weight = x[1];
        let bias = if CENTERED { x[2] } else { &[] };
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
                    let mean = if CENTERED {
                        mean_of(c, inlined!(|k| x[k]))
                    } else {
                        0.
                    };
                    let square = mean_of(c, inlined!(|k| (x[k] - mean) * (x[k] - mean)));
                    let scale = 1. / (square + self.eps).sqrt();
                    for k in 0..c {
                        let scaled = (x[k] - mean) * scale * weight[k];
                        y[k] = if CENTERED { scaled + bias[k] } else { scaled };
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
        let parameters = if CENTERED { 2 * c } else { c };
        let mut sums = Buffer::zeros(dy.len().div_ceil(BLOCK * c) * parameters);
        for_each_chunk_with(
            &mut dy,
            BLOCK * c,
            [(&mut sums, parameters)],
            #[inline(always)]
            |i, dy, [sums]| {
                let (dw, db) = sums.split_at_mut(c);
                let x = x[i * BLOCK * c..].chunks_exact(c);
                let rows = dy.chunks_exact_mut(c).zip(x);
                let statistics = at.saved[0][i * BLOCK * 2..].chunks_exact(2);
                for ((dy, x), of_row) in rows.zip(statistics) {
                    let mean = if CENTERED { of_row[0] } else { 0. };
                    let scale = of_row[1];
                    for k in 0..c {
                        dw[k] += dy[k] * (x[k] - mean) * scale;
                        if CENTERED {
                            db[k] += dy[k];
                        }
                        dy[k] *= weight[k];
                    }
                    let shift = if CENTERED {
                        mean_of(c, inlined!(|k| dy[k]))
                    } else {
                        0.
                    };
                    let along = mean_of(c, inlined!(|k| dy[k] * (x[k] - mean)));
                    for k in 0..c {
                        dy[k] = scale * (dy[k] - shift - (x[k] - mean) * scale * scale * along);
                    }
                }
            },
        );
        let total = sum_of_chunks(&sums, parameters);
        for (dx, total) in dx[1..].iter_mut().zip(total.chunks_exact(c)) {
            dx.put(total.iter().copied());
        }
        dx[0].give(dy);
        Ok(())
    }
}
