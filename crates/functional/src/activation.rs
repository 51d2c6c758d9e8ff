//! ReLU, for any shape.

use crate::storage::{read, slice, tensor};
use crate::threads::for_each_chunk;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

const CHUNK: usize = 1 << 14;

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
    if !x.device().is_cpu() {
        return plain::relu(x);
    }
    let x = args::float("relu", "x", x)?;
    x.contiguous()?.apply_op1(Relu)
}

struct Relu;

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice(x, layout)?;
        let mut y = vec![0.; x.len()];
        for_each_chunk(&mut y, CHUNK, |i, y| {
            for (y, x) in y.iter_mut().zip(&x[i * CHUNK..]) {
                *y = if *x <= 0. { 0. } else { *x };
            }
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, _x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dx = read([y, dy], |[y, dy]| {
            let mut dx = vec![0.; y.len()];
            for_each_chunk(&mut dx, CHUNK, |i, dx| {
                let (y, dy) = (&y[i * CHUNK..], &dy[i * CHUNK..]);
                for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
                    // both read first: then the choice needs no branch, which would be mispredicted
                    let (y, dy) = (*y, *dy);
                    *dx = if y <= 0. { 0. } else { dy };
                }
            });
            dx
        })?;
        tensor(dx, y.shape()).map(Some)
    }
}
