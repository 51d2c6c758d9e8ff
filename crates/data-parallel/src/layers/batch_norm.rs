//! Batch normalization.

use candle_core::{DType, Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};
use functional::{BatchNorm, Network, Value};

use super::of_layer;

/// Batch normalization of (B, H, W, channels), with statistics of its own on each replica, or with those of the
/// whole minibatch, as [`Replication::sync_bn`](crate::Replication) says.
///
/// By default ε is 1e-5 and the momentum 0.1, as PyTorch's.
#[derive(Debug, Clone)]
pub struct BatchNorm2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    running_mean: Var,
    running_var: Var,
    num_batches_tracked: Var,
    how: BatchNorm,
}

impl BatchNorm2d {
    /// A layer with scale one and shift zero.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let bn = data_parallel::layers::BatchNorm2d::new(64, vb)?;
    /// let x = Value::new(&Tensor::zeros((4, 28, 28, 64), DType::F32, &cpu)?)?;
    /// assert_eq!(bn.forward(&x, true)?.dims(), [4, 28, 28, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(channels: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let get = |name, value| vb.get_with_hints(channels, name, Init::Const(value));
        let count = |name| vb.get_with_hints_dtype((), name, Init::Const(0.0), DType::I64);
        Ok(Self {
            name: vb.prefix(),
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
            running_mean: Var::from_tensor(&get("running_mean", 0.0)?)?,
            running_var: Var::from_tensor(&get("running_var", 1.0)?)?,
            num_batches_tracked: Var::from_tensor(&count("num_batches_tracked")?)?,
            how: BatchNorm::default(),
        })
    }

    /// Sets ε, what is added to the variance: 1e-3 for TensorFlow's EfficientNet.
    pub fn eps(mut self, eps: f32) -> Self {
        self.how.eps = eps;
        self
    }

    /// Sets the weight of a batch in the running statistics.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.how.momentum = momentum;
        self
    }
}

impl Network for BatchNorm2d {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        let parameters = [&self.weight, &self.bias];
        let running = [&self.running_mean, &self.running_var];
        let batches = Some(&self.num_batches_tracked);
        let y = x.batch_norm2d_with(parameters, running, batches, train, self.how);
        of_layer(&self.name, y)
    }
}
