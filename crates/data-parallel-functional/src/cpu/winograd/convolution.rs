//! The convolution, and the gradient of its input.

use super::kernel::Multiply;
use super::tiling::{
    CHUNK, Chunks, ENOUGH_TASKS, FEW_PANELS, GROUP, PANEL, Panel, Panels, weights,
};
use super::transform::{Images, ToImages};
use super::weights::{INPUTS_AT_ONCE, Pair, TRANSPOSED, ToBlock};
use crate::cpu::scratch::{common, own};
use crate::cpu::threads::{Disjoint, for_each, for_each_chunk};
use devices::dispatch;
use std::ops::Range;

/// The most blocks of weights that are kept transformed: 9 MB.
const KEPT: usize = 16;

/// Number of tasks of a call for few channels, if there are enough tiles.
const TASKS: usize = 32;

/// A convolution, or the gradient of its input: with the weights flipped and the channels of both sides exchanged.
#[derive(Clone, Copy)]
pub(super) struct Convolution<'a> {
    pub(super) images: Images<'a>,
    pub(super) weight: &'a [f32],
    pub(super) flipped: bool,
    pub(super) outputs: Panels,
    /// Rows of the output's images.
    pub(super) height: usize,
    /// Columns of the output's images.
    pub(super) width: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) relu: bool,
    pub(super) accumulate: bool,
}

impl Convolution<'_> {
    pub(super) fn run(&self, y: &mut [f32]) {
        let pixels = self.images.tiling.batch * self.height * self.width;
        let outputs = pixels * self.outputs.channels;
        assert_eq!(y.len(), outputs, "the size of the output");
        let y = Disjoint::new(y);
        if self.ins().max(self.outs()) <= FEW_PANELS {
            self.chunk_by_chunk(&y);
        } else {
            self.step_by_step(&y);
        }
    }

    /// The panels of the input's channels.
    fn ins(&self) -> usize {
        self.images.channels.count()
    }

    /// The panels of the output's channels.
    fn outs(&self) -> usize {
        self.outputs.count()
    }

    /// Floats of a block of weights.
    fn weights(&self) -> usize {
        weights(self.images.channels.width(), self.outputs.width())
    }

    /// For few channels: a task takes a chunk through all three steps.
    fn chunk_by_chunk(&self, y: &Disjoint<'_, f32>) {
        let ins = self.ins();
        let outs = self.outs();
        let stride = self.images.stride;
        let tiles = self.images.tiling.tiles();
        let most = if ins.max(outs) == 1 { 28 } else { 48 };
        // where there are few tiles, smaller chunks: of whole sixes, the rows that a product takes at a time
        let smaller = (tiles / TASKS / 6 * 6).clamp(18, most);
        let chunks = Chunks::new(0..tiles, stride.tiles(smaller));
        // floats of a block of weights, of points and of products
        let of_weights = self.weights();
        let of_points = stride.block(chunks.size, self.images.channels.width());
        let of_products = stride.block(chunks.size, self.outputs.width());
        common([ins * outs * of_weights], |[weights]| {
            self.transform_weights(weights);
            let weights = &*weights;
            for_each(chunks.count(), |c| {
                let tiles = chunks.get(c);
                own([ins * of_points, of_products], |[points, products]| {
                    for (panel, block) in points.chunks_exact_mut(of_points).enumerate() {
                        self.images.transform(tiles.clone(), panel, block);
                    }
                    for panel in 0..outs {
                        for (i, a) in points.chunks_exact(of_points).enumerate() {
                            let b = &weights[(panel * ins + i) * of_weights..][..of_weights];
                            self.multiply(tiles.len(), i, panel, a, b, products);
                        }
                        self.output(tiles.clone(), panel, products, y);
                    }
                });
            });
        });
    }

    /// For many channels: first the tiles of a group are transformed, and then multiplied.
    fn step_by_step(&self, y: &Disjoint<'_, f32>) {
        let ins = self.ins();
        let outs = self.outs();
        let stride = self.images.stride;
        let tiles = self.images.tiling.tiles();
        let chunk = stride.tiles(CHUNK);
        let group = stride.tiles(GROUP / ins.max(outs));
        let groups = Chunks::new(0..tiles, group.max(1));
        let keep = tiles > chunk && ins * outs <= KEPT;
        let mut cut = *self;
        if groups.size.div_ceil(chunk) * outs < ENOUGH_TASKS {
            cut.outputs = self.outputs.halves();
        }
        cut.group_by_group(y, groups, chunk, keep);
    }

    /// Transforms a group's tiles, then multiplies them. `keep` transforms all weights once.
    fn group_by_group(&self, y: &Disjoint<'_, f32>, groups: Chunks, chunk: usize, keep: bool) {
        let ins = self.ins();
        let outs = self.outs();
        let stride = self.images.stride;
        let width = self.images.channels.width();
        let kept = if keep { ins * outs * self.weights() } else { 0 };
        let most = ins * groups.size.div_ceil(chunk) * stride.block(chunk, width);
        common([kept, most], |[weights, points]| {
            self.transform_weights(weights);
            for g in 0..groups.count() {
                let chunks = Chunks::new(groups.get(g), chunk);
                let n = chunks.count();
                // floats of a chunk's points: of one input panel, and of all
                let of_panel = stride.block(chunks.size, width);
                let of_chunk = ins * of_panel;
                let points = &mut points[..n * of_chunk];
                for_each_chunk(points, of_panel, |i, block| {
                    self.images.transform(chunks.get(i / ins), i % ins, block);
                });
                for_each(n * outs, |i| {
                    let c = i % n;
                    let panel = i / n;
                    let points = &points[c * of_chunk..][..of_chunk];
                    self.panel(chunks.get(c), panel, points, weights, y);
                });
            }
        });
    }

    /// Computes one output panel of a chunk. Weights that are not kept are transformed here.
    fn panel(
        &self,
        tiles: Range<usize>,
        panel: usize,
        points: &[f32],
        weights: &[f32],
        y: &Disjoint<'_, f32>,
    ) {
        let ins = self.ins();
        let size = self.weights();
        let of_products = self.images.stride.block(tiles.len(), self.outputs.width());
        let now = if weights.is_empty() { size } else { 0 };
        let lengths = [of_products, now, TRANSPOSED];
        own(lengths, |[products, now, transposed]| {
            for (i, a) in points.chunks_exact(points.len() / ins).enumerate() {
                let b = if weights.is_empty() {
                    let block = Disjoint::new(now);
                    for first in (0..self.weight_inputs(panel, i).channels).step_by(INPUTS_AT_ONCE)
                    {
                        self.transform_weight(panel, i, first, &block, transposed);
                    }
                    &*now
                } else {
                    &weights[(panel * ins + i) * size..][..size]
                };
                self.multiply(tiles.len(), i, panel, a, b, products);
            }
            self.output(tiles, panel, products, y);
        });
    }

    /// Transforms all weights, block by block: first those of the first output panel.
    fn transform_weights(&self, weights: &mut [f32]) {
        let ins = self.ins();
        // a task for each part of a block, as many as the widest one has
        let parts = self.weight_inputs(0, 0).channels.div_ceil(INPUTS_AT_ONCE);
        let blocks: Vec<_> = weights
            .chunks_exact_mut(self.weights())
            .map(Disjoint::new)
            .collect();
        for_each(blocks.len() * parts, |i| {
            let block = i / parts;
            let first = i % parts * INPUTS_AT_ONCE;
            let out = block / ins;
            let from = block % ins;
            if first < self.weight_inputs(out, from).channels {
                own([TRANSPOSED], |[transposed]| {
                    self.transform_weight(out, from, first, &blocks[block], transposed);
                });
            }
        });
    }

    /// The weight's input channels of a block.
    fn weight_inputs(&self, out: usize, from: usize) -> Panel {
        if self.flipped {
            self.outputs.get(out)
        } else {
            self.images.channels.get(from)
        }
    }

    /// Transforms the weights of [`INPUTS_AT_ONCE`] input channels of a block, from channel `first` on.
    fn transform_weight(
        &self,
        out: usize,
        from: usize,
        first: usize,
        block: &Disjoint<'_, f32>,
        transposed: &mut [f32],
    ) {
        // flipped, the weight's inputs are the channels of the result
        let (inputs, output) = if self.flipped {
            (self.outputs, self.images.channels.get(from))
        } else {
            (self.images.channels, self.outputs.get(out))
        };
        dispatch(ToBlock {
            weight: self.weight,
            pair: Pair {
                output,
                input: self.weight_inputs(out, from),
                inputs: inputs.channels,
            },
            first,
            stride: self.images.stride,
            flipped: self.flipped,
            block,
            transposed,
        });
    }

    /// products (rows × outputs) = points (rows × inputs) · weights (inputs × outputs) of the first input
    /// panel, += of the others.
    fn multiply(
        &self,
        rows: usize,
        from: usize,
        to: usize,
        points: &[f32],
        weights: &[f32],
        products: &mut [f32],
    ) {
        let input = self.images.channels.get(from);
        dispatch(Multiply {
            planes: self.images.stride.planes(),
            gradient: false,
            rows,
            depth: input.channels,
            width: self.outputs.get(to).width(),
            a: points,
            a_row_stride: input.width(),
            a_column_stride: 1,
            b: weights,
            c: products,
            accumulate: from > 0,
        });
    }

    fn output(&self, tiles: Range<usize>, panel: usize, products: &[f32], y: &Disjoint<'_, f32>) {
        let panel = self.outputs.get(panel);
        dispatch(ToImages {
            block: products,
            tiles,
            panel,
            channels: self.outputs.channels,
            tiling: self.images.tiling,
            stride: self.images.stride,
            inputs: self.flipped,
            height: self.height,
            width: self.width,
            start: self.bias.map_or(&[0.; PANEL], |bias| &bias[panel.first..]),
            relu: self.relu,
            accumulate: self.accumulate,
            images: y,
        });
    }
}
