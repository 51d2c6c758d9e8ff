//! Linear layers on a GPU, with their ReLU.

use super::elementwise::{bias_relu, column_sums, mask};
use super::floats::Floats;
use super::gemm::{Matrix, multiply};
use super::gradient::{At, Cuda, Grad, Pass};
use super::memory::Block;
use super::stream::Stream;
use crate::descriptors::linear::Linear;
use crate::kernel::Kernel;
use candle_core::Result;

impl Linear {
    /// The weight as (O, I).
    fn matrix(&self, weight: Floats) -> Matrix {
        if self.transposed {
            Matrix::new(weight, self.features, self.outputs).t()
        } else {
            Matrix::new(weight, self.outputs, self.features)
        }
    }
}

impl Kernel<Cuda> for Linear {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        let stream = &*pass.stream;
        let input = Matrix::new(x[0], self.batch, self.features);
        multiply(stream, y, false, input, self.matrix(x[1]).t())?;
        bias_relu(stream, y, x.get(2).copied(), self.outputs, self.relu)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        let stream = &*pass.stream;
        let dy = dy.floats();
        if self.relu {
            mask(stream, at.y, dy)?;
        }
        let input = Matrix::new(at.x[0], self.batch, self.features);
        let d_output = Matrix::new(dy, self.batch, self.outputs);
        product(stream, &mut dx[0], d_output, self.matrix(at.x[1]))?;
        if self.transposed {
            product(stream, &mut dx[1], input.t(), d_output)?
        } else {
            product(stream, &mut dx[1], d_output.t(), input)?
        }
        match dx.get_mut(2) {
            Some(db) => db.write(stream, |to, add| {
                column_sums(stream, dy, self.outputs, to, add)
            }),
            None => Ok(()),
        }
    }
}

/// a · b, written or added where it is wanted.
fn product(stream: &Stream, to: &mut Grad, a: Matrix, b: Matrix) -> Result<()> {
    to.write(stream, |to, add| multiply(stream, to, add, a, b))
}
