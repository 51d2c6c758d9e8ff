//! Weights (O, I, 3, 3) to blocks of 64 × 64 channels and gradients back. A weight's nine taps lie
//! side by side, so that 64 channels have to be brought together by transposing.

use super::axis::Axis;
use super::axis::six::{OfWeight, ToWeight};
use super::lanes::Lanes;
use super::lanes::PANEL;
use super::tiling::POINTS;
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::VECTOR as LINE;
use pulp::{Simd, WithSimd};

/// Input channels that are transposed at once, so that they stay in the first-level cache.
const SOME: usize = 16;

/// Taps of [`SOME`] input channels.
const TAPS: usize = SOME * 9;

/// Floats of the scratch: [`TAPS`] rows of 64 output channels.
pub(super) const TRANSPOSED: usize = TAPS * PANEL;

/// The 64 × 64 weights between an output panel and an input panel.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub(super) output: usize,
    pub(super) input: usize,
    /// All input channels.
    pub(super) inputs: usize,
}

impl Panels {
    /// Where output `o`'s weights with the inputs from `i` on begin.
    #[inline(always)]
    fn start(&self, o: usize, i: usize) -> usize {
        ((self.output * PANEL + o) * self.inputs + self.input * PANEL + i) * 9
    }
}

/// Transforms weights into a block: rows of inputs with 64 outputs, for the convolution, or rows of
/// outputs with 64 inputs and flipped taps, for the gradient of its input.
pub(super) struct ToBlock<'a> {
    pub(super) weight: &'a [f32],
    pub(super) panels: Panels,
    pub(super) flipped: bool,
    pub(super) block: &'a mut [f32],
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
        for first in (0..PANEL).step_by(SOME) {
            self.transpose::<S, N>(simd, first);
            if self.flipped {
                self.outputs::<S, N>(simd, first);
            } else {
                self.inputs(simd, first);
            }
        }
    }

    #[inline(always)]
    fn transpose<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        for o in (0..PANEL).step_by(N) {
            for tap in (0..TAPS).step_by(N) {
                let at = self.panels.start(o, first) + tap;
                let square: [_; N] = simd.gather(self.weight, at, self.panels.inputs * 9);
                let square = simd.transpose(square);
                simd.scatter(self.transposed, tap * PANEL + o, PANEL, square);
            }
        }
    }

    /// Output `o`'s weights that are transposed next, or would be: those of the next inputs.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: Lanes<S>, o: usize, first: usize) {
        let next = self.panels.start(o, first + SOME);
        for line in (0..TAPS + LINE).step_by(LINE) {
            simd.prefetch(self.weight.as_ptr().wrapping_add(next + line));
        }
    }

    /// The block's rows of some inputs.
    #[inline(always)]
    fn inputs<S: Simd>(&mut self, simd: Lanes<S>, first: usize) {
        for i in 0..SOME {
            for o in (i..PANEL).step_by(SOME) {
                self.prefetch(simd, o, first);
            }
            for o in (0..PANEL).step_by(Lanes::<S>::COUNT) {
                let taps = simd.square(self.transposed, i * 9 * PANEL + o, PANEL);
                self.points(simd, taps, (first + i) * PANEL + o);
            }
        }
    }

    /// Some columns of the block's rows of outputs: the other way round again.
    #[inline(always)]
    fn outputs<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        for i in (0..SOME).step_by(N) {
            for o in (0..PANEL).step_by(N) {
                let mut squares = [[[simd.zero(); N]; 3]; 3];
                for (y, squares) in squares.iter_mut().enumerate() {
                    for (x, square) in squares.iter_mut().enumerate() {
                        let at = (i * 9 + 8 - y * 3 - x) * PANEL + o;
                        *square = simd.transpose(simd.gather(self.transposed, at, 9 * PANEL));
                    }
                }
                for r in 0..N {
                    self.prefetch(simd, o + r, first);
                    let [a, b, c] = &squares;
                    let taps = [a, b, c].map(|[a, b, c]| [a[r], b[r], c[r]]);
                    self.points(simd, taps, (o + r) * PANEL + first + i);
                }
            }
        }
    }

    #[inline(always)]
    fn points<S: Simd>(&mut self, simd: Lanes<S>, taps: [[S::f32s; 3]; 3], at: usize) {
        let plane = self.block.len() / POINTS;
        for (x, column) in OfWeight::rows(simd, taps).into_iter().enumerate() {
            let points = OfWeight::transform(simd, column);
            simd.scatter(self.block, x * plane + at, 6 * plane, points);
        }
    }
}

/// Transforms a block of gradients, rows of inputs with 64 outputs, to those of the weights.
pub(super) struct OfBlock<'a> {
    pub(super) block: &'a [f32],
    pub(super) transposed: &'a mut [f32],
    pub(super) panels: Panels,
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
        for first in (0..PANEL).step_by(SOME) {
            self.taps(simd, first);
            self.transpose::<S, N>(simd, first);
        }
    }

    #[inline(always)]
    fn taps<S: Simd>(&mut self, simd: Lanes<S>, first: usize) {
        let plane = self.block.len() / POINTS;
        for i in 0..SOME {
            // the gradients that `transpose` writes lie far apart
            for o in (i..PANEL).step_by(SOME) {
                for line in (0..TAPS + LINE).step_by(LINE) {
                    simd.prefetch(self.weight.address(self.panels.start(o, first) + line));
                }
            }
            for o in (0..PANEL).step_by(Lanes::<S>::COUNT) {
                let points = simd.square(self.block, (first + i) * PANEL + o, plane);
                for (x, column) in ToWeight::rows(simd, points).into_iter().enumerate() {
                    let at = (i * 9 + x) * PANEL + o;
                    let taps = ToWeight::transform(simd, column);
                    simd.scatter(self.transposed, at, 3 * PANEL, taps);
                }
            }
        }
    }

    #[inline(always)]
    fn transpose<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, first: usize) {
        for o in (0..PANEL).step_by(N) {
            for tap in (0..TAPS).step_by(N) {
                let square: [_; N] = simd.gather(self.transposed, tap * PANEL + o, PANEL);
                for (r, row) in simd.transpose(square).into_iter().enumerate() {
                    let at = self.panels.start(o + r, first) + tap;
                    // Safety: no other task has these panels.
                    let to = unsafe { self.weight.part(at, N) };
                    let before = if self.accumulate {
                        simd.load(to, 0)
                    } else {
                        simd.zero()
                    };
                    simd.store(to, 0, simd.add(row, before));
                }
            }
        }
    }
}
