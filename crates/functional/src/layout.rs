//! Into NHWC and out of it: the two places where a network's data changes its order.

use crate::buffer::Buffer;
use crate::operation::{At, Grad, Operation};
use crate::threads::for_each_chunk;
use crate::{Expr, args};
use candle_core::{Result, Tensor};

/// Images (B, C, H, W), as the book and PyTorch hold them, to the (B, H, W, C) of this crate; for
/// one channel a reshape.
///
/// # Errors
/// Where `x` is not f32 or has not 4 dimensions.
///
/// ```
/// use candle_core::{Device, Tensor};
/// // two channels of one row each
/// let x = Tensor::new(&[[[[1f32, 2., 3.]], [[4., 5., 6.]]]], &Device::Cpu)?;
/// let y = functional::nhwc(&x)?;
/// assert_eq!(y.dims(), [1, 1, 3, 2]);
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 4., 2., 5., 3., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn nhwc(x: &Tensor) -> Result<Tensor> {
    Expr::new(x).nhwc().eval()
}

/// Activations (B, H, W, C) to vectors (B, C·H·W) in the order channel, height, width: the order
/// in which the book's `flatten` hands them to the linear layer, so that its weights fit.
///
/// # Errors
/// Where `x` is not f32 or has not 4 dimensions.
///
/// ```
/// use candle_core::{Device, Tensor};
/// // one row of three pixels with two channels each
/// let x = Tensor::new(&[[[[1f32, 4.], [2., 5.], [3., 6.]]]], &Device::Cpu)?;
/// let y = functional::flatten(&x)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 3., 4., 5., 6.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn flatten(x: &Tensor) -> Result<Tensor> {
    Expr::new(x).flatten().eval()
}

/// Transposes each sample, a matrix of rows × columns.
pub(crate) struct Transpose {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Transpose {
    /// For x (B, C, H, W), with the shape of the result.
    pub(crate) fn nhwc(x: &[usize]) -> Result<(Self, [usize; 4])> {
        let [b, c, h, w] = args::dims4("nhwc", "(B, C, H, W)", x)?;
        let transpose = Self {
            rows: c,
            columns: h * w,
        };
        Ok((transpose, [b, h, w, c]))
    }

    /// For x (B, H, W, C), with the shape of the result.
    pub(crate) fn flatten(x: &[usize]) -> Result<(Self, [usize; 2])> {
        let [b, h, w, c] = args::dims4("flatten", "(B, H, W, C)", x)?;
        let transpose = Self {
            rows: h * w,
            columns: c,
        };
        Ok((transpose, [b, c * h * w]))
    }
}

impl Operation for Transpose {
    fn forward(&self, x: &[&[f32]], y: &mut [f32], _keep: bool) -> Result<Vec<Buffer>> {
        transpose(x[0], self.rows, self.columns, y, false);
        Ok(vec![])
    }

    fn backward(&self, _at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()> {
        if dx[0].wanted() {
            let (to, add) = dx[0].target();
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
