//! Layers one after the other.

use candle_core::{Result, bail};
use functional::{Network, Value};

/// Layers, each of which gets the output of the one before: PyTorch's `nn.Sequential`. The first one gets all inputs.
///
/// ```
/// use data_parallel::prelude::*;
///
/// let devices = devices(2)?;
/// let net = DataParallel::new(&devices, Initializer::Layers, 0, |vb| {
///     Ok(Sequential::new()
///         .add(Nhwc) // images (B, 1, 28, 28)
///         .add(Conv2d::new(1, 6, 5, vb.pp("0"))?)
///         .add(Relu)
///         .add(MaxPool2d::new(2))
///         .add(Flatten)
///         .add(Linear::new(6 * 12 * 12, 10, vb.pp("4"))?))
/// })?;
/// let y_hat = net.forward(&Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(y_hat.dims(), [2, 10]);
/// # data_parallel::Result::Ok(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Network>>,
}

impl Sequential {
    /// No layers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One layer more, behind the others.
    #[expect(clippy::should_implement_trait, reason = "no sum, as in candle-nn")]
    pub fn add(mut self, layer: impl Network + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Network for Sequential {
    fn forward(&self, x: &Value, train: bool) -> Result<Value> {
        self.forward_all(std::slice::from_ref(x), train)
    }

    fn forward_all(&self, x: &[Value], train: bool) -> Result<Value> {
        match (&self.layers[..], x) {
            ([first, rest @ ..], _) => {
                let y = first.forward_all(x, train)?;
                rest.iter().try_fold(y, |y, layer| layer.forward(&y, train))
            }
            ([], [x]) => Ok(x.clone()),
            ([], _) => bail!("Sequential has no layer, and {} inputs", x.len()),
        }
    }
}
