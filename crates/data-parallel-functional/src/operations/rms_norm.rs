//! Normalization by the root of the mean square.

use crate::cpu::buffer::Buffer;
use crate::cpu::exp::sum;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::sum_of_chunks;
use crate::cpu::threads::for_each_chunk_with;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{D, Result, Tensor, bail};

/// Rows of a block, of which the gradients of the weight are added up together.
const BLOCK: usize = 64;

impl Value {
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
        args::eps("rms_norm", eps)?;
        let x = self.dims();
        let Some(features) = x.last().copied().filter(|features| *features > 0) else {
            bail!("rms_norm: x has shape {x:?}, expected (…, C)")
        };
        args::vector(
            "rms_norm",
            "weight",
            weight.dims(),
            features,
            "features of x",
        )?;
        let op = RmsNorm { features, eps };
        self.self_contained("rms_norm", op, &[("weight", weight)], x)
    }
}

/// Normalization of rows of `features` features.
#[derive(Debug, Clone, Copy)]
struct RmsNorm {
    features: usize,
    eps: f32,
}

impl SelfContained for RmsNorm {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        let square = x[0].sqr()?.mean_keepdim(D::Minus1)?;
        let y = x[0].broadcast_div(&(square + f64::from(self.eps))?.sqrt()?)?;
        y.broadcast_mul(&x[1])
    }
}

impl Kernel<Cpu> for RmsNorm {
    /// Saves 1 / √(mean square + ε) of each row.
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let c = self.features;
        let weight = x[1];
        let mut scales = Buffer::new(y.len() / c);
        for_each_chunk_with(
            y,
            BLOCK * c,
            [(&mut scales, BLOCK)],
            #[inline(always)]
            |i, y, [scales]| {
                let x = x[0][i * BLOCK * c..].chunks_exact(c);
                for ((y, x), scale) in y.chunks_exact_mut(c).zip(x).zip(scales) {
                    let squares = sum(
                        c,
                        #[inline(always)]
                        |k| x[k] * x[k],
                    );
                    *scale = 1. / (squares / c as f32 + self.eps).sqrt();
                    for k in 0..c {
                        y[k] = x[k] * *scale * weight[k];
                    }
                }
            },
        );
        Ok(vec![scales])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        let c = self.features;
        let x = at.x[0];
        let weight = at.x[1];
        let mut sums = Buffer::zeros(dy.len().div_ceil(BLOCK * c) * c);
        for_each_chunk_with(
            &mut dy,
            BLOCK * c,
            [(&mut sums, c)],
            #[inline(always)]
            |i, dy, [dw]| {
                let x = x[i * BLOCK * c..].chunks_exact(c);
                let rows = dy.chunks_exact_mut(c).zip(x);
                for ((dy, x), scale) in rows.zip(&at.saved[0][i * BLOCK..]) {
                    for k in 0..c {
                        dw[k] += dy[k] * x[k] * scale;
                        dy[k] *= weight[k];
                    }
                    let along = sum(
                        c,
                        #[inline(always)]
                        |k| dy[k] * x[k],
                    ) / c as f32;
                    for k in 0..c {
                        dy[k] = scale * (dy[k] - x[k] * scale * scale * along);
                    }
                }
            },
        );
        dx[1].put(sum_of_chunks(&sums, c).into_iter());
        dx[0].give(dy);
        Ok(())
    }
}
