//! The two passes, chunk by chunk of tiles. Backward transforms the gradients of the outputs once,
//! for both products: the gradient of the inputs is the transpose of what forward does, and
//! overlapping tiles add to the same pixels.

use super::super::kernel::Multiply;
use super::super::tiling::Chunks;
use super::sizes::{MOST_CHANNELS, PLANES, Pooled, block};
use super::tiles::{OfOutputs, ToInputs, ToOutputs, ToPoints};
use super::weights::{OfBlock, TAPS, ToBlock};
use crate::cpu::scratch::{common, own};
use crate::cpu::sums::SUMS;
use crate::cpu::threads::{Disjoint, for_each, for_each_chunk};
use devices::dispatch;
use std::ops::Range;

/// The most tiles of a chunk of the forward pass: all that belongs to it stays in the second-level cache.
const CHUNK: usize = 32;

/// The most tiles of a chunk of the backward pass, where more belongs to each.
const CHUNK_BACKWARD: usize = 16;

/// The fewest samples of a partial sum.
const SAMPLES: usize = 16;

impl Pooled {
    /// `positive` may be empty: then nothing is saved.
    pub(super) fn convolve(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
        positive: &mut [f32],
    ) {
        let inputs = self.g.channels;
        let in_width = self.in_width();
        let out_width = self.out_width();
        let no_bias = [0.; MOST_CHANNELS];
        let bias = bias.unwrap_or(&no_bias[..self.g.out_channels]);
        // a weight that is not finite makes no zero of zeros
        let zeros = weight.iter().all(|w| w.is_finite()).then_some(x);
        let chunks = Chunks::new(0..self.tiling.tiles(), CHUNK);
        let lengths = [block(chunks.size, in_width), block(chunks.size, out_width)];
        let y = Disjoint::new(y);
        let positive = Disjoint::new(positive);
        common([block(inputs, out_width)], |[weights]| {
            self.transform_weights(weight, false, weights);
            for_each(chunks.count(), |c| {
                let tiles = chunks.get(c);
                own(lengths, |[points, products]| {
                    self.transform(tiles.clone(), x, points);
                    dispatch(Multiply {
                        planes: PLANES,
                        gradient: false,
                        rows: tiles.len(),
                        depth: inputs,
                        width: out_width,
                        a: points,
                        a_row_stride: in_width,
                        a_column_stride: 1,
                        b: weights,
                        c: products,
                        accumulate: false,
                    });
                    dispatch(ToOutputs {
                        pooled: self,
                        products,
                        tiles,
                        bias,
                        zeros,
                        y: &y,
                        positive: &positive,
                    });
                });
            });
        });
    }

    /// Transforms the inputs of some tiles to points.
    fn transform(&self, tiles: Range<usize>, x: &[f32], points: &mut [f32]) {
        dispatch(ToPoints {
            pooled: self,
            tiles,
            x,
            points,
        });
    }

    /// Transforms the weights: to rows of inputs with all outputs, for the convolution, or `backwards` to rows of
    /// outputs with all inputs, for the gradient of its input.
    fn transform_weights(&self, weight: &[f32], backwards: bool, to: &mut [f32]) {
        // the weight is (O, I, 5, 5)
        let from_input_to_input = TAPS;
        let from_output_to_output = self.g.channels * TAPS;
        let to = Disjoint::new(to);
        if backwards {
            for_each(self.g.out_channels, |output| {
                dispatch(ToBlock {
                    weight: &weight[output * from_output_to_output..],
                    step: from_input_to_input,
                    channels: self.g.channels,
                    width: self.in_width(),
                    row: output,
                    block: &to,
                });
            });
        } else {
            for_each(self.g.channels, |input| {
                dispatch(ToBlock {
                    weight: &weight[input * from_input_to_input..],
                    step: from_output_to_output,
                    channels: self.g.out_channels,
                    width: self.out_width(),
                    row: input,
                    block: &to,
                });
            });
        }
    }
}

/// The inputs of the backward pass.
pub(super) struct Backward<'a> {
    pub(super) pooled: &'a Pooled,
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    /// The saved values of [`Pooled::convolve`].
    pub(super) positive: &'a [f32],
    pub(super) dy: &'a [f32],
}

impl Backward<'_> {
    /// Overwrites all gradients. `dx` is None where it is not wanted.
    pub(super) fn run(&self, dx: Option<&mut [f32]>, dw: &mut [f32], db: &mut [f32]) {
        let g = &self.pooled.g;
        let groups = Chunks::new(0..g.batch, g.batch.div_ceil(SUMS).max(SAMPLES));
        let wanted = dx.is_some();
        // floats of a sample of dx, and of the weights that dx takes
        let (sample, of_weights) = if wanted {
            (g.sample(), block(g.out_channels, self.pooled.in_width()))
        } else {
            (0, 0)
        };
        let dx = Disjoint::new(dx.unwrap_or_default());
        // a group's sums: rows of taps, and the bias in the last one
        let size = (g.channels * TAPS + 1) * self.pooled.out_width();
        common([of_weights, groups.count() * size], |[weights, sums]| {
            if wanted {
                self.pooled.transform_weights(self.weight, true, weights);
            }
            for_each_chunk(sums, size, |i, sums| {
                let samples = groups.get(i);
                // Safety: no other task has these samples.
                let dx = unsafe { dx.part(samples.start * sample, samples.len() * sample) };
                self.group(samples, weights, dx, sums);
            });
            self.sum(sums, size, dw, db);
        });
    }

    /// Computes some samples' part of the gradients. `dx` is theirs, or empty.
    fn group(&self, samples: Range<usize>, weights: &[f32], dx: &mut [f32], sums: &mut [f32]) {
        let p = self.pooled;
        let inputs = p.g.channels;
        let in_width = p.in_width();
        let out_width = p.out_width();
        let of_sample = p.tiling.of_sample();
        let tiles = samples.start * of_sample..samples.end * of_sample;
        let chunks = Chunks::new(tiles, CHUNK_BACKWARD);
        let (dw, db) = sums.split_at_mut(inputs * TAPS * out_width);
        db.fill(0.);
        let lengths = [
            block(chunks.size, in_width),
            block(chunks.size, out_width),
            block(inputs, out_width),
            if dx.is_empty() { 0 } else { p.canvas() },
        ];
        own(lengths, |[points, gradients, products, canvas]| {
            for c in 0..chunks.count() {
                let tiles = chunks.get(c);
                p.transform(tiles.clone(), self.x, points);
                dispatch(OfOutputs {
                    pooled: p,
                    tiles: tiles.clone(),
                    dy: self.dy,
                    positive: self.positive,
                    points: gradients,
                    db,
                });
                self.multiply_gradients(tiles.len(), points, gradients, products, c > 0);
                if !dx.is_empty() {
                    // the points of x have been used: their place is free
                    let products = &mut *points;
                    self.multiply_weights(tiles.len(), gradients, weights, products);
                    dispatch(ToInputs {
                        pooled: p,
                        products,
                        tiles,
                        first: samples.start,
                        canvas,
                        dx,
                    });
                }
            }
            dispatch(OfBlock {
                block: products,
                inputs,
                width: out_width,
                taps: dw,
            });
        });
    }

    /// products (inputs × outputs) = or += points (tiles × inputs), transposed, · gradients (tiles ×
    /// outputs)
    fn multiply_gradients(
        &self,
        tiles: usize,
        points: &[f32],
        gradients: &[f32],
        products: &mut [f32],
        accumulate: bool,
    ) {
        dispatch(Multiply {
            planes: PLANES,
            gradient: true,
            rows: self.pooled.g.channels,
            depth: tiles,
            width: self.pooled.out_width(),
            a: points,
            a_row_stride: 1,
            a_column_stride: self.pooled.in_width(),
            b: gradients,
            c: products,
            accumulate,
        });
    }

    /// products (tiles × inputs) = gradients (tiles × outputs) · weights (outputs × inputs)
    fn multiply_weights(
        &self,
        tiles: usize,
        gradients: &[f32],
        weights: &[f32],
        products: &mut [f32],
    ) {
        dispatch(Multiply {
            planes: PLANES,
            gradient: false,
            rows: tiles,
            depth: self.pooled.g.out_channels,
            width: self.pooled.in_width(),
            a: gradients,
            a_row_stride: self.pooled.out_width(),
            a_column_stride: 1,
            b: weights,
            c: products,
            accumulate: false,
        });
    }

    /// Adds the groups' sums, in PyTorch's layout.
    fn sum(&self, sums: &[f32], size: usize, dw: &mut [f32], db: &mut [f32]) {
        let inputs = self.pooled.g.channels;
        let width = self.pooled.out_width();
        let dw = Disjoint::new(dw);
        for_each(inputs, |i| {
            let mut total = [0.; TAPS * MOST_CHANNELS];
            add_groups(sums, size, i * TAPS * width, &mut total[..TAPS * width]);
            for o in 0..self.pooled.g.out_channels {
                // Safety: no other task has this input.
                let dw = unsafe { dw.part((o * inputs + i) * TAPS, TAPS) };
                for (tap, dw) in dw.iter_mut().enumerate() {
                    *dw = total[tap * width + o];
                }
            }
        });
        db.fill(0.);
        add_groups(sums, size, inputs * TAPS * width, db);
    }
}

/// Adds to `total` the floats from `at` on of all groups of `size`.
fn add_groups(groups: &[f32], size: usize, at: usize, total: &mut [f32]) {
    for group in groups.chunks_exact(size) {
        for (total, part) in total.iter_mut().zip(&group[at..]) {
            *total += part;
        }
    }
}
