//! The convolution of images with one channel, with ReLU and 2 × 2 pooling, in one step: LeNet's first layer. Its
//! output is pooled window by window in registers, and backward computes it again. It knows the kernels 3 × 3 and
//! 5 × 5, stride 1 and no padding.

mod windows;

use crate::cpu::activation::positive;
use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::{SUMS, sum_of_chunks};
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::{Aligned, VECTOR};
use crate::descriptors::convolution::{Convolution, Geometry};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;
use devices::dispatch;
use pulp::{Simd, WithSimd};
use windows::{Sample, Weights};

/// Samples that one task of the forward pass takes.
const BLOCK: usize = 8;

pub(crate) struct OneChannel {
    g: Geometry,
}

impl OneChannel {
    /// None where another algorithm has to do it.
    pub(crate) fn new(op: &Convolution) -> Option<Self> {
        let g = op.geometry;
        let small = matches!(g.square_kernel(), Some(3 | 5));
        let known = (g.channels, g.stride, g.padding) == (1, 1, 0) && op.relu && op.pool == 2;
        (small && known && !op.pooled().contains(&0)).then_some(Self { g })
    }

    /// Floats of a line of y.
    fn y_line(&self) -> usize {
        self.g.out_width / 2 * self.g.out_channels
    }

    fn y_sample(&self) -> usize {
        self.g.out_height / 2 * self.y_line()
    }

    fn sample<'a>(&self, x: &'a [f32], weights: &'a Weights, i: usize) -> Sample<'a> {
        Sample {
            x: &x[i * self.g.sample()..][..self.g.sample()],
            weights,
            width: self.g.width,
            kernel: self.g.kernel_height,
            channels: self.g.out_channels,
            y_line: self.y_line(),
        }
    }

    /// The gradient of the images, by im2col: usual training does not need it.
    fn image_gradient(&self, x: &[&[f32]], dy: &[f32], to: &mut [f32], add: bool) {
        let g = &self.g;
        let channels = g.out_channels;
        let line = g.out_width * channels;
        let mut dz = Buffer::new(g.lines() * line);
        g.forward(x[0], x[1], x.get(2).copied(), false, &mut dz);
        for_each_chunk(&mut dz, line, |i, dz| {
            let sample = i / g.out_height;
            let row = i % g.out_height / 2;
            let of_sample = &dy[sample * self.y_sample()..][..self.y_sample()];
            let of_line = of_sample.get(row * self.y_line()..).unwrap_or_default();
            for (column, pixel) in dz.chunks_exact_mut(channels).enumerate() {
                // no window covers the last pixels of odd sizes
                let is_seen = column / 2 < g.out_width / 2 && !of_line.is_empty();
                for (c, z) in pixel.iter_mut().enumerate() {
                    *z = if is_seen && positive(*z) != 0. {
                        of_line[column / 2 * channels + c] / 4.
                    } else {
                        0.
                    };
                }
            }
        });
        g.backward_x(x[1], &dz, to, add);
    }
}

impl Kernel<Cpu> for OneChannel {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        dispatch(Forward {
            layer: self,
            x: x[0],
            weight: x[1],
            bias: x.get(2).copied(),
            y,
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            self.image_gradient(at.x, &dy, to, add);
        }
        let sums = dispatch(WeightGradient {
            layer: self,
            x: at.x[0],
            weight: at.x[1],
            bias: at.x.get(2).copied(),
            dy: &dy,
        });
        let taps = self.g.taps();
        let outputs = self.g.out_channels;
        // from rows of taps to the weight's order, (O, 1, KH, KW)
        dx[1].put((0..outputs * taps).map(|i| {
            let output = i / taps;
            let tap = i % taps;
            sums.all[tap * sums.wide + output]
        }));
        if let Some(db) = dx.get_mut(2) {
            db.put(sums.all[sums.bias..][..outputs].iter().copied());
        }
        Ok(())
    }
}

/// The gradients of weight and bias, added up: for each tap a row of `wide` channels, then the bias.
struct Sums {
    all: Vec<f32>,
    wide: usize,
    /// Where the bias begins.
    bias: usize,
}

struct Forward<'a> {
    layer: &'a OneChannel,
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    fn with_simd<S: Simd>(self, simd: S) {
        let layer = self.layer;
        let weights = Weights::new::<S>(&layer.g, self.weight, self.bias);
        for_each_chunk(self.y, BLOCK * layer.y_sample(), |i, y| {
            for (j, y) in y.chunks_exact_mut(layer.y_sample()).enumerate() {
                let sample = layer.sample(self.x, &weights, i * BLOCK + j);
                simd.vectorize(windows::Forward { sample, y });
            }
        });
    }
}

struct WeightGradient<'a> {
    layer: &'a OneChannel,
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    dy: &'a [f32],
}

impl WithSimd for WeightGradient<'_> {
    type Output = Sums;

    fn with_simd<S: Simd>(self, simd: S) -> Sums {
        let layer = self.layer;
        let g = &layer.g;
        let weights = Weights::new::<S>(g, self.weight, self.bias);
        let samples = g.batch.div_ceil(SUMS).max(1);
        let bias = (g.taps() * weights.wide).next_multiple_of(VECTOR);
        let size = bias + weights.bias.len();
        let mut groups = Aligned::zeros(g.batch.div_ceil(samples) * size);
        for_each_chunk(&mut groups, size, |i, sums| {
            let (dw, db) = sums.split_at_mut(bias);
            for j in i * samples..g.batch.min((i + 1) * samples) {
                let sample = layer.sample(self.x, &weights, j);
                let dy = &self.dy[j * layer.y_sample()..][..layer.y_sample()];
                simd.vectorize(windows::SampleGradient { sample, dy, dw, db });
            }
        });
        Sums {
            all: sum_of_chunks(&groups, size),
            wide: weights.wide,
            bias,
        }
    }
}
