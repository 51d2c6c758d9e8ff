//! Convolution on the CPU: by Winograd's algorithm where it fits, else by im2col and matrix products,
//! tile by tile. It knows no dilation and no groups (`depthwise` is for those of one channel), and it never looks at
//! the thread budget to decide how to cut the work.
//!
//! A convolution has one of four algorithms:
//!
//! - `winograd` computes 3 × 3 kernels. With stride 1, padding up to 2 and 8 channels or more that is F(4×4, 3×3).
//!   With stride 2 it needs padding 1, 16 channels or more, and outputs that fill most of their tiles.
//! - `winograd::pooled` computes F(4×4, 5×5) fused with ReLU and pooling: LeNet's second layer.
//! - `one_channel` computes images of one channel with ReLU and pooling: LeNet's first layer.
//! - The rest is im2col and matrix products: in this file.

use crate::cpu::activation::{mask_all, positive};
use crate::cpu::buffer::Buffer;
use crate::cpu::gemm::{Matrix, multiply};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::im2col::TILE;
use crate::cpu::scratch::own;
use crate::cpu::sums::{SUMS, column_sums};
use crate::cpu::threads::for_each_chunk;
use crate::cpu::winograd;
use crate::descriptors::convolution::Geometry;
use crate::kernel::{Cpu, Kernel};
use crate::settings::precision::arithmetic;
use candle_core::Result;
use std::ops::Range;

/// The fewest outputs of a task of the weight's gradient, if there are more: each task does im2col again.
const NARROW: usize = 128;

/// The products of im2col.
impl Geometry {
    fn packed(&self, weight: &[f32]) -> Buffer {
        let mut packed = Buffer::new(weight.len());
        self.pack(weight, &mut packed);
        packed
    }

    pub(crate) fn forward(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        relu: bool,
        y: &mut [f32],
    ) {
        let packed = self.packed(weight);
        let weight = Matrix::new(&packed, self.taps(), self.out_channels);
        let step = self.lines_of_a_task();
        let line = self.out_width * self.out_channels;
        for_each_chunk(
            y,
            step * line,
            #[inline(always)]
            |tile, y| {
                let first = tile * step;
                if let Some(bias) = bias {
                    for pixel in y.chunks_exact_mut(bias.len()) {
                        pixel.copy_from_slice(bias);
                    }
                }
                self.with_columns(x, first..first + y.len() / line, |columns| {
                    multiply(y, bias.is_some(), columns, weight)
                });
                if relu {
                    y.iter_mut().for_each(
                        #[inline(always)]
                        |y| *y = positive(*y),
                    );
                }
            },
        );
    }

    pub(crate) fn backward_x(&self, weight: &[f32], dy: &[f32], dx: &mut [f32], add: bool) {
        let packed = self.packed(weight);
        let weight = Matrix::new(&packed, self.taps(), self.out_channels).t();
        // whole samples, because neighbouring lines of a sample add to the same inputs
        let samples = self.samples_of_a_task();
        let lines = samples * self.out_height;
        let block = lines * self.out_width * self.out_channels;
        for_each_chunk(dx, samples * self.sample(), |i, dx| {
            if !add {
                dx.fill(0.);
            }
            let dy = &dy[i * block..];
            let lines = dx.len() / self.sample() * self.out_height;
            for tile in self.tiles(0..lines) {
                self.tile_backward_x(weight, dy, tile, dx);
            }
        });
    }

    fn tile_backward_x(&self, weight: Matrix, dy: &[f32], tile: Range<usize>, dx: &mut [f32]) {
        let taps = self.taps();
        let rows = tile.len() * self.out_width;
        let dy = self.pixels(dy, &tile);
        if self.pointwise() {
            let dx = &mut dx[tile.start * self.out_width * taps..][..rows * taps];
            return multiply(dx, true, dy, weight);
        }
        own([rows * taps], |[columns]| {
            let columns = &mut columns[..rows * taps];
            multiply(columns, false, dy, weight);
            self.col2im(columns, tile, dx);
        });
    }

    fn backward_weight(&self, x: &[f32], dy: &[f32], dw: &mut [f32], add: bool) {
        let taps = self.taps();
        let outputs = self.out_channels;
        let step = self.lines_of_a_tile();
        let lines = self.lines().div_ceil(step).div_ceil(SUMS).max(1) * step;
        let sums = self.lines().div_ceil(lines);
        // few tiles: a task also takes only some of the outputs, a multiple of `NARROW`
        let wanted = SUMS.div_ceil(sums.max(1));
        let width = outputs
            .div_ceil(wanted)
            .next_multiple_of(NARROW)
            .min(outputs);
        let blocks = outputs.div_ceil(width);
        let size = taps * width;
        let mut partial = Buffer::new(sums * blocks * size);
        for_each_chunk(&mut partial, size, |i, partial| {
            let sum = i / blocks;
            let first = i % blocks * width;
            let count = width.min(outputs - first);
            let end = ((sum + 1) * lines).min(self.lines());
            for (n, tile) in self.tiles(sum * lines..end).enumerate() {
                let dy = self.pixels(dy, &tile).columns(first, count);
                let partial = &mut partial[..taps * count];
                self.with_columns(x, tile, |columns| {
                    multiply(partial, n > 0, columns.t(), dy);
                });
            }
        });
        self.unpack(dw, add, |row, first, total| {
            let block = first / width;
            let at = first % width;
            let start = block * size + row * width.min(outputs - block * width) + at;
            for partial in partial.chunks_exact(blocks * size) {
                for (total, v) in total.iter_mut().zip(&partial[start..]) {
                    *total += v;
                }
            }
        });
    }
}

/// A convolution on the CPU, with its ReLU or with nothing behind it.
pub(crate) struct ConvolutionKernel {
    geometry: Geometry,
    relu: bool,
    winograd: bool,
}

impl ConvolutionKernel {
    pub(crate) fn new(geometry: Geometry, relu: bool) -> Self {
        Self {
            relu,
            winograd: winograd::fits(&geometry) && arithmetic().winograd,
            geometry,
        }
    }

    pub(crate) fn output(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
        if self.winograd {
            winograd::forward(&self.geometry, x, weight, bias, self.relu, y)
        } else {
            self.geometry.forward(x, weight, bias, self.relu, y)
        }
    }

    /// Writes the gradient of x, or adds to it; `dy` is that before the ReLU.
    pub(crate) fn backward_x(&self, weight: &[f32], dy: &[f32], dx: &mut [f32], add: bool) {
        if self.winograd {
            winograd::backward_x(&self.geometry, weight, dy, dx, add)
        } else {
            self.geometry.backward_x(weight, dy, dx, add)
        }
    }

    /// Writes the gradient of the weight, or adds to it.
    pub(crate) fn backward_weight(&self, x: &[f32], dy: &[f32], dw: &mut [f32], add: bool) {
        if self.winograd {
            winograd::backward_weight(&self.geometry, x, dy, dw, add)
        } else {
            self.geometry.backward_weight(x, dy, dw, add)
        }
    }
}

impl Kernel<Cpu> for ConvolutionKernel {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        self.output(x[0], x[1], x.get(2).copied(), y);
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if self.relu {
            mask_all(at.y, &mut dy);
        }
        if let Some((to, add)) = dx[0].target() {
            self.backward_x(at.x[1], &dy, to, add);
        }
        if let Some((to, add)) = dx[1].target() {
            self.backward_weight(at.x[0], &dy, to, add);
        }
        if let Some(db) = dx.get_mut(2) {
            db.put(column_sums(&dy, self.geometry.out_channels, TILE).into_iter());
        }
        Ok(())
    }
}
