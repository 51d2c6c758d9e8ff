//! The pixels that outputs of a convolution see along one axis, the rows or the columns of images.

use crate::cpu::vector::VECTOR as STRIP;
use std::ops::Range;

/// Floats of the rows of a block, or fewer: with the strips they stay in the second-level cache.
const BLOCK: usize = 1 << 15;

/// A pass over a batch of images.
#[derive(Clone, Copy)]
pub(super) struct Axes {
    pub batch: usize,
    pub channels: usize,
    pub rows: Axis,
    pub columns: Axis,
}

/// Rows of outputs of one image.
pub(super) struct Lines {
    image: usize,
    pub rows: Range<usize>,
}

impl Lines {
    /// Its image of a batch of images of `floats` floats.
    pub fn image<'a>(&self, batch: &'a [f32], floats: usize) -> &'a [f32] {
        &batch[self.image * floats..][..floats]
    }
}

impl Axes {
    /// Of the gradient of the input.
    pub fn flipped(self) -> Self {
        Self {
            rows: self.rows.flipped(),
            columns: self.columns.flipped(),
            ..self
        }
    }

    /// The most rows of outputs of a block.
    pub fn rows_of_a_block(&self) -> usize {
        let widest = self.columns.outputs.max(self.columns.sources);
        (BLOCK / (widest * self.channels).max(1)).max(1)
    }

    /// Rows of outputs of all images.
    pub fn lines(&self) -> usize {
        self.batch * self.rows.outputs
    }

    /// Floats of a row of outputs.
    pub fn line(&self) -> usize {
        self.columns.outputs * self.channels
    }

    /// Floats of an image of the source.
    pub fn source_image(&self) -> usize {
        self.rows.sources * self.columns.sources * self.channels
    }

    /// Floats of an image of outputs.
    pub fn output_image(&self) -> usize {
        self.rows.outputs * self.line()
    }

    /// `lines`, cut at the ends of images, and into blocks of at most `most`.
    pub fn blocks(&self, lines: Range<usize>, most: usize) -> impl Iterator<Item = Lines> {
        let height = self.rows.outputs;
        let mut first = lines.start;
        std::iter::from_fn(move || {
            if first >= lines.end {
                return None;
            }
            let row = first % height;
            let count = most.min(height - row).min(lines.end - first);
            let image = first / height;
            first += count;
            Some(Lines {
                image,
                rows: row..row + count,
            })
        })
    }
}

/// Output `o` sees at tap `k` the place (o · `step` + k − `before`) / `spread` of the source, if that is a whole number, and
/// not in the padding. A convolution has a step and a spread of 1, its input's gradient a step of 1 and a spread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    /// Places of the source.
    pub sources: usize,
    pub outputs: usize,
    pub taps: usize,
    pub step: usize,
    pub spread: usize,
    /// The padding; negative where the first places are seen by no output.
    pub before: isize,
}

/// Every `step`-th output from `first` on: those that see places side by side.
pub(super) struct Class {
    pub first: usize,
    pub step: usize,
    pub count: usize,
    /// The taps of the first of them. Those of the next one begin a column later.
    pub taps: Vec<Tap>,
}

/// A product: where its two factors begin, in floats.
#[derive(Clone, Copy)]
pub(super) struct Tap {
    pub factor: usize,
    pub source: usize,
}

impl Axis {
    /// Of a convolution.
    pub fn new(sources: usize, outputs: usize, taps: usize, step: usize, padding: usize) -> Self {
        Self {
            sources,
            outputs,
            taps,
            step,
            spread: 1,
            before: padding as isize,
        }
    }

    /// Of the gradient of its input, whose kernel is flipped.
    pub fn flipped(self) -> Self {
        Self {
            sources: self.outputs,
            outputs: self.sources,
            taps: self.taps,
            step: self.spread,
            spread: self.step,
            before: self.taps as isize - 1 - self.before,
        }
    }

    /// The place times `spread`, from the beginning of the source.
    fn place(&self, output: usize, tap: usize) -> isize {
        (output * self.step + tap) as isize - self.before
    }

    /// The place that an output sees at a tap, if there is one.
    pub fn source(&self, output: usize, tap: usize) -> Option<usize> {
        let place = usize::try_from(self.place(output, tap)).ok()?;
        let source = place / self.spread;
        (place.is_multiple_of(self.spread) && source < self.sources).then_some(source)
    }

    /// A range with all places that some outputs see.
    pub fn seen(&self, outputs: &Range<usize>) -> Range<usize> {
        let last = self.place(outputs.end - 1, self.taps - 1);
        let end = (last.div_euclid(self.spread as isize) + 1).clamp(0, self.sources as isize);
        let first = self.place(outputs.start, 0).max(0) as usize;
        first.div_ceil(self.spread).min(end as usize)..end as usize
    }

    /// Columns of zeros in front of the source; negative where columns are left out.
    pub fn left(&self) -> isize {
        -(-self.before).div_euclid(self.spread as isize)
    }

    /// All columns that outputs see, those of zeros too.
    pub fn columns(&self) -> usize {
        let last = self.place(self.outputs - 1, self.taps - 1);
        (last.div_euclid(self.spread as isize) + 1 + self.left()).max(0) as usize
    }

    /// The columns in `step` parts: those that outputs side by side see at one tap are side by side.
    pub fn columns_of_a_part(&self) -> usize {
        self.columns().div_ceil(self.step)
    }

    /// The column's number among all parts.
    pub fn slot(&self, column: usize) -> usize {
        column % self.step * self.columns_of_a_part() + column / self.step
    }

    pub fn classes(&self) -> Vec<Class> {
        let class = |first: usize| {
            let seen = |tap: &usize| self.place(first, *tap) % self.spread as isize == 0;
            let tap = |tap: usize| {
                let source = self.place(first, tap) / self.spread as isize;
                Tap {
                    factor: tap * STRIP,
                    source: self.slot((source + self.left()) as usize) * STRIP,
                }
            };
            Class {
                first,
                step: self.spread,
                count: (self.outputs - first).div_ceil(self.spread),
                taps: (0..self.taps).filter(seen).map(tap).collect(),
            }
        };
        (0..self.spread.min(self.outputs)).map(class).collect()
    }
}
