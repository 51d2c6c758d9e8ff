//! Outputs of a convolution, and the gradient of its input, which is one too.

use crate::cpu::buffer::Buffer;
use crate::cpu::depthwise::axis::{Axes, Class, Lines, Tap};
use crate::cpu::depthwise::products::{MOST, add_products, for_count, parts};
use crate::cpu::depthwise::strips::Strips;
use crate::cpu::scratch::own;
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::{VECTOR as STRIP, load, store};
use devices::dispatch;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Number of tasks that is enough.
const ENOUGH_TASKS: usize = 16;

/// Weight and bias, in strips.
pub(super) struct Kernel {
    /// First all taps of the first strip.
    pub factors: Buffer,
    pub bias: Buffer,
}

/// Data that all tasks share.
struct Pass<'a> {
    axes: &'a Axes,
    classes: Vec<Class>,
    strips: Strips,
    source: &'a [f32],
    kernel: &'a Kernel,
    add: bool,
}

/// Writes all outputs, or adds to them.
pub(super) fn compute(axes: &Axes, source: &[f32], kernel: &Kernel, y: &mut [f32], add: bool) {
    let pass = Pass {
        axes,
        classes: axes.columns.classes(),
        strips: Strips::new(&axes.columns, axes.channels),
        source,
        kernel,
        add,
    };
    let line = axes.line();
    let enough = axes.lines().div_ceil(ENOUGH_TASKS);
    let step = axes.rows_of_a_block().min(enough).max(1);
    for_each_chunk(y, step * line, |i, mut y| {
        for lines in axes.blocks(i * step..i * step + y.len() / line, step) {
            let (of_block, rest) = y.split_at_mut(lines.rows.len() * line);
            pass.compute(&lines, of_block);
            y = rest;
        }
    });
}

impl Pass<'_> {
    fn compute(&self, lines: &Lines, y: &mut [f32]) {
        let seen = self.axes.rows.seen(&lines.rows);
        let mut runs = Runs::default();
        for row in lines.rows.clone() {
            let first = (row - lines.rows.start) * self.axes.columns.outputs;
            for class in &self.classes {
                let taps = self.taps(row, seen.start, class);
                runs.add(first, class, &taps);
            }
        }
        own([self.strips.len(seen.len())], |[packed]| {
            dispatch(Block {
                pass: self,
                image: lines.image(self.source, self.axes.source_image()),
                seen,
                packed,
                runs: &runs,
                y,
            });
        });
    }

    /// All products of the first output of a class in a row. The first row of the source in the strips is `first`.
    fn taps(&self, row: usize, first: usize, class: &Class) -> Vec<Tap> {
        let rows = self.axes.rows;
        let width = self.axes.columns.taps * STRIP;
        let mut taps = Vec::with_capacity(rows.taps * class.taps.len());
        for tap in 0..rows.taps {
            if let Some(source) = rows.source(row, tap) {
                taps.extend(class.taps.iter().map(|column| Tap {
                    factor: tap * width + column.factor,
                    source: (source - first) * self.strips.row() + column.source,
                }));
            }
        }
        taps
    }
}

/// The outputs of a block, which each strip computes in the same way.
#[derive(Default)]
struct Runs {
    all: Vec<Run>,
    taps: Vec<Tap>,
}

/// Outputs that are computed together.
struct Run {
    /// The first one's pixel in the block, and the pixels to the next one.
    pixel: usize,
    step: usize,
    /// At most [`MOST`].
    count: usize,
    /// The first one's distance from the first output of its class, in floats of the source.
    source: usize,
    /// Their products in [`Runs::taps`].
    taps: Range<usize>,
}

impl Runs {
    /// Adds the outputs of a class, in the row whose first pixel is `row`.
    fn add(&mut self, row: usize, class: &Class, taps: &[Tap]) {
        let first_tap = self.taps.len();
        self.taps.extend(taps);
        for (first, count) in parts(class.count, MOST) {
            self.all.push(Run {
                pixel: row + class.first + first * class.step,
                step: class.step,
                count,
                source: first * STRIP,
                taps: first_tap..self.taps.len(),
            });
        }
    }
}

/// A block of rows of outputs, and memory for the rows of the source that they see.
struct Block<'a> {
    pass: &'a Pass<'a>,
    image: &'a [f32],
    seen: Range<usize>,
    packed: &'a mut [f32],
    runs: &'a Runs,
    y: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let pass = self.pass;
        pass.strips.pack(simd, self.image, &self.seen, self.packed);
        let runs = self.runs;
        for channel in (0..pass.axes.channels).step_by(S::F32_LANES) {
            for run in &runs.all {
                for_count!(run.count, self.outputs(simd, run, channel));
            }
        }
    }
}

impl Block<'_> {
    /// A run of N outputs, of as many channels as a vector has lanes.
    #[inline(always)]
    fn outputs<S: Simd, const N: usize>(&mut self, simd: S, run: &Run, channel: usize) {
        let pass = self.pass;
        let strip = channel / STRIP;
        let lane = channel % STRIP;
        let area = pass.axes.rows.taps * pass.axes.columns.taps;
        let mut sums = [[load(simd, &pass.kernel.bias[channel..][..S::F32_LANES]); N]];
        let factors = &pass.kernel.factors[strip * area * STRIP + lane..];
        let taps = &self.runs.taps[run.taps.clone()];
        let source = strip * self.seen.len() * pass.strips.row() + run.source + lane;
        // without rows there are no taps
        let source = self.packed.get(source..).unwrap_or_default();
        add_products(simd, &mut sums, taps, factors, source, 0);
        let channels = pass.axes.channels;
        let count = S::F32_LANES.min(channels - channel);
        for (n, mut sum) in sums[0].into_iter().enumerate() {
            let pixel = run.pixel + n * run.step;
            let to = &mut self.y[pixel * channels + channel..][..count];
            if pass.add {
                sum = simd.add_f32s(load(simd, to), sum);
            }
            store(simd, to, sum);
        }
    }
}
