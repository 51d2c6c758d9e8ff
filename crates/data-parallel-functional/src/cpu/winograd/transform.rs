//! Tiles of 4 × 4 outputs, each with the inputs under it, to products at points and back: along the rows of a tile and
//! then along its columns, for a vector of channels at once.

use super::axis::{Axis, nine, six};
use super::lanes::Lanes;
use super::tiling::{PANEL, Panel, Panels, Place, Stride, TILE, Tiling};
use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{first, load, store};
use devices::dispatch;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// The role of images in a convolution.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Inputs,
    /// Gradients of its outputs, for the gradient of its inputs.
    ForInputs,
    /// Gradients of its outputs, for the gradient of its weight.
    ForWeight,
}

/// Images (B, H, W, C) under tiles of outputs.
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) data: &'a [f32],
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: Panels,
    pub(super) tiling: Tiling,
    /// Pixels from the start of the first tile's window to that of the image.
    pub(super) padding: usize,
    pub(super) stride: Stride,
    pub(super) role: Role,
}

impl Images<'_> {
    /// The start of the window of a tile. Rows and columns in the padding above and to the left are huge.
    #[inline(always)]
    fn place(&self, tile: usize) -> Place {
        let Place { sample, top, left } = self.tiling.place(tile);
        let step = match self.role {
            Role::Inputs => self.stride.pixels(),
            Role::ForInputs | Role::ForWeight => 1,
        };
        let first = |at: usize| (at * step).wrapping_sub(self.padding);
        Place {
            sample,
            top: first(top),
            left: first(left),
        }
    }

    /// True if the N × N window of a tile lies inside of its image.
    #[inline(always)]
    fn contains<const N: usize>(&self, tile: usize) -> bool {
        let place = self.place(tile);
        let fits = |first: usize, all: usize| first < all && first + N <= all;
        fits(place.top, self.height) && fits(place.left, self.width)
    }

    /// The addresses of the channels from `channel` on, of each pixel of a window; of zeros where the image has none.
    #[inline(always)]
    fn window<const N: usize>(&self, tile: usize, channel: usize) -> [[*const f32; N]; N] {
        static ZEROS: [f32; PANEL] = [0.; PANEL];
        let Place { sample, top, left } = self.place(tile);
        let mut window = [[ZEROS.as_ptr(); N]; N];
        for (i, row) in window.iter_mut().enumerate() {
            let y = top.wrapping_add(i);
            if y < self.height {
                let first = self.at(sample, y, left, channel);
                let first = self.data.as_ptr().wrapping_add(first);
                for (j, pixel) in row.iter_mut().enumerate() {
                    if left.wrapping_add(j) < self.width {
                        *pixel = first.wrapping_add(j * self.channels.channels);
                    }
                }
            }
        }
        window
    }

    /// The index of a pixel's channel, in or outside the image.
    #[inline(always)]
    fn at(&self, sample: usize, y: usize, x: usize, channel: usize) -> usize {
        let row = (sample * self.height).wrapping_add(y);
        let pixel = row.wrapping_mul(self.width).wrapping_add(x);
        pixel
            .wrapping_mul(self.channels.channels)
            .wrapping_add(channel)
    }

    /// Transforms one panel of some tiles into the rows of a block.
    pub(super) fn transform(self, tiles: Range<usize>, panel: usize, block: &mut [f32]) {
        let pixels = self.tiling.batch * self.height * self.width;
        assert_eq!(
            self.data.len(),
            pixels * self.channels.channels,
            "the images"
        );
        assert!(tiles.end <= self.tiling.tiles(), "tiles of the images");
        dispatch(ToPoints {
            images: self,
            tiles,
            panel: self.channels.get(panel),
            block,
        });
    }
}

/// [`Images::transform`]
struct ToPoints<'a> {
    images: Images<'a>,
    tiles: Range<usize>,
    panel: Panel,
    block: &'a mut [f32],
}

impl WithSimd for ToPoints<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let simd = Lanes(simd);
        match (self.images.stride, self.images.role) {
            (Stride::One, Role::Inputs | Role::ForInputs) => self.by::<S, six::OfInput, 6, 6>(simd),
            (Stride::One, Role::ForWeight) => self.by::<S, six::OfOutput, 4, 6>(simd),
            (Stride::Two, Role::Inputs) => self.by::<S, nine::OfInput, 9, 9>(simd),
            (Stride::Two, Role::ForInputs) => self.by::<S, nine::OfGradient, 5, 9>(simd),
            (Stride::Two, Role::ForWeight) => self.by::<S, nine::OfOutput, 4, 9>(simd),
        }
    }
}

impl ToPoints<'_> {
    #[inline(always)]
    fn by<S: Simd, T: Axis<N, M>, const N: usize, const M: usize>(self, simd: Lanes<S>) {
        if self.panel.channels.is_multiple_of(Lanes::<S>::COUNT) {
            self.run::<S, T, N, M, true>(simd);
        } else {
            self.run::<S, T, N, M, false>(simd);
        }
    }

    /// Transforms the tiles. All vectors of channels are whole, or not all are.
    #[inline(always)]
    fn run<S: Simd, T: Axis<N, M>, const N: usize, const M: usize, const WHOLE: bool>(
        self,
        simd: Lanes<S>,
    ) {
        let plane = self.block.len() / (M * M);
        let width = self.panel.width();
        let last = self.tiles.end - 1;
        for (row, tile) in self.tiles.clone().enumerate() {
            let border = if self.images.contains::<N>(tile) {
                None
            } else {
                Some(self.images.window::<N>(tile, self.panel.first))
            };
            for k in (0..self.panel.channels).step_by(Lanes::<S>::COUNT) {
                let rows = match &border {
                    None => T::rows(simd, self.inside::<S, N, WHOLE>(simd, tile, k)),
                    Some(window) => T::rows(simd, self.border::<S, N, WHOLE>(simd, window, k)),
                };
                self.prefetch::<S, N>(simd, (tile + 1).min(last), k);
                for (j, column) in rows.into_iter().enumerate() {
                    let at = j * plane + row * width + k;
                    simd.scatter(self.block, at, M * plane, T::transform(simd, column));
                }
            }
        }
    }

    /// The rows of a window inside of its image: a vector of the channels of each pixel.
    #[inline(always)]
    fn inside<S: Simd, const N: usize, const WHOLE: bool>(
        &self,
        simd: Lanes<S>,
        tile: usize,
        k: usize,
    ) -> impl Fn(usize) -> [S::f32s; N] {
        let images = &self.images;
        let Place { sample, top, left } = images.place(tile);
        let lanes = Lanes::<S>::COUNT.min(self.panel.channels - k);
        #[inline(always)]
        move |i| {
            let at = images.at(sample, top + i, left, self.panel.first + k);
            if WHOLE {
                simd.gather(images.data, at, images.channels.channels)
            } else {
                simd.gather_part(images.data, at, images.channels.channels, lanes)
            }
        }
    }

    /// The same of any window.
    #[inline(always)]
    fn border<S: Simd, const N: usize, const WHOLE: bool>(
        &self,
        simd: Lanes<S>,
        window: &[[*const f32; N]; N],
        k: usize,
    ) -> impl Fn(usize) -> [S::f32s; N] {
        let mask = first(simd.0, Lanes::<S>::COUNT.min(self.panel.channels - k));
        #[inline(always)]
        move |i| {
            let mut row = [simd.zero(); N];
            for (pixel, from) in row.iter_mut().zip(&window[i]) {
                let from = from.wrapping_add(k);
                // Safety: each pixel of the window has the panel's channels, from the k-th on as many as the mask.
                *pixel = unsafe {
                    if WHOLE {
                        *from.cast()
                    } else {
                        simd.0.mask_load_ptr_f32s(mask, from)
                    }
                };
            }
            row
        }
    }

    /// Has the window of a tile brought to the cache.
    #[inline(always)]
    fn prefetch<S: Simd, const N: usize>(&self, simd: Lanes<S>, tile: usize, k: usize) {
        let images = &self.images;
        let Place { sample, top, left } = images.place(tile);
        for i in 0..N {
            let first = images.at(sample, top.wrapping_add(i), left, self.panel.first + k);
            let first = images.data.as_ptr().wrapping_add(first);
            for j in 0..N {
                simd.prefetch(first.wrapping_add(j * images.channels.channels));
            }
        }
    }
}

/// Transforms the rows of a block back into one panel of some tiles: the outputs of a convolution, or the gradient of
/// its inputs.
pub(super) struct ToImages<'a> {
    pub(super) block: &'a [f32],
    pub(super) tiles: Range<usize>,
    pub(super) panel: Panel,
    /// All channels.
    pub(super) channels: usize,
    pub(super) tiling: Tiling,
    pub(super) stride: Stride,
    /// The images are gradients of inputs, not outputs.
    pub(super) inputs: bool,
    /// Rows of an image.
    pub(super) height: usize,
    /// Columns of an image.
    pub(super) width: usize,
    /// The values from which the sums of the panel's outputs begin.
    pub(super) start: &'a [f32],
    pub(super) relu: bool,
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
    /// Rows of the image from the first pixel on.
    height: usize,
    /// Columns of the image from the first pixel on.
    width: usize,
}

impl WithSimd for ToImages<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.stride, self.inputs) {
            (Stride::One, _) => self.run::<S, six::ToOutput, 6, 4>(Lanes(simd)),
            (Stride::Two, false) => self.run::<S, nine::ToOutput, 9, 4>(Lanes(simd)),
            (Stride::Two, true) => self.run::<S, nine::ToInput, 9, 8>(Lanes(simd)),
        }
    }
}

impl ToImages<'_> {
    /// With tiles of N × N pixels.
    #[inline(always)]
    fn run<S: Simd, T: Axis<M, N>, const M: usize, const N: usize>(self, simd: Lanes<S>) {
        let plane = self.block.len() / (M * M);
        let width = self.panel.width();
        let last = self.tiles.end - 1;
        for (row, tile) in self.tiles.clone().enumerate() {
            let spot = self.spot::<N>(tile);
            let next = self.spot::<N>((tile + 1).min(last));
            for k in (0..self.panel.channels).step_by(Lanes::<S>::COUNT) {
                let points = simd.square(self.block, row * width + k, plane);
                self.prefetch::<S, N>(simd, next, k);
                for (j, column) in T::rows(simd, points).into_iter().enumerate() {
                    self.store(simd, spot, j, k, T::transform(simd, column));
                }
            }
        }
    }

    #[inline(always)]
    fn spot<const N: usize>(&self, tile: usize) -> Spot {
        let place = self.tiling.place(tile);
        // places are counted in outputs
        let top = place.top * N / TILE;
        let left = place.left * N / TILE;
        let pixel = (place.sample * self.height + top) * self.width + left;
        Spot {
            first: pixel * self.channels + self.panel.first,
            row: self.width * self.channels,
            height: self.height - top,
            width: self.width - left,
        }
    }

    #[inline(always)]
    fn prefetch<S: Simd, const N: usize>(&self, simd: Lanes<S>, spot: Spot, k: usize) {
        for i in 0..N {
            for j in 0..N {
                let at = spot.first + i * spot.row + j * self.channels + k;
                simd.prefetch(self.images.address(at));
            }
        }
    }

    /// Stores column `j` of a tile, as far as it lies inside the image.
    #[inline(always)]
    fn store<S: Simd, const N: usize>(
        &self,
        simd: Lanes<S>,
        spot: Spot,
        j: usize,
        k: usize,
        v: [S::f32s; N],
    ) {
        let lanes = Lanes::<S>::COUNT.min(self.panel.channels - k);
        let start = load(simd.0, &self.start[k..]);
        for (i, v) in v.into_iter().enumerate() {
            if i < spot.height && j < spot.width {
                let at = spot.first + i * spot.row + j * self.channels + k;
                // Safety: no other task has this tile and panel.
                let to = unsafe { self.images.part(at, lanes) };
                let before = if self.accumulate {
                    load(simd.0, to)
                } else {
                    start
                };
                let sum = simd.add(v, before);
                let result = if self.relu { simd.positive(sum) } else { sum };
                store(simd.0, to, result);
            }
        }
    }
}
