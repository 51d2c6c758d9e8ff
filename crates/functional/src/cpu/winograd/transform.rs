//! Tiles of 4 × 4 outputs, each with the 6 × 6 inputs under it, to products at 6 × 6 points and
//! back: along the rows of a tile and then along its columns, for a vector of channels at once.

use super::axis::Axis;
use super::axis::six::{OfInput, OfOutput, ToOutput};
use super::kernel::dispatch;
use super::lanes::Lanes;
use super::lanes::PANEL;
use super::tiling::{POINTS, Tiling};
use crate::cpu::threads::Disjoint;
use crate::ops::convolution::Geometry;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Images (B, H, W, C).
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) data: &'a [f32],
    pub(super) channels: usize,
    pub(super) tiling: Tiling,
    /// Gradients of the outputs of a convolution: not to be transformed as its inputs.
    pub(super) gradients: bool,
}

impl<'a> Images<'a> {
    /// The inputs of a convolution.
    pub(super) fn new(g: &Geometry, data: &'a [f32], channels: usize) -> Self {
        Self {
            data,
            channels,
            tiling: Tiling::new(g),
            gradients: false,
        }
    }

    /// Transforms one panel of some tiles into the rows of a block.
    pub(super) fn transform(self, tiles: Range<usize>, panel: usize, block: &mut [f32]) {
        dispatch(ToPoints {
            images: self,
            tiles,
            panel,
            block,
        });
    }

    /// A tile's N × N pixels and `margin` pixels before them, in one panel of channels; zeros
    /// where the image has none.
    #[inline(always)]
    fn window<const N: usize>(
        &self,
        tile: usize,
        margin: usize,
        panel: usize,
    ) -> [[&'a [f32; PANEL]; N]; N] {
        let t = &self.tiling;
        let (sample, top, left) = t.place(tile);
        let mut window = [[&[0.; PANEL]; N]; N];
        for (i, row) in window.iter_mut().enumerate() {
            let y = (top + i).wrapping_sub(margin);
            for (j, pixel) in row.iter_mut().enumerate() {
                let x = (left + j).wrapping_sub(margin);
                if y < t.height && x < t.width {
                    let at = ((sample * t.height + y) * t.width + x) * self.channels;
                    let channels = &self.data[at + panel * PANEL..];
                    *pixel = channels.first_chunk().expect("a panel");
                }
            }
        }
        window
    }
}

/// [`Images::transform`]
struct ToPoints<'a> {
    images: Images<'a>,
    tiles: Range<usize>,
    panel: usize,
    block: &'a mut [f32],
}

impl WithSimd for ToPoints<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.images.gradients {
            self.run::<S, OfOutput, 4>(Lanes(simd), 0);
        } else {
            self.run::<S, OfInput, 6>(Lanes(simd), 1);
        }
    }
}

impl ToPoints<'_> {
    #[inline(always)]
    fn run<S: Simd, T: Axis<N, 6>, const N: usize>(self, simd: Lanes<S>, margin: usize) {
        let plane = self.block.len() / POINTS;
        let last = self.tiles.end - 1;
        // the pixels of the next tile are on their way while this one is transformed
        let mut next = self
            .images
            .window::<N>(self.tiles.start, margin, self.panel);
        for (row, tile) in self.tiles.enumerate() {
            let window = next;
            next = self
                .images
                .window::<N>((tile + 1).min(last), margin, self.panel);
            for k in (0..PANEL).step_by(Lanes::<S>::COUNT) {
                let mut pixels = [[simd.zero(); N]; N];
                for (i, pixels) in pixels.iter_mut().enumerate() {
                    *pixels = simd.load_each(&window[i], k);
                }
                for pixel in next.as_flattened() {
                    simd.prefetch(pixel[k..].as_ptr());
                }
                for (j, column) in T::rows(simd, pixels).into_iter().enumerate() {
                    let at = j * plane + row * PANEL + k;
                    simd.scatter(self.block, at, 6 * plane, T::transform(simd, column));
                }
            }
        }
    }
}

/// Transforms the rows of a block back into one panel of some tiles: the outputs of a convolution.
pub(super) struct ToImages<'a> {
    pub(super) block: &'a [f32],
    pub(super) tiles: Range<usize>,
    pub(super) panel: usize,
    pub(super) channels: usize,
    pub(super) tiling: Tiling,
    /// Where the panel's outputs begin.
    pub(super) start: &'a [f32; PANEL],
    /// Add to what the images hold, instead of to `start`.
    pub(super) accumulate: bool,
    pub(super) images: &'a Disjoint<'a, f32>,
}

/// A tile in its image.
#[derive(Clone, Copy)]
struct Spot {
    /// The panel's first channel in the first pixel.
    first: usize,
    /// Floats between rows.
    row: usize,
    /// How much of the image there is from the first pixel on.
    height: usize,
    width: usize,
}

impl WithSimd for ToImages<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (simd, plane) = (Lanes(simd), self.block.len() / POINTS);
        let last = self.tiles.end - 1;
        for (row, tile) in self.tiles.clone().enumerate() {
            let (spot, next) = (self.spot(tile), self.spot((tile + 1).min(last)));
            for k in (0..PANEL).step_by(Lanes::<S>::COUNT) {
                let points = simd.square(self.block, row * PANEL + k, plane);
                self.prefetch(simd, next, k);
                for (j, column) in ToOutput::rows(simd, points).into_iter().enumerate() {
                    self.store(simd, spot, j, k, ToOutput::transform(simd, column));
                }
            }
        }
    }
}

impl ToImages<'_> {
    #[inline(always)]
    fn spot(&self, tile: usize) -> Spot {
        let t = &self.tiling;
        let (sample, top, left) = t.place(tile);
        let pixel = (sample * t.height + top) * t.width + left;
        Spot {
            first: pixel * self.channels + self.panel * PANEL,
            row: t.width * self.channels,
            height: t.height - top,
            width: t.width - left,
        }
    }

    #[inline(always)]
    fn prefetch<S: Simd>(&self, simd: Lanes<S>, spot: Spot, k: usize) {
        for i in 0..4 {
            for j in 0..4 {
                let at = spot.first + i * spot.row + j * self.channels + k;
                simd.prefetch(self.images.address(at));
            }
        }
    }

    /// Stores column `j` of a tile, as far as it lies inside the image.
    #[inline(always)]
    fn store<S: Simd>(&self, simd: Lanes<S>, spot: Spot, j: usize, k: usize, v: [S::f32s; 4]) {
        let start = simd.load(self.start, k);
        for (i, v) in v.into_iter().enumerate() {
            if i < spot.height && j < spot.width {
                let at = spot.first + i * spot.row + j * self.channels + k;
                // Safety: no other task has this tile and panel.
                let to = unsafe { self.images.part(at, Lanes::<S>::COUNT) };
                let before = if self.accumulate {
                    simd.load(to, 0)
                } else {
                    start
                };
                simd.store(to, 0, simd.add(v, before));
            }
        }
    }
}
