//! Norms with statistics of each example or each token alone.

use candle_core::{Result, Tensor};
use candle_nn::{Init, VarBuilder};
use functional::{Network, Value};

use super::of_layer;

/// PyTorch's number under the root of a norm.
const EPS: f32 = 1e-5;

/// Layer normalization over the last dimension: (…, features) to the same shape.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    name: String,
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// A layer with scale one and shift zero. ε is 1e-5 by default.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let norm = data_parallel::layers::LayerNorm::new(2, vb)?;
    /// let y = norm.forward(&Value::new(&Tensor::new(&[[10f32, 30.]], &cpu)?)?, true)?;
    /// let y = y.eval()?.to_vec2::<f32>()?;
    /// assert!((y[0][0] + 1.).abs() < 1e-6 && (y[0][1] - 1.).abs() < 1e-6);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(features: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let get = |name, value| vb.get_with_hints(features, name, Init::Const(value));
        Ok(Self {
            name: vb.prefix(),
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
            eps: EPS,
        })
    }

    /// Sets ε, the number under the root: 1e-12 for BERT.
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }
}

impl Network for LayerNorm {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let y = x.layer_norm_eps(&self.weight, &self.bias, self.eps);
        of_layer(&self.name, y)
    }
}

/// Normalization by the root of the mean square of the last dimension: (…, features) to the same shape.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    name: String,
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// A layer with scale one. ε is 1e-5 by default, as Llama's; PyTorch's depends on the type.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let norm = data_parallel::layers::RmsNorm::new(2, vb)?.eps(0.0);
    /// let y = norm.forward(&Value::new(&Tensor::new(&[[1f32, 7.]], &cpu)?)?, true)?;
    /// assert_eq!(y.eval()?.to_vec2::<f32>()?, [[0.2, 1.4]]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(features: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            name: vb.prefix(),
            weight: vb.get_with_hints(features, "weight", Init::Const(1.0))?,
            eps: EPS,
        })
    }

    /// Sets ε, the number under the root.
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }
}

impl Network for RmsNorm {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        of_layer(&self.name, x.rms_norm(&self.weight, self.eps))
    }
}

/// Group normalization: the channels of (B, H, W, channels) in groups, each over all pixels of an example.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    name: String,
    groups: usize,
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl GroupNorm {
    /// A layer with scale one and shift zero, of `groups` groups that divide the channels. ε is 1e-5 by default.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let norm = data_parallel::layers::GroupNorm::new(8, 64, vb)?;
    /// let x = Value::new(&Tensor::zeros((4, 14, 14, 64), DType::F32, &cpu)?)?;
    /// assert_eq!(norm.forward(&x, true)?.dims(), [4, 14, 14, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(groups: usize, channels: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let get = |name, value| vb.get_with_hints(channels, name, Init::Const(value));
        Ok(Self {
            name: vb.prefix(),
            groups,
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
            eps: EPS,
        })
    }

    /// Sets ε, the number under the root.
    pub fn eps(self, eps: f32) -> Self {
        Self { eps, ..self }
    }
}

impl Network for GroupNorm {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let y = x.group_norm(self.groups, &self.weight, &self.bias, self.eps);
        of_layer(&self.name, y)
    }
}
