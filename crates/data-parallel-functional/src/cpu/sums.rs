//! Sums of rows, always in the same order.

use crate::cpu::buffer::Buffer;
use crate::cpu::threads::for_each_chunk;
use crate::cpu::vector::VECTOR as LINE;

/// The most partial sums of a weight's gradient, and so the most cores that compute it. Each costs memory and time.
pub(crate) const SUMS: usize = 16;

/// The fewest elements that a task adds.
const SMALLEST: usize = 1 << 13;

/// Chunks that are summed before they are added to the others: long sums in f32 are inexact.
const GROUP: usize = 128;

/// Adds the chunks of `size` elements, in order; a task takes some elements of all chunks.
pub(crate) fn sum_of_chunks(all: &[f32], size: usize) -> Vec<f32> {
    let chunks = all.len() / size.max(1);
    let strip = (SMALLEST / chunks.max(1)).next_multiple_of(LINE).max(LINE);
    let mut sum = vec![0.; size];
    for_each_chunk(
        &mut sum,
        strip,
        #[inline(always)]
        |i, sum| {
            let mut of_group = vec![0.; sum.len()];
            for group in all.chunks(GROUP * size) {
                of_group.fill(0.);
                for chunk in group.chunks_exact(size) {
                    add(&mut of_group, &chunk[i * strip..]);
                }
                add(sum, &of_group);
            }
        },
    );
    sum
}

/// Adds each number of `from` to that of `to`.
#[inline(always)]
pub(crate) fn add(to: &mut [f32], from: &[f32]) {
    for (to, v) in to.iter_mut().zip(from) {
        *to += v;
    }
}

/// Adds `scale` times each number of `from` to that of `to`.
#[inline(always)]
pub(crate) fn add_scaled(to: &mut [f32], from: &[f32], scale: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += scale * from;
    }
}

/// Adds rows of `all` to `sum`, which is as long as a row: first of blocks of `rows` rows, so that long sums stay exact.
/// `add_row` adds what is to be added of a row.
#[inline(always)]
pub(crate) fn add_rows(
    all: &[f32],
    rows: usize,
    sum: &mut [f32],
    add_row: impl Fn(&mut [f32], &[f32]),
) {
    let row = sum.len();
    let mut of_block = vec![0.; row];
    for block in all.chunks(rows * row) {
        of_block.fill(0.);
        for row in block.chunks_exact(row) {
            add_row(&mut of_block, row);
        }
        add(sum, &of_block);
    }
}

/// The sum of each column of a matrix: first of blocks of `rows` rows, which keeps the sum exact to a few bits for any
/// number of rows.
pub(crate) fn column_sums(matrix: &[f32], columns: usize, rows: usize) -> Vec<f32> {
    let block = rows * columns.max(1);
    let mut sums = Buffer::new(matrix.len().div_ceil(block) * columns);
    for_each_chunk(
        &mut sums,
        columns,
        #[inline(always)]
        |i, sums| {
            sums.fill(0.);
            let block = &matrix[i * block..matrix.len().min((i + 1) * block)];
            for row in block.chunks_exact(columns) {
                add(sums, row);
            }
        },
    );
    sum_of_chunks(&sums, columns)
}
