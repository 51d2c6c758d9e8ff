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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no network or layer of this library",
    note = "wrap a module or a function of candle's tensors: `candle(module)`",
    note = "a closure is a network if it is `|x: &Value, train: bool| …` and returns `candle_core::Result<Value>`"
)]
pub trait Network {
    /// Writes the network down for `x`.
    ///
    /// # Errors
    /// Where `x` does not fit.
    fn forward(&self, x: &Value, train: bool) -> Result<Value>;
}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Value, bool) -> Result<Value>> Network for F {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self(x, train)
    }
}
