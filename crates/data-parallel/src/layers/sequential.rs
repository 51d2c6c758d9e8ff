//! Layers one after the other.

use candle_core::Result;
use functional::{Network, Value};

/// Layers, each of which gets the output of the one before: PyTorch's `nn.Sequential`.
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// use data_parallel::layers::{Conv2d, Flatten, Linear, MaxPool2d, Nhwc, Relu, Sequential};
/// use data_parallel::{DataParallel, Initializer};
///
/// let devices = devices::devices(2)?;
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
/// assert_eq!(y_hat[0].dims(), [1, 10]);
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
        let mut layers = self.layers.iter();
        layers.try_fold(x.clone(), |x, layer| layer.forward(&x, train))
    }
}
