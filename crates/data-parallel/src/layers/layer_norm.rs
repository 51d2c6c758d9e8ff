//! Layer normalization, of candle's operations.

use candle_core::{D, ModuleT, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use functional::{Candle, Network, Value, candle};

/// Layer normalization over the last dimension: (…, features) to the same shape.
pub struct LayerNorm(Candle);

impl LayerNorm {
    /// A layer with scale one and shift zero; `eps` is what PyTorch has, 1e-5.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_nn::{VarBuilder, VarMap};
    /// # use functional::{Network, Value};
    /// # let (varmap, cpu) = (VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let norm = data_parallel::layers::LayerNorm::new(2, vb)?;
    /// let y = norm.forward(&Value::new(&Tensor::new(&[[10f32, 30.]], &cpu)?)?, true)?;
    /// let y = y.eval()?.to_vec2::<f32>()?;
    /// assert!((y[0][0] + 1.).abs() < 1e-6 && (y[0][1] - 1.).abs() < 1e-6);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(features: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let get = |name, value| vb.get_with_hints(features, name, Init::Const(value));
        Ok(Self(candle(Norm {
            weight: get("weight", 1.0)?,
            bias: get("bias", 0.0)?,
        })))
    }
}

impl Network for LayerNorm {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.0.forward(x, train)
    }
}

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl ModuleT for Norm {
    fn forward_t(&self, x: &Tensor, _train: bool) -> Result<Tensor> {
        let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = x.sqr()?.mean_keepdim(D::Minus1)?;
        let y = x.broadcast_div(&(variance + 1e-5)?.sqrt()?)?;
        y.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)
    }
}
