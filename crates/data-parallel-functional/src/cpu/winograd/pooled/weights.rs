//! Weights (O, I, 5, 5) to points, and gradients at points back to weights: a vector of channels at a
//! time. [`ToBlock`] first gathers the taps of these channels.

use super::super::axis::Axis;
use super::super::axis::eight::{OfWeight, ToWeight};
use super::super::lanes::Lanes;
use super::sizes::{KERNEL, POINTS, SEEN, plane};
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{VECTOR, store};
use pulp::{Simd, WithSimd};

/// Taps of a kernel.
pub(super) const TAPS: usize = KERNEL * KERNEL;

/// One row of a block of weights.
pub(super) struct ToBlock<'a> {
    /// From the row's first weight on.
    pub(super) weight: &'a [f32],
    /// Floats from channel to channel.
    pub(super) step: usize,
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) row: usize,
    pub(super) block: &'a Disjoint<'a, f32>,
}

impl WithSimd for ToBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let v = Lanes(simd);
        let plane = self.block.len() / POINTS;
        for k in (0..self.width).step_by(Lanes::<S>::COUNT) {
            let taps = self.taps::<S>(k);
            let rows = v.square(&taps, 0, VECTOR);
            for (x, column) in OfWeight::rows(v, rows).into_iter().enumerate() {
                for (y, point) in OfWeight::transform(v, column).into_iter().enumerate() {
                    let at = (y * SEEN + x) * plane + self.row * self.width + k;
                    // Safety: no other task has this row.
                    let to = unsafe { self.block.part(at, Lanes::<S>::COUNT) };
                    store(simd, to, point);
                }
            }
        }
    }
}

impl ToBlock<'_> {
    /// The kernels of a vector of channels, with zeros past the last one.
    #[inline(always)]
    fn taps<S: Simd>(&self, k: usize) -> [f32; TAPS * VECTOR] {
        let mut taps = [0.; TAPS * VECTOR];
        for lane in 0..Lanes::<S>::COUNT.min(self.channels.saturating_sub(k)) {
            let theirs = &self.weight[(k + lane) * self.step..][..TAPS];
            for (tap, w) in theirs.iter().enumerate() {
                taps[tap * VECTOR + lane] = *w;
            }
        }
        taps
    }
}

/// Gradients of weights: from a block, rows of inputs with all outputs, to rows of taps.
pub(super) struct OfBlock<'a> {
    pub(super) block: &'a [f32],
    pub(super) inputs: usize,
    pub(super) width: usize,
    pub(super) taps: &'a mut [f32],
}

impl WithSimd for OfBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let v = Lanes(simd);
        let plane = plane(self.block);
        for i in 0..self.inputs {
            for k in (0..self.width).step_by(Lanes::<S>::COUNT) {
                let points = v.square(self.block, i * self.width + k, plane);
                for (x, column) in ToWeight::rows(v, points).into_iter().enumerate() {
                    let at = (i * TAPS + x) * self.width + k;
                    let column = ToWeight::transform(v, column);
                    v.scatter(self.taps, at, KERNEL * self.width, column);
                }
            }
        }
    }
}
