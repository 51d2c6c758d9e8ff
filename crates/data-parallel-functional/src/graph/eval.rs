//! The numbers of a value, without gradients.

use super::checked::without_gradient;
use super::compile::compile;
use super::value::Value;
use crate::kernel::Cpu;
use crate::kernel::{Backend, Pass};
use candle_core::{Device, Result, Tensor, bail};
use std::fmt;

impl Value {
    /// Computes it, once. It reads its tensors as they are now.
    ///
    /// The tensor has no gradient: what is computed from it trains nothing. To compute with the numbers and train, use
    /// [`candle`](crate::candle()). Under [`GradientChecks`](crate::GradientChecks) it is an error if a network or a loss
    /// goes on with the tensor. If nothing is to be trained by it, call `detach` on the tensor at once, also before you keep
    /// it for later steps: candle would keep all that it was computed from. `*_no_bwd` operations of candle hide such an
    /// error.
    ///
    /// # Errors
    /// Where the device has no memory left, or an operation of candle's fails.
    #[tracing::instrument(skip_all, name = "forward")]
    pub fn eval(&self) -> Result<Tensor> {
        let result = self.numbers()?;
        if self.is_wanted() {
            return without_gradient(result);
        }
        Ok(result)
    }

    fn numbers(&self) -> Result<Tensor> {
        if let Some(result) = &*self.0.result.borrow() {
            return Ok(result.clone());
        }
        let result = match self.device() {
            Device::Cpu => self.compute::<Cpu>()?,
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => self.compute::<crate::cuda::Cuda>()?,
            other => bail!("this program computes on the CPU and on NVIDIA GPUs, not on {other:?}"),
        };
        self.set_result(result.clone());
        Ok(result)
    }

    fn compute<B: Backend>(&self) -> Result<Tensor> {
        let tape = compile::<B>(&[self])?;
        let pass = Pass {
            stream: B::stream(self.device(), 0)?,
            keep: false,
            norms: None,
        };
        let saved = tape.forward(&pass)?;
        Ok(tape.outputs(&pass, saved)?.swap_remove(0))
    }

    /// Keeps the result for [`eval`](Self::eval).
    pub(crate) fn set_result(&self, result: Tensor) {
        *self.0.result.borrow_mut() = Some(result);
    }
}

/// The numbers, computed for this, as candle prints them.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.eval() {
            Ok(tensor) => tensor.fmt(f),
            Err(error) => write!(f, "{error}"),
        }
    }
}
