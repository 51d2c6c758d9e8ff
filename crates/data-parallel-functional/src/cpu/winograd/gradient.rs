//! The gradient of the weight.

use super::kernel::Multiply;
use super::tiling::{CHUNK, Chunks, ENOUGH, FEW, GROUP, weights};
use super::transform::Images;
use super::weights::{OfBlock, Pair, TRANSPOSED};
use crate::cpu::gradient::put_sum_of_chunks;
use crate::cpu::scratch::{common, own};
use crate::cpu::simd::dispatch;
use crate::cpu::sums::SUMS;
use crate::cpu::threads::{Disjoint, for_each, for_each_chunk};
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
        let (ins, outs) = self.panels();
        if self.x.tiling.tiles() == 0 {
            if !accumulate {
                dw.fill(0.);
            }
        } else if ins.max(outs) <= FEW {
            self.sum_by_sum(dw, accumulate);
        } else {
            self.step_by_step(dw, accumulate);
        }
    }

    fn panels(&self) -> (usize, usize) {
        (self.x.channels.count(), self.dy.channels.count())
    }

    /// Floats of a panel's rows of x and of dy: of the wider.
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

    /// One side's panel of a chunk: first those of x, then those of dy.
    fn transform(&self, tiles: Range<usize>, panel: usize, block: &mut [f32]) {
        match panel.checked_sub(self.panels().0) {
            None => self.x.transform(tiles, panel, block),
            Some(panel) => self.dy.transform(tiles, panel, block),
        }
    }

    /// For few channels: partial sums over some chunks each, and then their sum. A task has one panel of x.
    fn sum_by_sum(&self, dw: &mut [f32], accumulate: bool) {
        let (tiles, (ins, _)) = (self.x.tiling.tiles(), self.panels());
        let shortest = self.x.stride.tiles(SHORTEST * ins);
        let sums = Chunks::new(0..tiles, tiles.div_ceil(SUMS / ins).max(shortest));
        let size = dw.len();
        common([sums.count() * size], |[partial]| {
            let partial = &mut partial[..sums.count() * size];
            let each: Vec<_> = partial.chunks_exact_mut(size).map(Disjoint::new).collect();
            for_each(sums.count() * ins, |i| {
                let (sum, input) = (i / ins, i % ins);
                let chunks = Chunks::new(sums.get(sum), self.x.stride.tiles(48));
                self.sum(chunks, input, &each[sum]);
            });
            put_sum_of_chunks(partial, dw, accumulate);
        });
    }

    /// The sum of some chunks, of one input panel with all output panels.
    fn sum(&self, chunks: Chunks, input: usize, dw: &Disjoint<'_, f32>) {
        let outs = self.panels().1;
        let (one, size) = (self.points(chunks.size), self.products());
        let buffers = [one, one, outs * size, TRANSPOSED];
        own(buffers, |[x, dy, products, transposed]| {
            for c in 0..chunks.count() {
                let tiles = chunks.get(c);
                self.x.transform(tiles.clone(), input, x);
                for (output, products) in products.chunks_exact_mut(size).enumerate() {
                    self.dy.transform(tiles.clone(), output, dy);
                    self.multiply(tiles.len(), (input, output), x, dy, products, c > 0);
                }
            }
            for (output, products) in products.chunks_exact(size).enumerate() {
                self.output(input, output, products, transposed, false, dw);
            }
        });
    }

    /// For many channels.
    fn step_by_step(&self, dw: &mut [f32], accumulate: bool) {
        let (ins, outs) = self.panels();
        let most = [CHUNK, GROUP / ins.max(outs)];
        let [chunk, group] = most.map(|most| self.x.stride.tiles(most));
        let groups = Chunks::new(0..self.x.tiling.tiles(), group.max(1));
        let mut cut = *self;
        if ins * outs < ENOUGH {
            cut.dy.channels = self.dy.channels.halves();
        }
        cut.group_by_group(dw, accumulate, groups, chunk);
    }

    /// Transforms a group's tiles, then multiplies them.
    fn group_by_group(&self, dw: &mut [f32], accumulate: bool, groups: Chunks, chunk: usize) {
        let (ins, outs) = self.panels();
        let dw = Disjoint::new(dw);
        let most = (ins + outs) * groups.size.div_ceil(chunk) * self.points(chunk);
        common([most], |[points]| {
            for g in 0..groups.count() {
                let chunks = Chunks::new(groups.get(g), chunk);
                let (one, n) = (self.points(chunks.size), chunks.count());
                let points = &mut points[..(ins + outs) * n * one];
                for_each_chunk(points, one, |i, block| {
                    self.transform(chunks.get(i % n), i / n, block);
                });
                let of = |panel, c| &points[(panel * n + c) * one..][..one];
                for_each(ins * outs, |i| {
                    let (input, output) = (i / outs, i % outs);
                    own([self.products(), TRANSPOSED], |[products, transposed]| {
                        for c in 0..n {
                            let (x, dy, tiles) = (of(input, c), of(ins + output, c), chunks.get(c));
                            self.multiply(tiles.len(), (input, output), x, dy, products, c > 0);
                        }
                        let accumulate = accumulate || g > 0;
                        self.output(input, output, products, transposed, accumulate, &dw);
                    });
                });
            }
        });
    }

    fn output(
        &self,
        input: usize,
        output: usize,
        products: &[f32],
        transposed: &mut [f32],
        accumulate: bool,
        dw: &Disjoint<'_, f32>,
    ) {
        dispatch(OfBlock {
            block: products,
            stride: self.x.stride,
            transposed,
            pair: Pair {
                output: self.dy.channels.get(output),
                input: self.x.channels.get(input),
                inputs: self.x.channels.channels,
            },
            accumulate,
            weight: dw,
        });
    }

    /// products (inputs × outputs) = or += x (tiles × inputs), transposed, · dy (tiles × outputs)
    fn multiply(
        &self,
        tiles: usize,
        (input, output): (usize, usize),
        x: &[f32],
        dy: &[f32],
        products: &mut [f32],
        accumulate: bool,
    ) {
        let input = self.x.channels.get(input);
        dispatch(Multiply {
            planes: self.x.stride.planes(),
            gradient: true,
            rows: input.channels,
            depth: tiles,
            width: self.dy.channels.get(output).width(),
            a: x,
            strides: (1, input.width()),
            b: dy,
            c: products,
            accumulate,
        });
    }
}
