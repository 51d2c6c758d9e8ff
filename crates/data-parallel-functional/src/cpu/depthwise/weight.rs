//! The gradients of the weight and of the bias: sums over all pixels.

use crate::cpu::buffer::Buffer;
use crate::cpu::depthwise::axis::{Axes, Axis, Lines, Tap};
use crate::cpu::depthwise::products::{MOST, add_products, for_count, parts};
use crate::cpu::depthwise::strips::Strips;
use crate::cpu::scratch::own;
use crate::cpu::sums::{SUMS, sum_of_chunks};
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::{VECTOR as STRIP, load, store};
use devices::dispatch;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Pixels whose products are one chain of additions: long sums in f32 are inexact.
const CHAIN: usize = 256;

/// Columns of the kernel, up to which several of its rows are summed at a time: else there are too few sums to keep the
/// processor busy.
const FEW: usize = 4;

/// The most of these rows.
const ROWS: usize = 3;

/// Data that all tasks share.
struct Pass<'a> {
    axes: &'a Axes,
    x: &'a [f32],
    dy: &'a [f32],
    /// Of x, with its padding.
    x_strips: Strips,
    dy_strips: Strips,
    /// The products of a row of dy with the first tap of a row of the kernel.
    pixels: Vec<Tap>,
}

/// The sums of each strip: of all taps of the kernel, then of the bias.
pub(super) fn sums(axes: &Axes, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let pass = Pass::new(axes, x, dy);
    let lines = axes.lines().div_ceil(SUMS).max(1);
    let size = pass.dy_strips.count() * pass.sums_of_a_strip();
    let mut partial = Buffer::zeros(axes.lines().div_ceil(lines) * size);
    for_each_chunk(&mut partial, size, |i, sums| {
        let end = ((i + 1) * lines).min(axes.lines());
        for lines in axes.blocks(i * lines..end, axes.rows_of_a_block()) {
            pass.add(&lines, sums);
        }
    });
    sum_of_chunks(&partial, size)
}

impl<'a> Pass<'a> {
    fn new(axes: &'a Axes, x: &'a [f32], dy: &'a [f32]) -> Self {
        let outputs = axes.columns.outputs;
        let step = axes.columns.step;
        // what the taps of a row see stays side by side
        let all = Axis {
            outputs: (outputs - 1) * step + 1,
            step: 1,
            ..axes.columns
        };
        let pixel = |pixel: usize| Tap {
            factor: pixel * STRIP,
            source: pixel * step * STRIP,
        };
        Self {
            axes,
            x,
            dy,
            x_strips: Strips::new(&all, axes.channels),
            dy_strips: Strips::new(&Axis::new(outputs, outputs, 1, 1, 0), axes.channels),
            pixels: (0..outputs).map(pixel).collect(),
        }
    }

    /// Floats.
    fn sums_of_a_strip(&self) -> usize {
        (self.axes.rows.taps * self.axes.columns.taps + 1) * STRIP
    }

    /// Adds the products of some rows of dy.
    fn add(&self, lines: &Lines, sums: &mut [f32]) {
        let seen = self.axes.rows.seen(&lines.rows);
        let runs: Vec<Run> = lines
            .rows
            .clone()
            .flat_map(|row| self.runs(row, lines.rows.start, seen.start))
            .collect();
        let lengths = [
            self.x_strips.len(seen.len()),
            self.dy_strips.len(lines.rows.len()),
        ];
        own(lengths, |[x, dy]| {
            dispatch(Block {
                pass: self,
                lines,
                seen,
                x,
                dy,
                runs: &runs,
                sums,
            });
        });
    }

    /// The products of a row of dy. The strips of dy begin with row `first`, those of x with row `first_seen`.
    fn runs(&self, row: usize, first: usize, first_seen: usize) -> Vec<Run> {
        let Axes { rows, columns, .. } = self.axes;
        let inside: Vec<usize> = (0..rows.taps)
            .filter(|tap| rows.source(row, *tap).is_some())
            .collect();
        let most = if columns.taps <= FEW { ROWS } else { 1 };
        let mut runs = vec![];
        for (part, kernel_rows) in parts(inside.len(), most) {
            let tap = inside[part];
            let Some(source) = rows.source(row, tap) else {
                continue;
            };
            for (column, count) in parts(columns.taps, MOST) {
                runs.push(Run {
                    dy: (row - first) * self.dy_strips.row(),
                    x: (source - first_seen) * self.x_strips.row() + column * STRIP,
                    rows: kernel_rows,
                    count,
                    sums: (tap * columns.taps + column) * STRIP,
                });
            }
        }
        runs
    }
}

/// Products of a row of dy with taps that are summed together: `count` columns of some rows of the kernel.
struct Run {
    /// The first factor's place.
    dy: usize,
    /// The place that the first tap sees.
    x: usize,
    rows: usize,
    /// At most [`MOST`].
    count: usize,
    /// The place of the first tap's sum.
    sums: usize,
}

/// Rows of dy of one image, with memory for them and for the rows of x that they see.
struct Block<'a> {
    pass: &'a Pass<'a>,
    lines: &'a Lines,
    seen: Range<usize>,
    x: &'a mut [f32],
    dy: &'a mut [f32],
    runs: &'a [Run],
    sums: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let pass = self.pass;
        let image = self.lines.image(pass.x, pass.axes.source_image());
        pass.x_strips.pack(simd, image, &self.seen, self.x);
        let image = self.lines.image(pass.dy, pass.axes.output_image());
        pass.dy_strips.pack(simd, image, &self.lines.rows, self.dy);
        let runs = self.runs;
        for strip in 0..pass.dy_strips.count() {
            for run in runs {
                for lane in (0..STRIP).step_by(S::F32_LANES) {
                    for_count!(run.count, self.taps(simd, run, strip, lane));
                }
            }
            self.add_bias(strip);
        }
    }
}

impl Block<'_> {
    #[inline(always)]
    fn taps<S: Simd, const N: usize>(&mut self, simd: S, run: &Run, strip: usize, lane: usize) {
        match run.rows {
            3 if N <= FEW => self.taps_of_rows::<S, 3, N>(simd, run, strip, lane),
            2 if N <= FEW => self.taps_of_rows::<S, 2, N>(simd, run, strip, lane),
            _ => self.taps_of_rows::<S, 1, N>(simd, run, strip, lane),
        }
    }

    /// N columns of R rows of the kernel, in as many channels as a vector has lanes.
    #[inline(always)]
    fn taps_of_rows<S: Simd, const R: usize, const N: usize>(
        &mut self,
        simd: S,
        run: &Run,
        strip: usize,
        lane: usize,
    ) {
        let pass = self.pass;
        let row = pass.x_strips.row();
        let x = &self.x[strip * self.seen.len() * row + run.x + lane..];
        let dy = strip * self.lines.rows.len() * pass.dy_strips.row() + run.dy + lane;
        let dy = &self.dy[dy..];
        let all = &mut self.sums[strip * pass.sums_of_a_strip() + run.sums + lane..];
        for pixels in pass.pixels.chunks(CHAIN) {
            let mut sums = [[simd.splat_f32s(0.); N]; R];
            add_products(simd, &mut sums, pixels, dy, x, row);
            for (r, sums) in sums.into_iter().enumerate() {
                for (n, sum) in sums.into_iter().enumerate() {
                    let at = (r * pass.axes.columns.taps + n) * STRIP;
                    let to = &mut all[at..][..S::F32_LANES];
                    store(simd, to, simd.add_f32s(load(simd, to), sum));
                }
            }
        }
    }

    /// The sum of dy, row by row.
    #[inline(always)]
    fn add_bias(&mut self, strip: usize) {
        let size = self.pass.sums_of_a_strip();
        let row = self.pass.dy_strips.row();
        let rows = self.lines.rows.len();
        let to = &mut self.sums[(strip + 1) * size - STRIP..][..STRIP];
        for dy in self.dy[strip * rows * row..][..rows * row].chunks(CHAIN * STRIP) {
            let mut sum = [0f32; STRIP];
            for dy in dy.chunks_exact(STRIP) {
                for i in 0..STRIP {
                    sum[i] += dy[i];
                }
            }
            for i in 0..STRIP {
                to[i] += sum[i];
            }
        }
    }
}
