//! ReLU, and the sum of two values with or without it; for any shape.

use crate::Expr;
use crate::buffer::Buffer;
use crate::operation::{At, CHUNK, Grad, Operation};
use crate::threads::for_each_chunk;
use candle_core::{Result, Tensor};

/// The larger of `x` and 0, element by element; any shape, same shape out.
///
/// The gradient at 0 is 0, as in PyTorch. NaN stays NaN, so that a diverged run shows.
///
/// # Errors
/// Where `x` is not f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[-1f32, 0., 2.], &Device::Cpu)?;
/// assert_eq!(functional::relu(&x)?.to_vec1::<f32>()?, [0., 0., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn relu(x: &Tensor) -> Result<Tensor> {
    Expr::new(x).relu().eval()
}

/// The positive part; NaN stays.
#[inline(always)]
pub(crate) fn positive(v: f32) -> f32 {
    if v <= 0. { 0. } else { v }
}

/// Zeros in `dy` where ReLU's result `y` is not positive.
#[inline(always)]
pub(crate) fn mask(y: &[f32], dy: &mut [f32]) {
    for (y, dy) in y.iter().zip(dy) {
        // both read first: then the choice needs no branch, which would be mispredicted
        let (y, d) = (*y, *dy);
        *dy = if y <= 0. { 0. } else { d };
    }
}

/// [`mask`], by chunks.
pub(crate) fn mask_all(y: &[f32], dy: &mut [f32]) {
    for_each_chunk(
        dy,
        CHUNK,
        #[inline(always)]
        |i, dy| mask(&y[i * CHUNK..], dy),
    );
}

pub(crate) struct Relu;

impl Operation for Relu {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                for (y, x) in y.iter_mut().zip(&x[0][i * CHUNK..]) {
                    *y = positive(*x);
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, at: At<'_>, mut dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        mask_all(at.y, &mut dy);
        dx[0].give(dy);
        Ok(())
    }
}

/// x + other, and ReLU of it.
pub(crate) struct Sum {
    pub relu: bool,
}

impl Operation for Sum {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        for_each_chunk(
            y,
            CHUNK,
            #[inline(always)]
            |i, y| {
                let values = x[0][i * CHUNK..].iter().zip(&x[1][i * CHUNK..]);
                for (y, (a, b)) in y.iter_mut().zip(values) {
                    *y = if self.relu { positive(a + b) } else { a + b };
                }
            },
        );
        Ok(vec![])
    }

    fn backward(&self, at: At<'_>, mut dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if self.relu {
            mask_all(at.y, &mut dy);
        }
        dx[0].add(&dy);
        dx[1].give(dy);
        Ok(())
    }
}
