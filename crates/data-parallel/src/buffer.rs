//! Buffers of a program's own network: numbers that training moves and no optimizer trains.

use candle_core::{Result, Shape, Var};
use candle_nn::{Init, VarBuilder};

use crate::network_state::{BufferRule, declare_buffer};

/// A buffer of f32 with this name: numbers that a network sets itself in training, and that no optimizer trains, such as a
/// codebook that follows its inputs, or the vector of a spectral norm. In PyTorch: `register_buffer`.
///
/// Each replica sets its own, from its examples. At the end of a step they become one value, by the `rule`. The state of
/// the network and checkpoints have it, and a step that is not taken leaves it as it was. A parameter that the network sets
/// itself would be another one on each replica, and is an error. `init` is its first value, whatever the
/// [`Initializer`](crate::Initializer) says.
///
/// ```
/// use data_parallel::prelude::*;
///
/// /// Subtracts a mean of all inputs that it has seen.
/// struct Centered {
///     mean: Var,
/// }
///
/// impl ModuleT for Centered {
///     fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
///         let mean = self.mean.as_detached_tensor();
///         let y = x.broadcast_sub(&mean)?;
///         if train {
///             self.mean.set(&((mean * 0.9)? + (x.detach().mean(0)? * 0.1)?)?)?;
///         }
///         Ok(y)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
///     let mean = buffer(&vb, 3, "mean", Init::Const(0.0), BufferRule::Mean)?;
///     Ok(Sequential::new().add(candle(Centered { mean })).add(Linear::new(3, 1, vb.pp("fc"))?))
/// })?;
/// let mut trainer = Trainer::new(&net, squared_error, Sgd::new(0.1));
/// let x = Tensor::new(&[[1f32, 0.0, 0.0], [3.0, 0.0, 0.0]], &Device::Cpu)?;
/// trainer.step(&x, &Tensor::zeros((2, 1), DType::F32, &Device::Cpu)?)?;
/// let state = net.state_dict()?;
/// assert_eq!(state[0].0, "mean");
/// assert!((state[0].1.to_vec1::<f32>()?[0] - 0.2).abs() < 1e-6); // a tenth of (1 + 3) / 2
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the network has another tensor of this name.
pub fn buffer(
    vb: &VarBuilder<'_>,
    shape: impl Into<Shape>,
    name: &str,
    init: Init,
    rule: BufferRule,
) -> Result<Var> {
    let prefix = vb.prefix();
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    };
    declare_buffer(path, rule);
    Var::from_tensor(&vb.get_with_hints(shape, name, init)?)
}
