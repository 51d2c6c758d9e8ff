//! The trait of networks and layers.

use super::value::Value;
use candle_core::Result;

/// A network, or a layer: from images or activations to a value. `train` says whether it is for a step of training.
///
/// Closures are networks:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use functional::{Network, Value};
/// let w = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let net = move |x: &Value, _train: bool| x.linear(&w, None)?.relu();
/// let x = Value::new(&Tensor::new(&[[3f32, 4.]], &Device::Cpu)?)?;
/// assert_eq!(net.forward(&x, false)?.eval()?.to_vec2::<f32>()?, [[11.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait Network {
    /// Writes the network down for `x`.
    ///
    /// # Errors
    /// Where `x` does not fit.
    fn forward(&self, x: &Value, train: bool) -> Result<Value>;
}

impl<F: Fn(&Value, bool) -> Result<Value>> Network for F {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self(x, train)
    }
}
