//! Cuts a batch of images into tiles, and tiles into chunks: by shapes alone.

use super::kernel::{self, Planes};
use crate::cpu::vector::VECTOR;
use std::ops::Range;

/// Rows of outputs in a tile, and columns.
pub(super) const TILE: usize = 4;

/// The most channels of a panel.
pub(super) const PANEL: usize = 64;

/// The most panels of channels with which a task takes a chunk through all three steps.
pub(super) const FEW_PANELS: usize = 2;

/// The most tiles of a chunk, where there are many channels.
pub(super) const CHUNK: usize = 64;

/// Tiles × panels that are transformed before they are multiplied, where there are many channels:
/// 9 MB.
pub(super) const GROUP: usize = 1024;

/// With fewer tasks, a call takes panels of half the width. Their products are a fifth slower.
pub(super) const ENOUGH_TASKS: usize = 16;

/// The planes of a block of weights: 6 × 6.
pub(super) const WEIGHTS: usize = 36;

/// Floats of a block of weights.
pub(super) fn weights(rows: usize, width: usize) -> usize {
    kernel::block(WEIGHTS, rows, width)
}

/// Pixels that the kernel moves from one output to the next.
#[derive(Clone, Copy)]
pub(super) enum Stride {
    One = 1,
    Two = 2,
}

impl Stride {
    #[inline(always)]
    pub(super) fn pixels(self) -> usize {
        self as usize
    }

    pub(super) fn planes(self) -> Planes {
        let points = match self {
            Self::One => 6,
            Self::Two => 9,
        };
        Planes { points, weights: 6 }
    }

    /// Floats of a block of points.
    pub(super) fn block(self, rows: usize, width: usize) -> usize {
        kernel::block(self.planes().points.pow(2), rows, width)
    }

    /// The most tiles of a chunk, `most` where the stride is 1. With stride 2 a tile has twice the points.
    pub(super) fn tiles(self, most: usize) -> usize {
        most / self.pixels()
    }
}

/// Channels, cut into panels and what is left.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    /// All channels.
    pub(super) channels: usize,
    /// The most channels of a panel.
    most: usize,
}

impl Panels {
    /// Panels of 64.
    pub(super) fn new(channels: usize) -> Self {
        Self {
            channels,
            most: PANEL,
        }
    }

    /// Panels of 32, for calls that would have few tasks.
    pub(super) fn halves(self) -> Self {
        Self {
            most: PANEL / 2,
            ..self
        }
    }

    pub(super) fn count(self) -> usize {
        self.channels.div_ceil(self.most)
    }

    pub(super) fn get(self, i: usize) -> Panel {
        Panel {
            first: i * self.most,
            channels: self.most.min(self.channels - i * self.most),
        }
    }

    /// The width of the widest.
    pub(super) fn width(self) -> usize {
        self.get(0).width()
    }
}

/// Some channels.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub(super) first: usize,
    pub(super) channels: usize,
}

impl Panel {
    /// Floats of a row of a block: the channels as whole vectors.
    pub(super) fn width(self) -> usize {
        self.channels.next_multiple_of(VECTOR)
    }
}

/// A batch of images of outputs, cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    pub(super) batch: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

impl Tiling {
    pub(super) fn tiles(&self) -> usize {
        self.batch * self.of_sample()
    }

    /// Tiles of a sample.
    #[inline(always)]
    pub(super) fn of_sample(&self) -> usize {
        self.down() * self.across()
    }

    /// Rows of tiles of a sample.
    #[inline(always)]
    pub(super) fn down(&self) -> usize {
        self.height.div_ceil(TILE)
    }

    /// Columns of tiles of a sample.
    #[inline(always)]
    pub(super) fn across(&self) -> usize {
        self.width.div_ceil(TILE)
    }

    #[inline(always)]
    pub(super) fn place(&self, tile: usize) -> Place {
        // rows of tiles are numbered through the batch
        let row = tile / self.across();
        let column = tile % self.across();
        Place {
            sample: row / self.down(),
            top: row % self.down() * TILE,
            left: column * TILE,
        }
    }
}

/// The start of a tile, or of its window.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) sample: usize,
    /// The first row in the sample.
    pub(super) top: usize,
    /// The first column in the sample.
    pub(super) left: usize,
}

/// A range of tiles in chunks of about the same size.
pub(super) struct Chunks {
    tiles: Range<usize>,
    pub(super) size: usize,
}

impl Chunks {
    pub(super) fn new(tiles: Range<usize>, most: usize) -> Self {
        let size = tiles.len().div_ceil(tiles.len().div_ceil(most).max(1));
        Self {
            tiles,
            size: size.max(1),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.tiles.len().div_ceil(self.size)
    }

    pub(super) fn get(&self, i: usize) -> Range<usize> {
        let start = self.tiles.start + i * self.size;
        start..(start + self.size).min(self.tiles.end)
    }
}
