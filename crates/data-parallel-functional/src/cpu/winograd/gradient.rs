//! The gradient of the weight.

use super::kernel::Multiply;
use super::tiling::{CHUNK, Chunks, ENOUGH_TASKS, FEW_PANELS, GROUP, weights};
use super::transform::Images;
use super::weights::{OfBlock, Pair, TRANSPOSED};
use crate::cpu::gradient::put_sum_of_chunks;
use crate::cpu::scratch::{common, own};
use crate::cpu::sums::SUMS;
use crate::cpu::threads::{Disjoint, for_each, for_each_chunk};
use devices::dispatch;
use std::ops::Range;

/// The fewest tiles of a partial sum, for each panel of x.
const SHORTEST: usize = 64;

/// The gradient of a weight.
#[derive(Clone, Copy)]
pub(super) struct Gradient<'a> {
    pub(super) x: Images<'a>,
    pub(super) dy: Images<'a>,
}

impl Gradient<'_> {
    pub(super) fn run(&self, dw: &mut [f32], accumulate: bool) {
        if self.x.tiling.tiles() == 0 {
            if !accumulate {
                dw.fill(0.);
            }
        } else if self.ins().max(self.outs()) <= FEW_PANELS {
            self.sum_by_sum(dw, accumulate);
        } else {
            self.step_by_step(dw, accumulate);
        }
    }

    /// The panels of x.
    fn ins(&self) -> usize {
        self.x.channels.count()
    }

    /// The panels of dy.
    fn outs(&self) -> usize {
        self.dy.channels.count()
    }

    /// Floats of a row of a block: of x or of dy, whichever has the wider panels.
    fn width(&self) -> usize {
        self.x.channels.width().max(self.dy.channels.width())
    }

    /// Floats of a block of points.
    fn points(&self, tiles: usize) -> usize {
        self.x.stride.block(tiles, self.width())
    }

    /// Floats of a block of products.
    fn products(&self) -> usize {
        weights(self.x.channels.width(), self.dy.channels.width())
    }

    /// Transforms one panel of a chunk. The panels of x have the first numbers, those of dy the next.
    fn transform(&self, tiles: Range<usize>, panel: usize, block: &mut [f32]) {
        let ins = self.ins();
        if panel < ins {
            self.x.transform(tiles, panel, block);
        } else {
            self.dy.transform(tiles, panel - ins, block);
        }
    }

    /// The weights between an input panel and an output panel.
    fn pair(&self, input: usize, output: usize) -> Pair {
        Pair {
            output: self.dy.channels.get(output),
            input: self.x.channels.get(input),
            inputs: self.x.channels.channels,
        }
    }

    /// For few channels: partial sums over some chunks each, and then their sum. A task has one panel of x.
    fn sum_by_sum(&self, dw: &mut [f32], accumulate: bool) {
        let tiles = self.x.tiling.tiles();
        let ins = self.ins();
        let shortest = self.x.stride.tiles(SHORTEST * ins);
        let sums = Chunks::new(0..tiles, tiles.div_ceil(SUMS / ins).max(shortest));
        let size = dw.len();
        common([sums.count() * size], |[partial]| {
            let partial = &mut partial[..sums.count() * size];
            let each: Vec<_> = partial.chunks_exact_mut(size).map(Disjoint::new).collect();
            for_each(sums.count() * ins, |i| {
                let sum = i / ins;
                let input = i % ins;
                let chunks = Chunks::new(sums.get(sum), self.x.stride.tiles(48));
                self.sum(chunks, input, &each[sum]);
            });
            put_sum_of_chunks(partial, dw, accumulate);
        });
    }

    /// Computes the sum of some chunks, for one input panel with all output panels.
    fn sum(&self, chunks: Chunks, input: usize, dw: &Disjoint<'_, f32>) {
        let of_points = self.points(chunks.size);
        let of_products = self.products();
        let buffers = [of_points, of_points, self.outs() * of_products, TRANSPOSED];
        own(buffers, |[x, dy, products, transposed]| {
            for c in 0..chunks.count() {
                let tiles = chunks.get(c);
                self.x.transform(tiles.clone(), input, x);
                for (output, products) in products.chunks_exact_mut(of_products).enumerate() {
                    self.dy.transform(tiles.clone(), output, dy);
                    let pair = self.pair(input, output);
                    self.multiply(tiles.len(), pair, x, dy, products, c > 0);
                }
            }
            for (output, products) in products.chunks_exact(of_products).enumerate() {
                self.output(self.pair(input, output), products, transposed, false, dw);
            }
        });
    }

    /// For many channels: first the tiles of a group are transformed, and then multiplied.
    fn step_by_step(&self, dw: &mut [f32], accumulate: bool) {
        let ins = self.ins();
        let outs = self.outs();
        let chunk = self.x.stride.tiles(CHUNK);
        let group = self.x.stride.tiles(GROUP / ins.max(outs));
        let groups = Chunks::new(0..self.x.tiling.tiles(), group.max(1));
        let mut cut = *self;
        if ins * outs < ENOUGH_TASKS {
            cut.dy.channels = self.dy.channels.halves();
        }
        cut.group_by_group(dw, accumulate, groups, chunk);
    }

    /// Transforms a group's tiles, then multiplies them.
    fn group_by_group(&self, dw: &mut [f32], accumulate: bool, groups: Chunks, chunk: usize) {
        let ins = self.ins();
        let outs = self.outs();
        let dw = Disjoint::new(dw);
        let most = (ins + outs) * groups.size.div_ceil(chunk) * self.points(chunk);
        common([most], |[points]| {
            for g in 0..groups.count() {
                let chunks = Chunks::new(groups.get(g), chunk);
                let n = chunks.count();
                let size = self.points(chunks.size);
                let points = &mut points[..(ins + outs) * n * size];
                for_each_chunk(points, size, |i, block| {
                    self.transform(chunks.get(i % n), i / n, block);
                });
                let block = |panel, c| &points[(panel * n + c) * size..][..size];
                for_each(ins * outs, |i| {
                    let input = i / outs;
                    let output = i % outs;
                    let pair = self.pair(input, output);
                    own([self.products(), TRANSPOSED], |[products, transposed]| {
                        for c in 0..n {
                            let x = block(input, c);
                            let dy = block(ins + output, c);
                            self.multiply(chunks.get(c).len(), pair, x, dy, products, c > 0);
                        }
                        self.output(pair, products, transposed, accumulate || g > 0, &dw);
                    });
                });
            }
        });
    }

    /// Transforms products to the gradients of weights.
    fn output(
        &self,
        pair: Pair,
        products: &[f32],
        transposed: &mut [f32],
        accumulate: bool,
        dw: &Disjoint<'_, f32>,
    ) {
        dispatch(OfBlock {
            block: products,
            stride: self.x.stride,
            transposed,
            pair,
            accumulate,
            weight: dw,
        });
    }

    /// products (inputs × outputs) = or += x (tiles × inputs), transposed, · dy (tiles × outputs)
    fn multiply(
        &self,
        tiles: usize,
        pair: Pair,
        x: &[f32],
        dy: &[f32],
        products: &mut [f32],
        accumulate: bool,
    ) {
        dispatch(Multiply {
            planes: self.x.stride.planes(),
            gradient: true,
            rows: pair.input.channels,
            depth: tiles,
            width: pair.output.width(),
            a: x,
            a_row_stride: 1,
            a_column_stride: pair.input.width(),
            b: dy,
            c: products,
            accumulate,
        });
    }
}
