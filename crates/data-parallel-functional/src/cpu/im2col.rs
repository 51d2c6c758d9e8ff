//! Cuts the work of a convolution into tiles and tasks; im2col and its transpose. It multiplies nothing.
//!
//! A *line* is one row of output pixels, numbered through the whole batch. A *tile* is a fixed
//! number of lines; its im2col matrix has about [`TILE`] rows and stays in the cache.

use super::gemm::Matrix;
use crate::cpu::scratch::own;
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::VECTOR as LINE;
use crate::descriptors::convolution::Geometry;
use std::ops::Range;

/// Rows of a tile's im2col matrix.
pub(crate) const TILE: usize = 256;

/// The fewest rows that a task of the convolution or of its input's gradient takes: each packs the weight again.
const FEWEST_ROWS: usize = 64;

/// Number of these tasks that is enough.
const ENOUGH_TASKS: usize = 32;

/// Tiles and tasks, and the packed weight.
impl Geometry {
    pub(crate) fn lines_of_a_tile(&self) -> usize {
        (TILE / self.out_width).max(1)
    }

    /// Rows of a task: those of a tile, or fewer where there would be few tasks.
    fn rows_of_a_task(&self) -> usize {
        let rows = self.lines() * self.out_width;
        (rows / ENOUGH_TASKS).clamp(FEWEST_ROWS, TILE)
    }

    pub(crate) fn lines_of_a_task(&self) -> usize {
        (self.rows_of_a_task() / self.out_width).max(1)
    }

    /// Enough whole samples for a task.
    pub(crate) fn samples_of_a_task(&self) -> usize {
        self.rows_of_a_task()
            .div_ceil(self.out_height * self.out_width)
    }

    /// `lines`, cut into tiles.
    pub(crate) fn tiles(&self, lines: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let step = self.lines_of_a_tile();
        let end = lines.end;
        lines.step_by(step).map(move |i| i..(i + step).min(end))
    }

    /// The output pixels of `lines` in `y`, as rows of O values.
    pub(crate) fn pixels<'a>(&self, y: &'a [f32], lines: &Range<usize>) -> Matrix<'a> {
        let pixels = Matrix::new(y, y.len() / self.out_channels, self.out_channels);
        pixels.rows(lines.start * self.out_width, lines.len() * self.out_width)
    }

    /// A 1×1 kernel on every pixel: x is its own im2col matrix.
    pub(crate) fn pointwise(&self) -> bool {
        self.square_kernel() == Some(1) && self.stride == 1 && self.padding == 0
    }

    /// The weight (O, I, KH, KW) as a matrix of (KH, KW, I) rows and O columns.
    pub(crate) fn pack(&self, weight: &[f32], packed: &mut [f32]) {
        let area = self.kernel_area();
        let outputs = self.out_channels;
        for_each_chunk(packed, LINE * outputs, |i, rows| {
            // by blocks of output channels: the lines of a block stay in the cache
            for first in (0..outputs).step_by(LINE) {
                for (r, row) in rows.chunks_exact_mut(outputs).enumerate() {
                    let (position, input) = self.tap(i * LINE + r);
                    let last = outputs.min(first + LINE);
                    for (o, to) in (first..last).zip(&mut row[first..last]) {
                        *to = weight[(o * self.channels + input) * area + position];
                    }
                }
            }
        });
    }

    /// The position in the kernel and the input channel of a row of the packed weight.
    fn tap(&self, row: usize) -> (usize, usize) {
        (row / self.channels, row % self.channels)
    }

    /// The reverse of [`Self::pack`]: writes `weight` from the packed order, or adds to it where `add` is true.
    ///
    /// `packed(row, first, values)` adds a part of one row of the packed weight to `values`, which are zeros: the
    /// output channels from `first` on, one for each element of `values`.
    pub(crate) fn unpack(
        &self,
        weight: &mut [f32],
        add: bool,
        packed: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let area = self.kernel_area();
        for_each_chunk(weight, LINE * self.taps(), |block, weight| {
            let outputs = weight.len() / self.taps();
            for row in 0..self.taps() {
                let (position, input) = self.tap(row);
                let mut values = [0.; LINE];
                packed(row, block * LINE, &mut values[..outputs]);
                for (o, v) in values[..outputs].iter().enumerate() {
                    let to = &mut weight[(o * self.channels + input) * area + position];
                    *to = if add { *to + v } else { *v };
                }
            }
        });
    }
}

/// im2col and its transpose.
impl Geometry {
    /// The row of x under kernel row `ky` of a line, as its start in x; none in the padding.
    fn row_start(&self, line: usize, ky: usize) -> Option<usize> {
        let sample = line / self.out_height;
        let oy = line % self.out_height;
        let iy = (oy * self.stride + ky).checked_sub(self.padding)?;
        let row = sample * self.height + iy;
        (iy < self.height).then_some(row * self.width * self.channels)
    }

    /// The overlap of the kernel's row at output column `ox` with x: the part of the kernel's row, and the
    /// part of x's row, in floats; the rest is padding.
    fn overlap(&self, ox: usize) -> (Range<usize>, Range<usize>) {
        let left = ox * self.stride;
        let c = self.channels;
        let end = (self.width + self.padding)
            .saturating_sub(left)
            .min(self.kernel_width);
        let start = self.padding.saturating_sub(left).min(end);
        let in_x = (left + start).saturating_sub(self.padding).min(self.width);
        (start * c..end * c, in_x * c..(in_x + end - start) * c)
    }

    /// Copies what each output pixel of `lines` sees into a row of `columns`.
    fn im2col(&self, x: &[f32], lines: Range<usize>, columns: &mut [f32]) {
        let taps = self.taps();
        let run = self.kernel_width * self.channels;
        for (line, columns) in lines.zip(columns.chunks_exact_mut(self.out_width * taps)) {
            for ky in 0..self.kernel_height {
                let row = self.row_start(line, ky);
                for (ox, pixel) in columns.chunks_exact_mut(taps).enumerate() {
                    let to = &mut pixel[ky * run..][..run];
                    match row {
                        Some(start) => self.copy_run(&x[start..], ox, to),
                        None => to.fill(0.),
                    }
                }
            }
        }
    }

    fn copy_run(&self, row: &[f32], ox: usize, to: &mut [f32]) {
        let (inside, from) = self.overlap(ox);
        to[..inside.start].fill(0.);
        to[inside.end..].fill(0.);
        to[inside].copy_from_slice(&row[from]);
    }

    /// Adds each row of `columns` to what its output pixel saw in x; `dx` and `lines` begin with
    /// the same sample.
    pub(crate) fn col2im(&self, columns: &[f32], lines: Range<usize>, dx: &mut [f32]) {
        let taps = self.taps();
        let run = self.kernel_width * self.channels;
        for (line, columns) in lines.zip(columns.chunks_exact(self.out_width * taps)) {
            for ky in 0..self.kernel_height {
                let Some(start) = self.row_start(line, ky) else {
                    continue;
                };
                for (ox, pixel) in columns.chunks_exact(taps).enumerate() {
                    let (inside, to) = self.overlap(ox);
                    let from = &pixel[ky * run..][inside];
                    for (dx, d) in dx[start..][to].iter_mut().zip(from) {
                        *dx += d;
                    }
                }
            }
        }
    }

    /// Calls `f` with the im2col matrix of `lines`.
    pub(crate) fn with_columns(&self, x: &[f32], lines: Range<usize>, f: impl FnOnce(Matrix)) {
        let taps = self.taps();
        let rows = lines.len() * self.out_width;
        if self.pointwise() {
            let first = lines.start * self.out_width;
            return f(Matrix::new(&x[first * taps..], rows, taps));
        }
        own([rows * taps], |[columns]| {
            let columns = &mut columns[..rows * taps];
            self.im2col(x, lines, columns);
            f(Matrix::new(columns, rows, taps));
        });
    }
}
