//! Tiles of 4 × 4 outputs, which are four pooling windows, each with the 8 × 8 inputs under it, to
//! products at 8 × 8 points and back: along the rows of a tile and then along its columns, for a
//! vector of channels at once.
//!
//! A block has a plane for each point: point (i, j) has plane 8 · i + j. In each plane a tile has one row, of all
//! channels. So column j of a tile's points lies in the planes j, j + 8, j + 16 and so on.
//!
//! k is the first channel of a vector. Of the last vector only the first lanes are channels.

use super::super::axis::Axis;
use super::super::axis::eight::{OfInput, OfOutput, ToInput, ToOutput};
use super::super::lanes::Lanes;
use super::super::tiling::Place;
use super::sizes::{KERNEL, Pooled, SEEN, TILE, WINDOW, plane};
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{load, store};
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Pixels of a window. A tile has as many windows.
const PIXELS: usize = WINDOW * WINDOW;

/// The weight of a pixel in the mean of its window.
const SHARE: f32 = 1. / PIXELS as f32;

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
        let v = Lanes(simd);
        let plane = plane(self.points);
        let width = self.pooled.in_width();
        for (row, tile) in self.tiles.clone().enumerate() {
            for k in (0..self.pooled.g.channels).step_by(Lanes::<S>::COUNT) {
                let pixels = self.pixels(v, tile, k);
                for (j, column) in OfInput::rows(v, pixels).into_iter().enumerate() {
                    let at = j * plane + row * width + k;
                    let points = OfInput::transform(v, column);
                    v.scatter(self.points, at, SEEN * plane, points);
                }
            }
        }
    }
}

impl ToPoints<'_> {
    /// The rows of a tile's inputs, a vector of each pixel, with zeros where no window sees them.
    #[inline(always)]
    fn pixels<S: Simd>(
        &self,
        v: Lanes<S>,
        tile: usize,
        k: usize,
    ) -> impl Fn(usize) -> [S::f32s; SEEN] {
        let g = &self.pooled.g;
        let Place { sample, top, left } = self.pooled.tiling.place(tile);
        let height = self.pooled.seen_height();
        let width = self.pooled.seen_width();
        let lanes = Lanes::<S>::COUNT.min(g.channels - k);
        #[inline(always)]
        move |i| {
            let first = ((sample * g.height + top + i) * g.width + left) * g.channels + k;
            if top + i < height && left + SEEN <= width {
                v.gather_part(self.x, first, g.channels, lanes)
            } else {
                let seen = if top + i < height { width - left } else { 0 };
                self.border(v, first, seen, lanes)
            }
        }
    }

    /// A row of which windows see only the first pixels.
    #[inline(always)]
    fn border<S: Simd>(
        &self,
        v: Lanes<S>,
        first: usize,
        seen: usize,
        lanes: usize,
    ) -> [S::f32s; SEEN] {
        let mut row = [v.zero(); SEEN];
        for (j, pixel) in row.iter_mut().enumerate().take(seen) {
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
        let v = Lanes(simd);
        let plane = plane(self.products);
        let channels = self.pooled.g.out_channels;
        let width = self.pooled.out_width();
        for (row, tile) in self.tiles.clone().enumerate() {
            let sees_zeros = self.zeros.map(|x| self.pooled.sees_zeros(x, tile));
            for k in (0..channels).step_by(Lanes::<S>::COUNT) {
                let lanes = Lanes::<S>::COUNT.min(channels - k);
                let points = v.square(self.products, row * width + k, plane);
                let [bias] = v.gather_part(self.bias, k, 0, lanes);
                let mut z = [[bias; TILE]; TILE];
                for (j, column) in ToOutput::rows(v, points).into_iter().enumerate() {
                    for (i, value) in ToOutput::transform(v, column).into_iter().enumerate() {
                        z[i][j] = v.add(z[i][j], value);
                    }
                }
                if let Some(sees_zeros) = &sees_zeros {
                    let all = z.as_flattened_mut().iter_mut();
                    for (z, only_zeros) in all.zip(sees_zeros.as_flattened()) {
                        *z = if *only_zeros { bias } else { *z };
                    }
                }
                for (w, window) in rows_to_windows(z).into_iter().enumerate() {
                    if let Some(output) = self.pooled.output(tile, w / WINDOW, w % WINDOW) {
                        self.store(v, window, output + k, lanes);
                    }
                }
            }
        }
    }
}

/// The four windows of a tile, each with its four pixels row after row. The same exchange brings windows back to rows.
#[inline(always)]
fn rows_to_windows<T: Copy>([a, b, c, d]: [[T; TILE]; TILE]) -> [[T; PIXELS]; PIXELS] {
    [
        [a[0], a[1], b[0], b[1]],
        [a[2], a[3], b[2], b[3]],
        [c[0], c[1], d[0], d[1]],
        [c[2], c[3], d[2], d[3]],
    ]
}

impl ToOutputs<'_> {
    /// Stores the output of a window, and which of its pixels are positive.
    #[inline(always)]
    fn store<S: Simd>(&self, v: Lanes<S>, window: [S::f32s; PIXELS], at: usize, lanes: usize) {
        let simd = v.0;
        let no_bits = simd.splat_u32s(0);
        let mut sum = v.zero();
        let mut positive = no_bits;
        for (pixel, z) in window.into_iter().enumerate() {
            // a comparison that is false for NaN, so that its bit is set
            let cut = simd.less_than_or_equal_f32s(z, v.zero());
            sum = v.add(sum, v.positive(z));
            let bit = simd.splat_u32s(1 << pixel);
            positive = simd.or_u32s(positive, simd.select_u32s(cut, no_bits, bit));
        }
        // Safety: no other task has this tile.
        let y = unsafe { self.y.part(at, lanes) };
        store(simd, y, v.mul(SHARE, sum));
        if self.positive.len() > 0 {
            // Safety: as above.
            let saved = unsafe { self.positive.part(at, lanes) };
            store(simd, saved, simd.transmute_f32s_u32s(positive));
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
        let v = Lanes(simd);
        let plane = plane(self.points);
        let channels = self.pooled.g.out_channels;
        let width = self.pooled.out_width();
        for k in (0..channels).step_by(Lanes::<S>::COUNT) {
            let lanes = Lanes::<S>::COUNT.min(channels - k);
            // the sum of this chunk alone is added to `db`: short sums keep it exact to a few bits
            let mut sum = v.zero();
            for (row, tile) in self.tiles.clone().enumerate() {
                let mut windows = [[v.zero(); PIXELS]; PIXELS];
                for (w, window) in windows.iter_mut().enumerate() {
                    if let Some(output) = self.pooled.output(tile, w / WINDOW, w % WINDOW) {
                        *window = self.window(v, output + k, lanes);
                    }
                }
                for dz in windows.as_flattened() {
                    sum = v.add(sum, *dz);
                }
                let rows = rows_to_windows(windows);
                let columns = OfOutput::rows(
                    v,
                    #[inline(always)]
                    |i| rows[i],
                );
                for (j, column) in columns.into_iter().enumerate() {
                    let at = j * plane + row * width + k;
                    let points = OfOutput::transform(v, column);
                    v.scatter(self.points, at, SEEN * plane, points);
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
    fn window<S: Simd>(&self, v: Lanes<S>, at: usize, lanes: usize) -> [S::f32s; PIXELS] {
        let simd = v.0;
        let [dy] = v.gather_part(self.dy, at, 0, lanes);
        let of_pixel = v.mul(SHARE, dy);
        let [saved] = v.gather_part(self.positive, at, 0, lanes);
        let positive = simd.transmute_u32s_f32s(saved);
        let mut window = [v.zero(); PIXELS];
        for (pixel, dz) in window.iter_mut().enumerate() {
            let bit = simd.and_u32s(positive, simd.splat_u32s(1 << pixel));
            let cut = simd.equal_u32s(bit, simd.splat_u32s(0));
            *dz = simd.select_f32s(cut, v.zero(), of_pixel);
        }
        window
    }
}

/// Products to gradients of inputs. Tiles overlap, so these are added up on a canvas of one sample, which has room for
/// whole tiles and whole vectors.
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
        let v = Lanes(simd);
        let plane = plane(self.products);
        let width = self.pooled.in_width();
        let canvas_row = self.pooled.canvas_row();
        let tiles_of_sample = self.pooled.tiling.of_sample();
        let sample_size = self.pooled.g.sample();
        for (row, tile) in self.tiles.enumerate() {
            let Place { sample, top, left } = self.pooled.tiling.place(tile);
            if tile % tiles_of_sample == 0 {
                self.canvas.fill(0.);
            }
            for k in (0..width).step_by(Lanes::<S>::COUNT) {
                let points = v.square(self.products, row * width + k, plane);
                for (j, column) in ToInput::rows(v, points).into_iter().enumerate() {
                    let at = top * canvas_row + (left + j) * width + k;
                    let mut sums: [_; SEEN] = v.gather(self.canvas, at, canvas_row);
                    for (sum, part) in sums.iter_mut().zip(ToInput::transform(v, column)) {
                        *sum = v.add(*sum, part);
                    }
                    v.scatter(self.canvas, at, canvas_row, sums);
                }
            }
            // the canvas is complete after the sample's last tile, which may be in a later chunk
            if tile % tiles_of_sample == tiles_of_sample - 1 {
                let dx = &mut self.dx[(sample - self.first) * sample_size..][..sample_size];
                self.pooled.copy(self.canvas, dx);
            }
        }
    }
}

impl Pooled {
    /// Which outputs of a tile see nothing but zeros.
    fn sees_zeros(&self, x: &[f32], tile: usize) -> [[bool; TILE]; TILE] {
        let g = &self.g;
        let Place { sample, top, left } = self.tiling.place(tile);
        // for each row of the tile's inputs, a bit for each pixel that is not zero
        let mut lit = [0u8; SEEN];
        for (y, lit) in (top..self.seen_height()).zip(&mut lit) {
            let row = &x[((sample * g.height + y) * g.width + left) * g.channels..];
            let pixels = row.chunks_exact(g.channels).take(self.seen_width() - left);
            for (bit, pixel) in pixels.take(SEEN).enumerate() {
                *lit |= u8::from(pixel.iter().any(|&v| v != 0.)) << bit;
            }
        }
        // output (i, j) sees the rows from i on and the bits from j on, as many as the kernel has
        const KERNEL_BITS: u8 = (1 << KERNEL) - 1;
        let mut zeros = [[false; TILE]; TILE];
        for (i, row) in zeros.iter_mut().enumerate() {
            let lit = lit[i..i + KERNEL].iter().fold(0, |all, row| all | row);
            for (j, zero) in row.iter_mut().enumerate() {
                *zero = (lit >> j) & KERNEL_BITS == 0;
            }
        }
        zeros
    }

    /// Copies a canvas to the gradient of a sample, with zeros where no window sees it.
    #[inline(always)]
    fn copy(&self, canvas: &[f32], dx: &mut [f32]) {
        let channels = self.g.channels;
        dx.fill(0.);
        let canvas_rows = canvas.chunks_exact(self.canvas_row());
        let dx_rows = dx.chunks_exact_mut(self.g.width * channels);
        for (from, to) in canvas_rows.zip(dx_rows).take(self.seen_height()) {
            let canvas_pixels = from.chunks_exact(self.in_width());
            let dx_pixels = to.chunks_exact_mut(channels);
            for (from, to) in canvas_pixels.zip(dx_pixels).take(self.seen_width()) {
                to.copy_from_slice(&from[..channels]);
            }
        }
    }
}
