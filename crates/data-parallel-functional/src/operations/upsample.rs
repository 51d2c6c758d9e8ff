//! Images of another size: each output is a weighted mean of pixels, first of rows, then of columns.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::add_scaled;
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::args;
use crate::graph::value::Value;
use crate::kernel::{Cpu, Kernel, SelfContained};
use candle_core::{Result, Tensor, bail};

impl Value {
    /// Images of `height` × `width` pixels, each of which is the nearest one in x: (B, H, W, C) → (B, height, width, C). In
    /// PyTorch: `F.interpolate(…, size=(height, width), mode="nearest")`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
    /// let y = Value::new(&x)?.upsample_nearest2d(1, 5)?.eval()?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 1., 1., 2., 2.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or not 4-d, or one of both images has no pixel.
    pub fn upsample_nearest2d(&self, height: usize, width: usize) -> Result<Self> {
        self.resampled("upsample_nearest2d", [height, width], Axis::nearest)
    }

    /// Images of `height` × `width` pixels, between those of x: (B, H, W, C) → (B, height, width, C). In PyTorch:
    /// `F.interpolate(…, size=(height, width), mode="bilinear", align_corners=False)`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[0f32, 4.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
    /// let y = Value::new(&x)?.upsample_bilinear2d(1, 4)?.eval()?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [0., 1., 3., 4.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or not 4-d, or one of both images has no pixel.
    pub fn upsample_bilinear2d(&self, height: usize, width: usize) -> Result<Self> {
        self.resampled("upsample_bilinear2d", [height, width], Axis::linear)
    }

    fn resampled(
        &self,
        name: &str,
        [height, width]: [usize; 2],
        axis: fn(usize, usize) -> Axis,
    ) -> Result<Self> {
        let [b, h, w, c] = args::dims4(name, "(B, H, W, C)", self.dims())?;
        if [h, w, height, width].contains(&0) {
            bail!("{name}: from {h} × {w} to {height} × {width} pixels, expected at least one")
        }
        let op = Resampling {
            rows: axis(h, height),
            columns: axis(w, width),
            channels: c,
        };
        self.self_contained(name, op, &[], &[b, height, width, c])
    }
}

/// The part of one pixel that is in another one.
#[derive(Debug, Clone, Copy)]
struct Share {
    from: usize,
    weight: f32,
}

/// For each output along an axis, the shares of all pixels that are in it.
#[derive(Debug, Clone)]
struct Axis {
    sources: usize,
    outputs: Vec<Vec<Share>>,
}

impl Axis {
    /// PyTorch's choice, with its rounding.
    fn nearest(sources: usize, outputs: usize) -> Self {
        let scale = sources as f32 / outputs as f32;
        let shares = |output: usize| {
            let from = ((output as f32 * scale) as usize).min(sources - 1);
            vec![Share { from, weight: 1. }]
        };
        Self {
            sources,
            outputs: (0..outputs).map(shares).collect(),
        }
    }

    /// Two pixels side by side. In front of the middle of the first one and behind that of the last one nothing changes.
    fn linear(sources: usize, outputs: usize) -> Self {
        let scale = sources as f32 / outputs as f32;
        let shares = |output: usize| {
            let place = ((output as f32 + 0.5) * scale - 0.5).max(0.);
            let from = (place as usize).min(sources - 1);
            let weight = (place - from as f32).clamp(0., 1.);
            let first = Share {
                from,
                weight: 1. - weight,
            };
            let second = Share {
                from: (from + 1).min(sources - 1),
                weight,
            };
            vec![first, second]
        };
        Self {
            sources,
            outputs: (0..outputs).map(shares).collect(),
        }
    }

    /// For each pixel, the outputs that it is in.
    fn transposed(&self) -> Self {
        let mut outputs = vec![vec![]; self.sources];
        for (output, shares) in self.outputs.iter().enumerate() {
            for share in shares {
                outputs[share.from].push(Share {
                    from: output,
                    weight: share.weight,
                });
            }
        }
        Self {
            sources: self.outputs.len(),
            outputs,
        }
    }

    /// Along a dimension of x.
    fn with_candle(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let count = self.outputs.len();
        let mut shape = vec![1; x.rank()];
        shape[dim] = count;
        let part = |n: usize| {
            let from = self.outputs.iter().map(|shares| shares[n].from as u32);
            let weights = self.outputs.iter().map(|shares| shares[n].weight);
            let from = Tensor::from_iter(from, x.device())?;
            let weights = Tensor::from_iter(weights, x.device())?.reshape(&shape[..])?;
            x.index_select(&from, dim)?.broadcast_mul(&weights)
        };
        let mut sum = part(0)?;
        for n in 1..self.outputs[0].len() {
            sum = (sum + part(n)?)?;
        }
        Ok(sum)
    }
}

/// Weighted means of rows, and of columns.
#[derive(Debug, Clone)]
struct Resampling {
    rows: Axis,
    columns: Axis,
    channels: usize,
}

impl SelfContained for Resampling {
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor> {
        self.columns
            .with_candle(&self.rows.with_candle(&x[0], 1)?, 2)
    }
}

impl Kernel<Cpu> for Resampling {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        self.compute(x[0], y, false);
        Ok(vec![])
    }

    /// Each pixel gets its shares of the outputs' gradients.
    fn backward(&self, _: &Pass, _: At<'_, '_>, dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            let back = Self {
                rows: self.rows.transposed(),
                columns: self.columns.transposed(),
                channels: self.channels,
            };
            back.compute(&dy, to, add);
        }
        Ok(())
    }
}

impl Resampling {
    fn compute(&self, x: &[f32], y: &mut [f32], add: bool) {
        let c = self.channels;
        let line = self.columns.sources * c;
        let height = self.rows.outputs.len();
        for_each_chunk(
            y,
            self.columns.outputs.len() * c,
            #[inline(always)]
            |i, y| {
                let image = &x[i / height * self.rows.sources * line..];
                let mut row = vec![0.; line];
                for share in &self.rows.outputs[i % height] {
                    add_scaled(&mut row, &image[share.from * line..], share.weight);
                }
                if !add {
                    y.fill(0.);
                }
                for (y, shares) in y.chunks_exact_mut(c).zip(&self.columns.outputs) {
                    for share in shares {
                        add_scaled(y, &row[share.from * c..], share.weight);
                    }
                }
            },
        );
    }
}
