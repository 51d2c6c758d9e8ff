//! ReLU and average pooling of a band, and back.

use super::Direct;
use crate::cpu::vector::{load, store};
use pulp::{Simd, WithSimd};

/// y, the mean of each window of z after ReLU.
pub(super) struct Pool<'a> {
    pub(super) d: &'a Direct,
    pub(super) z: &'a [f32],
    pub(super) y: &'a mut [f32],
}

impl WithSimd for Pool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { d, z, y } = self;
        let share = simd.splat_f32s(d.share());
        for (line, y) in y.chunks_exact_mut(d.y_line()).enumerate() {
            for (column, y) in y.chunks_exact_mut(d.g.out_channels).enumerate() {
                let z = &z[d.window_start(line, column)..];
                for c in (0..y.len()).step_by(S::F32_LANES) {
                    let mut sum = simd.splat_f32s(0.);
                    for pixel in &d.window {
                        let z = load(simd, &z[pixel + c..]);
                        sum = simd.add_f32s(sum, d.relu(simd, z, z));
                    }
                    store(simd, &mut y[c..], simd.mul_f32s(sum, share));
                }
            }
        }
    }
}

/// dz, and what it adds to the bias's gradient.
pub(super) struct Unpool<'a> {
    pub(super) d: &'a Direct,
    pub(super) dy: &'a [f32],
    /// Empty without ReLU.
    pub(super) z: &'a [f32],
    pub(super) dz: &'a mut [f32],
    pub(super) db: &'a mut [f32],
}

impl WithSimd for Unpool<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { d, dy, z, dz, db } = self;
        let share = simd.splat_f32s(d.share());
        for c in (0..d.g.out_channels).step_by(S::F32_LANES) {
            // the band first, which keeps the sum exact to a few bits
            let mut sum = simd.splat_f32s(0.);
            for (line, dy) in dy.chunks_exact(d.y_line()).enumerate() {
                for (column, dy) in dy.chunks_exact(d.g.out_channels).enumerate() {
                    let dy = simd.mul_f32s(load(simd, &dy[c..]), share);
                    let first = d.window_start(line, column) + c;
                    for pixel in &d.window {
                        let z = load(simd, z.get(first + pixel..).unwrap_or_default());
                        let here = d.relu(simd, z, dy);
                        sum = simd.add_f32s(sum, here);
                        store(simd, &mut dz[first + pixel..], here);
                    }
                }
            }
            let db = &mut db[c..];
            store(simd, db, simd.add_f32s(load(simd, db), sum));
        }
    }
}

impl Direct {
    fn share(&self) -> f32 {
        1. / (self.pool * self.pool) as f32
    }

    /// Where in z a window of a band begins.
    fn window_start(&self, line: usize, column: usize) -> usize {
        (line * self.columns() + column) * self.pool * self.z_pixel()
    }

    /// `value` where z is above 0 or NaN, as in [`crate::relu`], else 0.
    #[inline(always)]
    fn relu<S: Simd>(&self, simd: S, z: S::f32s, value: S::f32s) -> S::f32s {
        if !self.relu {
            return value;
        }
        let zero = simd.splat_f32s(0.);
        simd.select_f32s(simd.less_than_or_equal_f32s(z, zero), zero, value)
    }
}
