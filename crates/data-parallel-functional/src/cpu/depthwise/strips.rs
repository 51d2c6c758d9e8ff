//! Rows of images in strips of 16 channels, each of which lies together and begins with a line of the cache. So the
//! first-level cache holds what a strip needs, whatever the number of channels, and no vector is cut off.

use crate::cpu::depthwise::axis::Axis;
use crate::cpu::vector::{VECTOR as STRIP, load, store};
use pulp::Simd;
use std::ops::Range;

/// The order of the columns of a row in its strips.
pub(super) struct Strips {
    channels: usize,
    /// Columns of the image.
    width: usize,
    /// The slot of each column of the image, where it has one.
    slots: Vec<Option<usize>>,
    /// Slots that hold zeros.
    zeros: Vec<usize>,
    /// Slots of a row.
    columns: usize,
}

impl Strips {
    /// For the outputs of `axis`, with its padding.
    pub fn new(axis: &Axis, channels: usize) -> Self {
        let columns = axis.columns_of_a_part() * axis.step;
        let slot = |column: usize| {
            let column = usize::try_from(column as isize + axis.left()).ok()?;
            (column < axis.columns()).then(|| axis.slot(column))
        };
        let slots: Vec<_> = (0..axis.sources).map(slot).collect();
        let mut is_free = vec![true; columns];
        slots
            .iter()
            .flatten()
            .for_each(|slot| is_free[*slot] = false);
        Self {
            channels,
            width: axis.sources,
            zeros: (0..columns).filter(|slot| is_free[*slot]).collect(),
            slots,
            columns,
        }
    }

    pub fn count(&self) -> usize {
        self.channels.div_ceil(STRIP)
    }

    /// Floats of one row of a strip.
    pub fn row(&self) -> usize {
        self.columns * STRIP
    }

    /// Floats of `rows` rows of all strips.
    pub fn len(&self, rows: usize) -> usize {
        rows * self.row() * self.count()
    }

    /// Copies rows of an image: first all rows of the first strip.
    #[inline(always)]
    pub fn pack<S: Simd>(&self, simd: S, image: &[f32], rows: &Range<usize>, to: &mut [f32]) {
        let strip_len = rows.len() * self.row();
        let line = self.width * self.channels;
        for (n, row) in rows.clone().enumerate() {
            let image = &image[row * line..][..line];
            for (pixel, slot) in image.chunks_exact(self.channels).zip(&self.slots) {
                let Some(slot) = slot else { continue };
                let mut at = n * self.row() + slot * STRIP;
                for strip in pixel.chunks(STRIP) {
                    copy(simd, strip, &mut to[at..][..STRIP]);
                    at += strip_len;
                }
            }
        }
        for row in to[..self.len(rows.len())].chunks_exact_mut(self.row().max(1)) {
            for slot in &self.zeros {
                row[slot * STRIP..][..STRIP].fill(0.);
            }
        }
    }
}

/// Copies up to 16 floats, and zeros behind them.
#[inline(always)]
fn copy<S: Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    for lane in (0..STRIP).step_by(S::F32_LANES) {
        let vector = load(simd, &from[lane.min(from.len())..]);
        store(simd, &mut to[lane..], vector);
    }
}
