//! Into NHWC and out of it: the two places where a network's data changes its order.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{At, Grad, Pass};
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
