//! The sizes of a convolution with pooling: its windows, tiles, blocks and canvas.

use super::super::kernel::{self, Planes};
use crate::cpu::vector::VECTOR;
use crate::ops::convolution::{Convolution, Geometry};

/// The planes of a block: 8 × 8 points.
pub(super) const POINTS: usize = 64;
pub(super) const PLANES: Planes = Planes {
    points: 8,
    weights: 8,
};

/// The fewest input channels for which it pays.
pub(super) const FEW: usize = 8;
/// The most channels of either side, for which buffers of a fixed size have room.
pub(super) const MANY: usize = 64;
/// The most floats of the canvas, which each thread keeps.
pub(super) const LARGEST: usize = 1 << 20;

/// The convolution of x (B, H, W, I) with weight (O, I, 5, 5), + bias, ReLU, and the mean of each
/// window of 2 × 2: y (B, ⌊(H − 4) / 2⌋, ⌊(W − 4) / 2⌋, O).
pub(crate) struct Pooled {
    pub(super) g: Geometry,
    /// Windows down and across.
    pub(super) windows: (usize, usize),
}

impl Pooled {
    /// None where another algorithm has to do it.
    pub(crate) fn new(op: &Convolution) -> Option<Self> {
        let g = op.geometry;
        let windows = (g.out_height / 2, g.out_width / 2);
        let convolves = g.square_kernel() == Some(5) && g.stride == 1 && g.padding == 0;
        let fits = convolves && op.relu && op.pool == 2;
        let pays = (FEW..=MANY).contains(&g.channels) && g.out_channels <= MANY;
        let pooled = Self { g, windows };
        let small = windows.0 * windows.1 > 0 && pooled.canvas().1 <= LARGEST;
        (fits && pays && small).then_some(pooled)
    }

    /// Tiles of a sample.
    #[inline(always)]
    pub(super) fn tiles(&self) -> usize {
        self.windows.0.div_ceil(2) * self.windows.1.div_ceil(2)
    }

    /// The sample of a tile, and its first row and column.
    #[inline(always)]
    pub(super) fn place(&self, tile: usize) -> (usize, usize, usize) {
        let (sample, tile) = (tile / self.tiles(), tile % self.tiles());
        let across = self.windows.1.div_ceil(2);
        (sample, tile / across * 4, tile % across * 4)
    }

    /// Where in y a window of a tile begins; none where the image has none.
    #[inline(always)]
    pub(super) fn output(&self, tile: usize, row: usize, column: usize) -> Option<usize> {
        let ((down, across), (sample, top, left)) = (self.windows, self.place(tile));
        let (y, x) = (top / 2 + row, left / 2 + column);
        let window = (sample * down + y) * across + x;
        (y < down && x < across).then_some(window * self.g.out_channels)
    }

    /// Rows and columns of x that a window sees.
    #[inline(always)]
    pub(super) fn seen(&self) -> (usize, usize) {
        (2 * self.windows.0 + 4, 2 * self.windows.1 + 4)
    }

    /// Floats of a row of a block of inputs, and of outputs: channels as whole vectors.
    pub(super) fn widths(&self) -> (usize, usize) {
        let pad = |channels: usize| channels.next_multiple_of(VECTOR);
        (pad(self.g.channels), pad(self.g.out_channels))
    }

    /// Floats of a row of the canvas, and of all of it: the inputs under a sample's tiles.
    pub(super) fn canvas(&self) -> (usize, usize) {
        let side = |windows: usize| windows.div_ceil(2) * 4 + 4;
        let row = side(self.windows.1) * self.widths().0;
        (row, side(self.windows.0) * row)
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
