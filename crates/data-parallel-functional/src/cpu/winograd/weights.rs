//! Weights (O, I, 3, 3) to blocks of at most 64 × 64 channels and gradients back. A weight's nine taps
//! lie side by side, so that the channels have to be brought together by transposing.

use super::axis::Axis;
use super::axis::{nine, six};
use super::lanes::Lanes;
use super::tiling::{PANEL, Panel, Stride, WEIGHTS};
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{VECTOR as LINE, load, store};
use pulp::{Simd, WithSimd};

/// Input channels that are transposed at once, so that they stay in the first-level cache.
pub(super) const INPUTS_AT_ONCE: usize = 16;

/// Taps of [`INPUTS_AT_ONCE`] input channels.
const TAPS: usize = INPUTS_AT_ONCE * 9;

/// Floats of the scratch: [`TAPS`] rows of 64 output channels.
pub(super) const TRANSPOSED: usize = TAPS * PANEL;

/// The weights between an output panel and an input panel.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) output: Panel,
    pub(super) input: Panel,
    /// All input channels.
    pub(super) inputs: usize,
}

impl Pair {
    /// The start of output `o`'s weights with the inputs from `i` on.
    #[inline(always)]
    fn start(&self, o: usize, i: usize) -> usize {
        ((self.output.first + o) * self.inputs + self.input.first + i) * 9
    }

    /// Number of the inputs from `first` on that are transposed at once.
    #[inline(always)]
    fn some(&self, first: usize) -> usize {
        INPUTS_AT_ONCE.min(self.input.channels - first)
    }
}

/// Transforms the weights of [`INPUTS_AT_ONCE`] inputs into their part of a block: rows of inputs with all outputs, for
/// the convolution, or rows of outputs with all inputs and flipped taps, for the gradient of its input.
pub(super) struct ToBlock<'a> {
    pub(super) weight: &'a [f32],
    pub(super) pair: Pair,
    /// Of the pair's inputs, the first that is transformed.
    pub(super) first: usize,
    pub(super) stride: Stride,
    pub(super) flipped: bool,
    pub(super) block: &'a Disjoint<'a, f32>,
    pub(super) transposed: &'a mut [f32],
}

impl WithSimd for ToBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.run::<S, 16>(Lanes(simd)),
            8 => self.run::<S, 8>(Lanes(simd)),
            4 => self.run::<S, 4>(Lanes(simd)),
            1 => self.run::<S, 1>(Lanes(simd)),
            n => unreachable!("vectors of {n} floats"),
        }
    }
}

impl ToBlock<'_> {
    /// With vectors of N floats.
    #[inline(always)]
    fn run<S: Simd, const N: usize>(mut self, simd: Lanes<S>) {
        let first = self.first;
        self.transpose::<S, N>(simd, first);
        if self.flipped {
            self.outputs::<S, N>(simd, first);
        } else {
            self.inputs(simd, first);
        }
    }

    /// Brings each tap's weights of neighbouring outputs together. Past the last channel come zeros.
    #[inline(always)]
    fn transpose<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        let outputs = self.pair.output.channels;
        let taps = self.pair.some(first) * 9;
        for o in (0..outputs).step_by(N) {
            for tap in (0..TAPS).step_by(N) {
                let mut square = [simd.zero(); N];
                let at = self.pair.start(o, first) + tap;
                if o + N <= outputs && tap + N <= taps {
                    square = simd.gather(self.weight, at, self.pair.inputs * 9);
                } else if tap < taps {
                    for (r, row) in square.iter_mut().enumerate().take(outputs - o) {
                        let from = &self.weight[at + r * self.pair.inputs * 9..];
                        *row = load(simd.0, &from[..N.min(taps - tap)]);
                    }
                }
                let square = simd.transpose(square);
                simd.scatter(self.transposed, tap * PANEL + o, PANEL, square);
            }
        }
    }

    /// Has output `o`'s weights brought to the cache that are transposed next, or would be: those of the next inputs.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: Lanes<S>, o: usize, first: usize) {
        let next = self.pair.start(o, first + INPUTS_AT_ONCE);
        for line in (0..TAPS + LINE).step_by(LINE) {
            simd.prefetch(self.weight.as_ptr().wrapping_add(next + line));
        }
    }

    /// Transforms the block's rows of some inputs.
    #[inline(always)]
    fn inputs<S: Simd>(&mut self, simd: Lanes<S>, first: usize) {
        let outputs = self.pair.output.channels;
        let width = self.pair.output.width();
        for i in 0..self.pair.some(first) {
            for o in (i..outputs).step_by(INPUTS_AT_ONCE) {
                self.prefetch(simd, o, first);
            }
            for o in (0..outputs).step_by(Lanes::<S>::COUNT) {
                let taps = [0, 3, 6].map(
                    #[inline(always)]
                    |tap| simd.gather(self.transposed, (i * 9 + tap) * PANEL + o, PANEL),
                );
                self.points(simd, taps, (first + i) * width + o);
            }
        }
    }

    /// Transforms some columns of the block's rows of outputs. In `transposed` the outputs lie side by side, in the block
    /// the inputs do: so each square is transposed again.
    #[inline(always)]
    fn outputs<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        let width = self.pair.input.width();
        for i in (0..self.pair.some(first)).step_by(N) {
            for o in (0..self.pair.output.channels).step_by(N) {
                let mut squares = [[[simd.zero(); N]; 3]; 3];
                for (y, squares) in squares.iter_mut().enumerate() {
                    for (x, square) in squares.iter_mut().enumerate() {
                        let flipped_tap = 8 - (y * 3 + x);
                        let at = (i * 9 + flipped_tap) * PANEL + o;
                        *square = simd.transpose(simd.gather(self.transposed, at, 9 * PANEL));
                    }
                }
                for r in 0..N {
                    self.prefetch(simd, o + r, first);
                    let [a, b, c] = &squares;
                    let taps = [a, b, c].map(|[a, b, c]| [a[r], b[r], c[r]]);
                    self.points(simd, taps, (o + r) * width + first + i);
                }
            }
        }
    }

    #[inline(always)]
    fn points<S: Simd>(&mut self, simd: Lanes<S>, taps: [[S::f32s; 3]; 3], at: usize) {
        match self.stride {
            Stride::One => self.scatter::<S, six::OfWeight>(simd, taps, at),
            Stride::Two => self.scatter::<S, nine::OfWeight>(simd, taps, at),
        }
    }

    #[inline(always)]
    fn scatter<S: Simd, T: Axis<3, 6>>(
        &mut self,
        simd: Lanes<S>,
        taps: [[S::f32s; 3]; 3],
        at: usize,
    ) {
        let plane = self.block.len() / WEIGHTS;
        let columns = T::rows(
            simd,
            #[inline(always)]
            |i| taps[i],
        );
        for (x, column) in columns.into_iter().enumerate() {
            let points = T::transform(simd, column);
            // Safety: no other task has these inputs of this block.
            unsafe { simd.scatter_shared(self.block, x * plane + at, 6 * plane, points) }
        }
    }
}

/// Transforms a block of gradients, rows of inputs with all outputs, to the gradients of the weights.
pub(super) struct OfBlock<'a> {
    pub(super) block: &'a [f32],
    pub(super) transposed: &'a mut [f32],
    pub(super) pair: Pair,
    pub(super) stride: Stride,
    pub(super) accumulate: bool,
    pub(super) weight: &'a Disjoint<'a, f32>,
}

impl WithSimd for OfBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.run::<S, 16>(Lanes(simd)),
            8 => self.run::<S, 8>(Lanes(simd)),
            4 => self.run::<S, 4>(Lanes(simd)),
            1 => self.run::<S, 1>(Lanes(simd)),
            n => unreachable!("vectors of {n} floats"),
        }
    }
}

impl OfBlock<'_> {
    /// With vectors of N floats.
    #[inline(always)]
    fn run<S: Simd, const N: usize>(mut self, simd: Lanes<S>) {
        for first in (0..self.pair.input.channels).step_by(INPUTS_AT_ONCE) {
            match self.stride {
                Stride::One => self.taps::<S, six::ToWeight>(simd, first),
                Stride::Two => self.taps::<S, nine::ToWeight>(simd, first),
            }
            self.transpose::<S, N>(simd, first);
        }
    }

    #[inline(always)]
    fn taps<S: Simd, T: Axis<6, 3>>(&mut self, simd: Lanes<S>, first: usize) {
        let plane = self.block.len() / WEIGHTS;
        let outputs = self.pair.output.channels;
        let width = self.pair.output.width();
        for i in 0..self.pair.some(first) {
            // the gradients that `transpose` writes lie far apart
            for o in (i..outputs).step_by(INPUTS_AT_ONCE) {
                for line in (0..TAPS + LINE).step_by(LINE) {
                    simd.prefetch(self.weight.address(self.pair.start(o, first) + line));
                }
            }
            for o in (0..outputs).step_by(Lanes::<S>::COUNT) {
                let points = simd.square(self.block, (first + i) * width + o, plane);
                for (x, column) in T::rows(simd, points).into_iter().enumerate() {
                    let at = (i * 9 + x) * PANEL + o;
                    let taps = T::transform(simd, column);
                    simd.scatter(self.transposed, at, 3 * PANEL, taps);
                }
            }
        }
    }

    #[inline(always)]
    fn transpose<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        let outputs = self.pair.output.channels;
        let taps = self.pair.some(first) * 9;
        for o in (0..outputs).step_by(N) {
            for tap in (0..taps).step_by(N) {
                let square: [_; N] = simd.gather(self.transposed, tap * PANEL + o, PANEL);
                let rows = simd.transpose(square).into_iter().enumerate();
                for (r, row) in rows.take(outputs - o) {
                    let at = self.pair.start(o + r, first) + tap;
                    // Safety: no other task has these panels.
                    let to = unsafe { self.weight.part(at, N.min(taps - tap)) };
                    let before = if self.accumulate {
                        load(simd.0, to)
                    } else {
                        simd.zero()
                    };
                    store(simd.0, to, simd.add(row, before));
                }
            }
        }
    }
}
