//! Linear layers on a GPU, with their ReLU; and sums of columns, which gradients of biases are.

use super::floats::{Element, Floats};
use super::gemm::{Matrix, multiply};
use super::gradient::{At, Cuda, Grad, Pass};
use super::memory::Block;
use super::stream::{Stream, launch};
use crate::kernel::Kernel;
use crate::ops::linear::Linear;
use candle_core::Result;

/// The most blocks of rows that are summed in parallel.
const PARTS: usize = 128;
/// So many rows are summed up at once: a second kernel would take longer.
const FEW: usize = 512;

impl Linear {
    /// The weight as (O, I).
    fn matrix(&self, weight: Floats) -> Matrix {
        match self.transposed {
            true => Matrix::new(weight, self.features, self.outputs).t(),
            false => Matrix::new(weight, self.outputs, self.features),
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
        match self.transposed {
            true => product(stream, &mut dx[1], input.t(), d_output)?,
            false => product(stream, &mut dx[1], d_output.t(), input)?,
        }
        match dx.get_mut(2) {
            Some(db) => column_sums(stream, dy, self.outputs, db),
            None => Ok(()),
        }
    }
}

/// a · b, written or added where it is wanted.
fn product(stream: &Stream, to: &mut Grad, a: Matrix, b: Matrix) -> Result<()> {
    let Some((to, add)) = to.target(stream)? else {
        return Ok(());
    };
    multiply(stream, to, add, a, b)
}

/// Adds a bias to rows of `columns`, in place, and takes the positive part.
pub(crate) fn bias_relu(
    stream: &Stream,
    y: Floats,
    bias: Option<Floats>,
    columns: usize,
    relu: bool,
) -> Result<()> {
    if bias.is_none() && !relu {
        return Ok(());
    }
    launch!(stream, y.kernel("bias_relu"), elements y.len; y.len, y, bias, columns, relu)
}

/// Zeros in `dy` where ReLU's result `y` is not positive.
pub(crate) fn mask(stream: &Stream, y: Floats, dy: Floats) -> Result<()> {
    launch!(stream, y.kernel("mask"), elements y.len; y.len, y, dy)
}

/// The sums of the columns of `x`, rows of `columns`, where they are wanted; `to` is f32.
pub(crate) fn column_sums(stream: &Stream, x: Floats, columns: usize, to: &mut Grad) -> Result<()> {
    let Some((to, add)) = to.target(stream)? else {
        return Ok(());
    };
    let rows = x.len / columns.max(1);
    if rows == 0 {
        return if add { Ok(()) } else { stream.fill(to, 0.) };
    }
    if rows <= FEW && x.element == Element::F32 {
        return combine(stream, x, columns, 0, to, add);
    }
    let of_a_block = rows.div_ceil(PARTS).max(8);
    let parts = rows.div_ceil(of_a_block);
    let partial = Block::new(stream, parts * columns)?;
    let partial = partial.floats();
    let grid = (columns.div_ceil(32) as u32, parts as u32, 1);
    let name = x.kernel("column_sums");
    launch!(stream, name, grid, (32, 8, 1); x, partial, rows, columns, of_a_block)?;
    combine(stream, partial, columns, 0, to, add)
}

/// Sums up rows of `width` in `partial`, the columns from `first` on.
pub(crate) fn combine(
    stream: &Stream,
    partial: Floats,
    width: usize,
    first: usize,
    to: Floats,
    add: bool,
) -> Result<()> {
    let count = partial.len / width;
    let grid = (to.len.div_ceil(32) as u32, 1, 1);
    launch!(stream, "combine", grid, (32, 32, 1); partial, to, to.len, count, width, first, add)
}
