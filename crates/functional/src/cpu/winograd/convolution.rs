//! The convolution, and the gradient of its input.

use super::kernel::{Multiply, dispatch};
use super::lanes::PANEL;
use super::tiling::{CHUNK, Chunks, FEW, GROUP, POINTS, block};
use super::transform::{Images, ToImages};
use super::weights::{Panels, TRANSPOSED, ToBlock};
use crate::cpu::scratch::{common, own};
use crate::cpu::threads::{Disjoint, for_each, for_each_chunk};
use std::ops::Range;

/// The most blocks of weights that are kept transformed: 9 MB.
const KEPT: usize = 16;

/// A convolution, or the gradient of its input, which is one too: with the weights flipped and the
/// channels of both sides exchanged.
pub(super) struct Convolution<'a> {
    pub(super) images: Images<'a>,
    pub(super) weight: &'a [f32],
    pub(super) flipped: bool,
    pub(super) outputs: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) accumulate: bool,
}

impl Convolution<'_> {
    pub(super) fn run(&self, y: &mut [f32]) {
        let (ins, outs) = self.panels();
        let outputs = self.images.data.len() / self.images.channels * self.outputs;
        assert_eq!(y.len(), outputs, "the size of the output");
        let y = Disjoint::new(y);
        if ins.max(outs) <= FEW {
            self.chunk_by_chunk(&y);
        } else {
            self.step_by_step(&y);
        }
    }

    /// Panels of channels of the input and the output.
    fn panels(&self) -> (usize, usize) {
        (self.images.channels / PANEL, self.outputs / PANEL)
    }

    /// For few channels.
    fn chunk_by_chunk(&self, y: &Disjoint<'_, f32>) {
        let (ins, outs) = self.panels();
        let chunks = Chunks::new(
            0..self.images.tiling.tiles(),
            if ins.max(outs) == 1 { 28 } else { 48 },
        );
        let one = block(chunks.size);
        common([ins * outs * block(PANEL)], |[weights]| {
            self.transform_weights(weights);
            let weights = &*weights;
            for_each(chunks.count(), |c| {
                own([ins * one, one], |[points, products]| {
                    for (panel, block) in points.chunks_exact_mut(one).enumerate() {
                        self.images.transform(chunks.get(c), panel, block);
                    }
                    for panel in 0..outs {
                        for (i, a) in points.chunks_exact(one).enumerate() {
                            let b = &weights[(panel * ins + i) * block(PANEL)..][..block(PANEL)];
                            multiply(chunks.get(c).len(), a, b, products, i > 0);
                        }
                        self.output(chunks.get(c), panel, products, y);
                    }
                });
            });
        });
    }

    /// For many channels.
    fn step_by_step(&self, y: &Disjoint<'_, f32>) {
        let (ins, outs) = self.panels();
        let tiles = self.images.tiling.tiles();
        let keep = tiles > CHUNK && ins * outs <= KEPT;
        let kept = if keep { ins * outs * block(PANEL) } else { 0 };
        let groups = Chunks::new(0..tiles, (GROUP / ins.max(outs)).max(1));
        let most = ins * groups.size.div_ceil(CHUNK) * block(CHUNK);
        common([kept, most], |[weights, points]| {
            self.transform_weights(weights);
            for g in 0..groups.count() {
                let chunks = Chunks::new(groups.get(g), CHUNK);
                let (one, n) = (block(chunks.size), chunks.count());
                let points = &mut points[..n * ins * one];
                for_each_chunk(points, one, |i, block| {
                    self.images.transform(chunks.get(i / ins), i % ins, block);
                });
                for_each(n * outs, |i| {
                    let points = &points[i % n * ins * one..][..ins * one];
                    self.panel(chunks.get(i % n), i / n, points, weights, y);
                });
            }
        });
    }

    /// One output panel of a chunk. Weights that are not kept are transformed here.
    fn panel(
        &self,
        tiles: Range<usize>,
        panel: usize,
        points: &[f32],
        weights: &[f32],
        y: &Disjoint<'_, f32>,
    ) {
        let (ins, size) = (self.panels().0, block(PANEL));
        let one = points.len() / ins;
        let now = if weights.is_empty() { size } else { 0 };
        own([one, now, TRANSPOSED], |[products, now, transposed]| {
            for (i, a) in points.chunks_exact(one).enumerate() {
                let b = if weights.is_empty() {
                    self.transform_weight(panel, i, now, transposed);
                    &*now
                } else {
                    &weights[(panel * ins + i) * size..][..size]
                };
                multiply(tiles.len(), a, b, products, i > 0);
            }
            self.output(tiles, panel, products, y);
        });
    }

    /// Transforms all weights, block by block: first those of the first output panel.
    fn transform_weights(&self, weights: &mut [f32]) {
        let ins = self.panels().0;
        for_each_chunk(weights, block(PANEL), |i, block| {
            own([TRANSPOSED], |[transposed]| {
                self.transform_weight(i / ins, i % ins, block, transposed);
            });
        });
    }

    fn transform_weight(&self, out: usize, from: usize, block: &mut [f32], transposed: &mut [f32]) {
        let (inputs, output, input) = match self.flipped {
            false => (self.images.channels, out, from),
            true => (self.outputs, from, out),
        };
        dispatch(ToBlock {
            weight: self.weight,
            panels: Panels {
                output,
                input,
                inputs,
            },
            flipped: self.flipped,
            block,
            transposed,
        });
    }

    fn output(&self, tiles: Range<usize>, panel: usize, products: &[f32], y: &Disjoint<'_, f32>) {
        let bias = self
            .bias
            .and_then(|bias| bias[panel * PANEL..].first_chunk());
        dispatch(ToImages {
            block: products,
            tiles,
            panel,
            channels: self.outputs,
            tiling: self.images.tiling,
            start: bias.unwrap_or(&[0.; PANEL]),
            accumulate: self.accumulate,
            images: y,
        });
    }
}

/// products (rows × 64) = or += points (rows × 64) · weights (64 × 64)
fn multiply(rows: usize, points: &[f32], weights: &[f32], products: &mut [f32], accumulate: bool) {
    dispatch(Multiply {
        points: POINTS,
        rows,
        depth: PANEL,
        width: PANEL,
        a: points,
        strides: (PANEL, 1),
        b: weights,
        c: products,
        accumulate,
    });
}
