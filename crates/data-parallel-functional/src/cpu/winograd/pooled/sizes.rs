//! The sizes of a convolution with pooling: its windows, tiles, blocks and canvas.

use super::super::kernel::{self, Planes};
pub(super) use super::super::tiling::TILE;
use super::super::tiling::Tiling;
use crate::cpu::vector::VECTOR;
use crate::descriptors::convolution::{Convolution, Geometry};

/// Rows of the kernel, and its columns.
pub(super) const KERNEL: usize = 5;
/// Rows of a window, and its columns.
pub(super) const WINDOW: usize = 2;
/// Rows of the inputs that a tile's outputs see, and columns. A tile has as many points.
pub(super) const SEEN: usize = TILE + KERNEL - 1;

/// The planes of a block, one for each point.
pub(super) const POINTS: usize = SEEN * SEEN;
pub(super) const PLANES: Planes = Planes {
    points: SEEN,
    weights: SEEN,
};

/// The fewest input channels for which it pays.
pub(super) const FEWEST_CHANNELS: usize = 8;
/// The most channels of either side, for which buffers of a fixed size have room.
pub(super) const MOST_CHANNELS: usize = 64;
/// The most floats of the canvas, which each thread keeps.
pub(super) const LARGEST: usize = 1 << 20;

/// The convolution of x (B, H, W, I) with weight (O, I, 5, 5), + bias, ReLU, and the mean of each
/// window of 2 × 2: y (B, ⌊(H − 4) / 2⌋, ⌊(W − 4) / 2⌋, O).
pub(crate) struct Pooled {
    pub(super) g: Geometry,
    /// The convolution's outputs that windows see.
    pub(super) tiling: Tiling,
}

impl Pooled {
    /// None where another algorithm has to do it.
    pub(crate) fn new(op: &Convolution) -> Option<Self> {
        let g = op.geometry;
        let pooled = Self {
            g,
            tiling: Tiling {
                batch: g.batch,
                height: g.out_height / WINDOW * WINDOW,
                width: g.out_width / WINDOW * WINDOW,
            },
        };
        let convolves = g.square_kernel() == Some(KERNEL) && g.stride == 1 && g.padding == 0;
        let fits = convolves && op.relu && op.pool == WINDOW;
        let pays = (FEWEST_CHANNELS..=MOST_CHANNELS).contains(&g.channels)
            && g.out_channels <= MOST_CHANNELS;
        let has_windows = pooled.tiling.height > 0 && pooled.tiling.width > 0;
        let has_room = pooled.canvas() <= LARGEST;
        (fits && pays && has_windows && has_room).then_some(pooled)
    }

    /// The start in y of a window of a tile; none where the image has none.
    #[inline(always)]
    pub(super) fn output(&self, tile: usize, row: usize, column: usize) -> Option<usize> {
        let place = self.tiling.place(tile);
        let down = self.tiling.height / WINDOW;
        let across = self.tiling.width / WINDOW;
        let y = place.top / WINDOW + row;
        let x = place.left / WINDOW + column;
        let window = (place.sample * down + y) * across + x;
        let is_there = y < down && x < across;
        is_there.then_some(window * self.g.out_channels)
    }

    /// Rows of x that windows see.
    #[inline(always)]
    pub(super) fn seen_height(&self) -> usize {
        self.tiling.height + KERNEL - 1
    }

    /// Columns of x that windows see.
    #[inline(always)]
    pub(super) fn seen_width(&self) -> usize {
        self.tiling.width + KERNEL - 1
    }

    /// Floats of a row of a block of inputs: their channels as whole vectors.
    pub(super) fn in_width(&self) -> usize {
        self.g.channels.next_multiple_of(VECTOR)
    }

    /// Floats of a row of a block of outputs: their channels as whole vectors.
    pub(super) fn out_width(&self) -> usize {
        self.g.out_channels.next_multiple_of(VECTOR)
    }

    /// Floats of the canvas: the inputs under all tiles of a sample.
    pub(super) fn canvas(&self) -> usize {
        (self.tiling.down() * TILE + KERNEL - 1) * self.canvas_row()
    }

    /// Floats of a row of the canvas.
    pub(super) fn canvas_row(&self) -> usize {
        (self.tiling.across() * TILE + KERNEL - 1) * self.in_width()
    }
}

/// Floats of a block.
pub(super) fn block(rows: usize, width: usize) -> usize {
    kernel::block(POINTS, rows, width)
}

/// Floats from plane to plane of a block.
pub(super) fn plane(block: &[f32]) -> usize {
    block.len() / POINTS
}
