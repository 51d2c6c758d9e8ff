//! The linear layer on the CPU: matrix products in blocks, so that replicas on threads of their own do not fight for the
//! cores as candle's `matmul` makes them.

use crate::cpu::activation::{inlined, map, mask_all, positive};
use crate::cpu::buffer::Buffer;
use crate::cpu::gemm::{Matrix, product};
use crate::cpu::gradient::{At, Grad, Pass};
use crate::cpu::sums::column_sums;
use crate::cpu::threads::for_each_chunk;
use crate::descriptors::linear::Linear;
use crate::kernel::{Cpu, Kernel};
use candle_core::Result;

/// Rows of a block.
const BLOCK: usize = 64;

impl Linear {
    /// The weight as (O, I).
    fn weight<'a>(&self, weight: &'a [f32]) -> Matrix<'a> {
        if self.transposed {
            Matrix::new(weight, self.features, self.outputs).t()
        } else {
            Matrix::new(weight, self.outputs, self.features)
        }
    }
}

impl Kernel<Cpu> for Linear {
    fn forward(&self, _: &Pass, x: &[&[f32]], y: &mut [f32]) -> Result<Vec<Buffer>> {
        let bias = x.get(2);
        if let Some(bias) = bias {
            for_each_chunk(y, BLOCK * self.outputs, |_, y| {
                y.chunks_exact_mut(self.outputs)
                    .for_each(|row| row.copy_from_slice(bias));
            });
        }
        let input = Matrix::new(x[0], self.batch, self.features);
        product(y, bias.is_some(), input, self.weight(x[1]).t());
        if self.relu {
            map(y, [], inlined!(|y, []| positive(y)));
        }
        Ok(vec![])
    }

    fn backward(&self, _: &Pass, at: At<'_, '_>, mut dy: Buffer, dx: &mut [Grad]) -> Result<()> {
        if self.relu {
            mask_all(at.y, &mut dy);
        }
        let input = Matrix::new(at.x[0], self.batch, self.features);
        let d_output = Matrix::new(&dy, self.batch, self.outputs);
        gradient(&mut dx[0], d_output, self.weight(at.x[1]));
        if self.transposed {
            gradient(&mut dx[1], input.t(), d_output)
        } else {
            gradient(&mut dx[1], d_output.t(), input)
        }
        if let Some(db) = dx.get_mut(2) {
            db.put(column_sums(&dy, self.outputs, BLOCK).into_iter());
        }
        Ok(())
    }
}

/// a · b, written or added where it is wanted.
fn gradient(to: &mut Grad<'_>, a: Matrix, b: Matrix) {
    if let Some((to, add)) = to.target() {
        product(to, add, a, b);
    }
}
