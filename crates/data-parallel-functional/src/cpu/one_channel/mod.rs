//! The convolution of images with one channel, with ReLU and 2 × 2 pooling, in one step: LeNet's first layer. Its
//! output is pooled window by window in registers, and backward computes it again. It knows the kernels 3 × 3 and
//! 5 × 5, stride 1 and no padding.

mod windows;

use crate::cpu::activation::positive;
use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::{SUMS, sum_of_chunks};
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::Aligned;
use crate::descriptors::convolution::{Convolution, Geometry};
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;
use devices::dispatch;
use windows::{Forward, Sample, SampleGradient, Weights};

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
        let weights = Weights::new(&self.g, x[1], x.get(2).copied());
        let y_sample = self.y_sample();
        for_each_chunk(y, BLOCK * y_sample, |i, y| {
            for (j, y) in y.chunks_exact_mut(y_sample).enumerate() {
                let sample = self.sample(x[0], &weights, i * BLOCK + j);
                dispatch(Forward { sample, y });
            }
        });
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            self.image_gradient(at.x, &dy, to, add);
        }
        let g = &self.g;
        let weights = Weights::new(g, at.x[1], at.x.get(2).copied());
        let samples = g.batch.div_ceil(SUMS).max(1);
        // for each tap a row of channels, then the bias
        let bias = g.taps() * weights.wide;
        let size = bias + weights.bias.len();
        let mut groups = Aligned::zeros(g.batch.div_ceil(samples) * size);
        for_each_chunk(&mut groups, size, |i, sums| {
            let (dw, db) = sums.split_at_mut(bias);
            for j in i * samples..g.batch.min((i + 1) * samples) {
                let sample = self.sample(at.x[0], &weights, j);
                let dy = &dy[j * self.y_sample()..][..self.y_sample()];
                dispatch(SampleGradient { sample, dy, dw, db });
            }
        });
        let sums = sum_of_chunks(&groups, size);
        let taps = g.taps();
        let outputs = g.out_channels;
        // from rows of taps to the weight's order, (O, 1, KH, KW)
        dx[1].put((0..outputs * taps).map(|i| {
            let output = i / taps;
            let tap = i % taps;
            sums[tap * weights.wide + output]
        }));
        if let Some(db) = dx.get_mut(2) {
            db.put(sums[bias..][..outputs].iter().copied());
        }
        Ok(())
    }
}
