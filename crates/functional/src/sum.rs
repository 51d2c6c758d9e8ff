//! The sum of a tensor of losses. Unlike candle's it lies on the short way back ([`crate::chain`]), and is added
//! up in f64.

use crate::chain::{self, Link, Next};
use crate::storage::slice;
use crate::{args, plain};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor};

/// The sum of all elements, a scalar: made for the losses of a minibatch's examples.
///
/// In the book: `loss(…).sum()`.
///
/// # Errors
/// Where `x` is not f32.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let losses = Tensor::new(&[1f32, 2., 4.], &Device::Cpu)?;
/// assert_eq!(functional::sum(&losses)?.to_scalar::<f32>()?, 7.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn sum(x: &Tensor) -> Result<Tensor> {
    match x.device() {
        Device::Metal(_) => plain::sum(x),
        _ => {
            let x = args::float("sum", "x", x)?.contiguous()?;
            chain::apply(&x, Sum(x.clone()))
        }
    }
}

/// Of this tensor.
struct Sum(Tensor);

impl CustomOp1 for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let sum: f64 = slice(x, layout)?.iter().copied().map(f64::from).sum();
        Ok((CpuStorage::F32(vec![sum as f32]), ().into()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        crate::cuda::sum(x, layout)
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, d_sum: &Tensor) -> Result<Option<Tensor>> {
        d_sum.broadcast_as(x.shape())?.contiguous().map(Some)
    }
}

impl Link for Sum {
    fn next(&self) -> Result<Next<'_>> {
        Ok(Next::To(&self.0))
    }

    fn back(&self, y: &Tensor, d_sum: Option<&Tensor>) -> Result<Option<Tensor>> {
        match d_sum {
            Some(d_sum) => self.bwd(&self.0, y, d_sum),
            None => Ok(None), // one for each element
        }
    }
}
