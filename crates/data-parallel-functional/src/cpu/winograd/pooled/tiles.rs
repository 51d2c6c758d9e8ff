//! Tiles of 4 × 4 outputs, which are four pooling windows, each with the 8 × 8 inputs under it, to
//! products at 8 × 8 points and back: along the rows of a tile and then along its columns, for a
//! vector of channels at once.

use super::super::axis::Axis;
use super::super::axis::eight::{OfInput, OfOutput, ToInput, ToOutput};
use super::super::lanes::Lanes;
use super::sizes::{Pooled, plane};
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{load, store};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Inputs to points.
pub(super) struct ToPoints<'a> {
    pub(super) pooled: &'a Pooled,
    pub(super) tiles: Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) points: &'a mut [f32],
}

impl WithSimd for ToPoints<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (v, plane) = (Lanes(simd), plane(self.points));
        let width = self.pooled.widths().0;
        for (row, tile) in self.tiles.clone().enumerate() {
            for k in (0..self.pooled.g.channels).step_by(Lanes::<S>::COUNT) {
                let pixels = self.pixels(v, tile, k);
                for (j, column) in OfInput::rows(v, pixels).into_iter().enumerate() {
                    let at = j * plane + row * width + k;
                    v.scatter(self.points, at, 8 * plane, OfInput::transform(v, column));
                }
            }
        }
    }
}

impl ToPoints<'_> {
    /// The rows of a tile, a vector of each pixel, with zeros where no window sees them.
    #[inline(always)]
    fn pixels<S: Simd>(
        &self,
        v: Lanes<S>,
        tile: usize,
        k: usize,
    ) -> impl Fn(usize) -> [S::f32s; 8] {
        let g = &self.pooled.g;
        let (sample, top, left) = self.pooled.place(tile);
        let (height, width) = self.pooled.seen();
        let lanes = Lanes::<S>::COUNT.min(g.channels - k);
        #[inline(always)]
        move |i| {
            let first = ((sample * g.height + top + i) * g.width + left) * g.channels + k;
            if top + i < height && left + 8 <= width {
                v.gather_part(self.x, first, g.channels, lanes)
            } else {
                let there = if top + i < height { width - left } else { 0 };
                self.border(v, first, there, lanes)
            }
        }
    }

    /// A row of which only the first pixels are there.
    #[inline(always)]
    fn border<S: Simd>(
        &self,
        v: Lanes<S>,
        first: usize,
        pixels: usize,
        lanes: usize,
    ) -> [S::f32s; 8] {
        let mut row = [v.zero(); 8];
        for (j, pixel) in row.iter_mut().enumerate().take(pixels) {
            [*pixel] = v.gather_part(self.x, first + j * self.pooled.g.channels, 0, lanes);
        }
        row
    }
}

/// Products to outputs, after ReLU and pooling.
pub(super) struct ToOutputs<'a> {
    pub(super) pooled: &'a Pooled,
    pub(super) products: &'a [f32],
    pub(super) tiles: Range<usize>,
    pub(super) bias: &'a [f32],
    /// x, if outputs that see nothing but zeros are to be exact: where the bias is 0 they lie on the
    /// edge of ReLU, and rounding must not decide whether they have a gradient.
    pub(super) zeros: Option<&'a [f32]>,
    pub(super) y: &'a Disjoint<'a, f32>,
    /// For each y, which of its window's four pixels are above 0 or NaN, as bits. Or empty.
    pub(super) positive: &'a Disjoint<'a, f32>,
}

impl WithSimd for ToOutputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (v, plane) = (Lanes(simd), plane(self.products));
        let (channels, width) = (self.pooled.g.out_channels, self.pooled.widths().1);
        for (row, tile) in self.tiles.clone().enumerate() {
            let exact = self.zeros.map(|x| self.pooled.sees_zeros(x, tile));
            for k in (0..channels).step_by(Lanes::<S>::COUNT) {
                let lanes = Lanes::<S>::COUNT.min(channels - k);
                let points = v.square(self.products, row * width + k, plane);
                let [bias] = v.gather_part(self.bias, k, 0, lanes);
                let mut z = [[bias; 4]; 4];
                for (j, column) in ToOutput::rows(v, points).into_iter().enumerate() {
                    for (i, value) in ToOutput::transform(v, column).into_iter().enumerate() {
                        z[i][j] = v.add(z[i][j], value);
                    }
                }
                if let Some(exact) = &exact {
                    for (z, exact) in z.as_flattened_mut().iter_mut().zip(exact.as_flattened()) {
                        *z = if *exact { bias } else { *z };
                    }
                }
                for (q, window) in windows(z).into_iter().enumerate() {
                    if let Some(output) = self.pooled.output(tile, q / 2, q % 2) {
                        self.store(v, window, output + k, lanes);
                    }
                }
            }
        }
    }
}

/// The four windows of a tile, each with its four pixels.
#[inline(always)]
fn windows<T: Copy>([a, b, c, d]: [[T; 4]; 4]) -> [[T; 4]; 4] {
    [
        [a[0], a[1], b[0], b[1]],
        [a[2], a[3], b[2], b[3]],
        [c[0], c[1], d[0], d[1]],
        [c[2], c[3], d[2], d[3]],
    ]
}

impl ToOutputs<'_> {
    /// The output of a window.
    #[inline(always)]
    fn store<S: Simd>(&self, v: Lanes<S>, window: [S::f32s; 4], at: usize, lanes: usize) {
        let (simd, none) = (v.0, v.0.splat_u32s(0));
        let (mut sum, mut positive) = (v.zero(), none);
        for (q, z) in window.into_iter().enumerate() {
            // NaN stays
            let cut = simd.less_than_or_equal_f32s(z, v.zero());
            sum = v.add(sum, v.positive(z));
            let bit = simd.splat_u32s(1 << q);
            positive = simd.or_u32s(positive, simd.select_u32s(cut, none, bit));
        }
        // Safety: no other task has this tile.
        let to = unsafe { self.y.part(at, lanes) };
        store(simd, to, v.mul(0.25, sum));
        if self.positive.len() > 0 {
            // Safety: as above.
            let to = unsafe { self.positive.part(at, lanes) };
            store(simd, to, simd.transmute_f32s_u32s(positive));
        }
    }
}

/// Gradients of outputs to points, back through pooling and ReLU.
pub(super) struct OfOutputs<'a> {
    pub(super) pooled: &'a Pooled,
    pub(super) tiles: Range<usize>,
    pub(super) dy: &'a [f32],
    pub(super) positive: &'a [f32],
    pub(super) points: &'a mut [f32],
    /// The gradient of the bias, to which theirs is added.
    pub(super) db: &'a mut [f32],
}

impl WithSimd for OfOutputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (v, plane) = (Lanes(simd), plane(self.points));
        let (channels, width) = (self.pooled.g.out_channels, self.pooled.widths().1);
        for k in (0..channels).step_by(Lanes::<S>::COUNT) {
            let lanes = Lanes::<S>::COUNT.min(channels - k);
            // the chunk first, which keeps the sum exact to a few bits
            let mut sum = v.zero();
            for (row, tile) in self.tiles.clone().enumerate() {
                let mut dz = [[v.zero(); 4]; 4];
                for (q, window) in dz.iter_mut().enumerate() {
                    if let Some(output) = self.pooled.output(tile, q / 2, q % 2) {
                        *window = self.window(v, output + k, lanes);
                    }
                }
                for value in dz.as_flattened() {
                    sum = v.add(sum, *value);
                }
                let dz = windows(dz); // to windows and back is the same
                let columns = OfOutput::rows(
                    v,
                    #[inline(always)]
                    |i| dz[i],
                );
                for (j, column) in columns.into_iter().enumerate() {
                    let at = j * plane + row * width + k;
                    v.scatter(self.points, at, 8 * plane, OfOutput::transform(v, column));
                }
            }
            let db = &mut self.db[k..];
            store(simd, db, v.add(load(simd, db), sum));
        }
    }
}

impl OfOutputs<'_> {
    /// The gradients of a window's pixels.
    #[inline(always)]
    fn window<S: Simd>(&self, v: Lanes<S>, at: usize, lanes: usize) -> [S::f32s; 4] {
        let simd = v.0;
        let [dy] = v.gather_part(self.dy, at, 0, lanes);
        let [positive] = v.gather_part(self.positive, at, 0, lanes);
        let (dy, positive) = (v.mul(0.25, dy), simd.transmute_u32s_f32s(positive));
        let mut window = [v.zero(); 4];
        for (q, dz) in window.iter_mut().enumerate() {
            let bit = simd.and_u32s(positive, simd.splat_u32s(1 << q));
            let cut = simd.equal_u32s(bit, simd.splat_u32s(0));
            *dz = simd.select_f32s(cut, v.zero(), dy);
        }
        window
    }
}

/// Products to gradients of inputs, which are added up on a canvas as large as a sample.
pub(super) struct ToInputs<'a> {
    pub(super) pooled: &'a Pooled,
    pub(super) products: &'a [f32],
    pub(super) tiles: Range<usize>,
    /// The first sample of dx.
    pub(super) first: usize,
    pub(super) canvas: &'a mut [f32],
    pub(super) dx: &'a mut [f32],
}

impl WithSimd for ToInputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (v, plane) = (Lanes(simd), plane(self.products));
        let (width, row) = (self.pooled.widths().0, self.pooled.canvas().0);
        let (tiles, size) = (self.pooled.tiles(), self.pooled.g.sample());
        for (i, tile) in self.tiles.enumerate() {
            let (sample, top, left) = self.pooled.place(tile);
            if tile % tiles == 0 {
                self.canvas.fill(0.);
            }
            for k in (0..width).step_by(Lanes::<S>::COUNT) {
                let points = v.square(self.products, i * width + k, plane);
                for (j, column) in ToInput::rows(v, points).into_iter().enumerate() {
                    let at = top * row + (left + j) * width + k;
                    let mut sums: [_; 8] = v.gather(self.canvas, at, row);
                    for (sum, part) in sums.iter_mut().zip(ToInput::transform(v, column)) {
                        *sum = v.add(*sum, part);
                    }
                    v.scatter(self.canvas, at, row, sums);
                }
            }
            if tile % tiles == tiles - 1 {
                let dx = &mut self.dx[(sample - self.first) * size..][..size];
                self.pooled.copy(self.canvas, dx);
            }
        }
    }
}

impl Pooled {
    /// Which outputs of a tile see nothing but zeros.
    fn sees_zeros(&self, x: &[f32], tile: usize) -> [[bool; 4]; 4] {
        let (g, (height, width)) = (&self.g, self.seen());
        let (sample, top, left) = self.place(tile);
        // a bit for each pixel that is not zero
        let mut lit = [0u8; 8];
        for (y, lit) in (top..height).zip(&mut lit) {
            let row = &x[((sample * g.height + y) * g.width + left) * g.channels..];
            let pixels = row.chunks_exact(g.channels).take(width - left);
            for (bit, pixel) in pixels.take(8).enumerate() {
                *lit |= u8::from(pixel.iter().any(|&v| v != 0.)) << bit;
            }
        }
        let mut zeros = [[false; 4]; 4];
        for (i, row) in zeros.iter_mut().enumerate() {
            let lit = lit[i..i + 5].iter().fold(0, |all, row| all | row);
            for (j, zero) in row.iter_mut().enumerate() {
                *zero = lit >> j & 0b11111 == 0;
            }
        }
        zeros
    }

    /// A canvas to the gradient of a sample, with zeros where no window sees it.
    #[inline(always)]
    fn copy(&self, canvas: &[f32], dx: &mut [f32]) {
        let (width, row) = (self.widths().0, self.canvas().0);
        let (channels, line) = (self.g.channels, self.g.width * self.g.channels);
        dx.fill(0.);
        let rows = canvas.chunks_exact(row).zip(dx.chunks_exact_mut(line));
        for (canvas, dx) in rows.take(self.seen().0) {
            let pixels = canvas
                .chunks_exact(width)
                .zip(dx.chunks_exact_mut(channels));
            for (canvas, dx) in pixels.take(self.seen().1) {
                dx.copy_from_slice(&canvas[..channels]);
            }
        }
    }
}
