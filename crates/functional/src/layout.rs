//! Into NHWC and out of it: the two places where a network's data changes its order.

use crate::storage::{read, slice, tensor};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

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
    if !x.device().is_cpu() {
        return plain::nhwc(x);
    }
    let x = args::float("nhwc", "x", x)?;
    let [b, c, h, w] = args::dims4("nhwc", "(B, C, H, W)", &x)?;
    if c == 1 {
        return x.reshape((b, h, w, c));
    }
    x.contiguous()?.apply_op1(Transpose {
        rows: c,
        columns: h * w,
        shape: (b, h, w, c).into(),
    })
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
    if !x.device().is_cpu() {
        return plain::flatten(x);
    }
    let x = args::float("flatten", "x", x)?;
    let [b, h, w, c] = args::dims4("flatten", "(B, H, W, C)", &x)?;
    x.contiguous()?.apply_op1(Transpose {
        rows: h * w,
        columns: c,
        shape: (b, c * h * w).into(),
    })
}

/// Transposes each sample, a matrix of rows × columns.
struct Transpose {
    rows: usize,
    columns: usize,
    shape: Shape,
}

impl CustomOp1 for Transpose {
    fn name(&self) -> &'static str {
        "transpose-samples"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let y = transpose(slice(x, layout)?, self.rows, self.columns);
        Ok((CpuStorage::F32(y), self.shape.clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dx = read([dy], |[dy]| transpose(dy, self.columns, self.rows))?;
        tensor(dx, x.shape()).map(Some)
    }
}

fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut y = vec![0.; x.len()];
    let sample = rows * columns;
    for_each_chunk(&mut y, sample, |i, y| {
        let x = &x[i * sample..][..sample];
        for (column, y) in y.chunks_exact_mut(rows).enumerate() {
            for (y, x) in y.iter_mut().zip(x[column..].iter().step_by(columns)) {
                *y = *x;
            }
        }
    });
    y
}
