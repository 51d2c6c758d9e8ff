//! Into NHWC and out of it: the two places where a network's data changes its order. And some columns of a matrix.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, CHUNK, Grad, Pass, put};
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::layout::Transpose;
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;

impl Kernel<Cpu> for Transpose {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        transpose(x[0], self.rows, self.columns, y, false);
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, _at: At<'_, '_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if let Some((to, add)) = dx[0].target() {
            transpose(&dy, self.columns, self.rows, to, add);
        }
        Ok(())
    }
}

fn transpose(x: &[f32], rows: usize, columns: usize, y: &mut [f32], add: bool) {
    let sample = rows * columns;
    for_each_chunk(y, sample, |i, y| {
        let x = &x[i * sample..][..sample];
        for (column, y) in y.chunks_exact_mut(rows).enumerate() {
            for (y, x) in y.iter_mut().zip(x[column..].iter().step_by(columns)) {
                *y = if add { *y + x } else { *x };
            }
        }
    });
}

/// Copies the `len` elements from `first` on of each row of `from`, which has rows of `row`, to the rows of `to`; or adds
/// them.
pub(crate) fn columns(
    from: &[f32],
    row: usize,
    first: usize,
    to: &mut [f32],
    len: usize,
    add: bool,
) {
    let rows = rows_of_a_chunk(len);
    for_each_chunk(to, rows * len, |i, to| {
        for (n, to) in to.chunks_exact_mut(len).enumerate() {
            let from = &from[(i * rows + n) * row + first..][..len];
            if add {
                put(to, from.iter().copied(), true);
            } else {
                to.copy_from_slice(from);
            }
        }
    });
}

/// Rows of a chunk, of which each has `row` elements.
pub(crate) fn rows_of_a_chunk(row: usize) -> usize {
    (CHUNK / row.max(1)).max(1)
}
