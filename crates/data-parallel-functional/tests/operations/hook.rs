//! A network that hands its input on, and does something on each way.

use candle_core::{CpuStorage, CustomOp1, Layout, ModuleT, Result, Shape, Tensor};

/// Hands a tensor on, and its gradient back, and does something on each way: `true` is forward.
#[derive(Clone)]
pub struct Hook<F>(pub F);

impl<F: Fn(bool) -> Result<()> + Clone + Send + Sync + 'static> ModuleT for Hook<F> {
    /// Without `train` nothing happens: a network of candle's operations runs so, to learn its shapes.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        match train {
            true => x.apply_op1(self.clone()),
            false => Ok(x.clone()),
        }
    }
}

impl<F: Fn(bool) -> Result<()>> CustomOp1 for Hook<F> {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0(true)?;
        Ok((x.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        self.0(false)?;
        Ok(Some(dy.clone()))
    }
}
