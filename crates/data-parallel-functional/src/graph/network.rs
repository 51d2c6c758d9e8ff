//! The trait of networks and layers.

use super::value::Value;
use candle_core::{Error, Result};

/// A network, or a layer: from images or activations to a value. `train` says whether it is for a step of training.
///
/// Closures are networks:
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Network, Value};
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

    /// Writes the network down for all inputs of a minibatch. [`candle_fn`](crate::candle_fn) and [`network_fn`] make
    /// networks of several inputs; a type of your own has this method too. Without it there is one input.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); and where it takes another number of inputs.
    fn forward_all(&self, x: &[Value], train: bool) -> Result<Value> {
        match x {
            [x] => self.forward(x, train),
            _ => Err(has_one_input(x.len())),
        }
    }
}

#[diagnostic::do_not_recommend]
impl<F: Fn(&Value, bool) -> Result<Value>> Network for F {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self(x, train)
    }
}

/// The error of a network of one input that gets others.
pub(crate) fn has_one_input(found: usize) -> Error {
    Error::Msg(format!(
        "the network has 1 input, the minibatch {found}; for several implement Network::forward_all, or build it with \
         network_fn or candle_fn"
    ))
}

/// A network of several inputs, from a function of all of them.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_functional::{Network, Value, network_fn};
/// let sum = network_fn(|x: &[Value], _train| &x[0] + &x[1]);
/// let x = Value::new(&Tensor::new(&[[3f32, 4.]], &Device::Cpu)?)?;
/// assert_eq!(sum.forward_all(&[x.clone(), x], false)?.eval()?.to_vec2::<f32>()?, [[6., 8.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn network_fn<F: Fn(&[Value], bool) -> Result<Value>>(f: F) -> NetworkFn<F> {
    NetworkFn(f)
}

/// A network of several inputs: [`network_fn`] makes it.
pub struct NetworkFn<F>(F);

impl<F: Fn(&[Value], bool) -> Result<Value>> Network for NetworkFn<F> {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.forward_all(std::slice::from_ref(x), train)
    }

    fn forward_all(&self, x: &[Value], train: bool) -> Result<Value> {
        (self.0)(x, train)
    }
}
