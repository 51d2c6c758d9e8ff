//! The layers of the book's networks, built on the operations of `functional`. Activations are NHWC
//! inside a network; parameters have PyTorch's names and layouts. A layer is a [`Network`].
//!
//! With [`functional::candle`], layers of candle-nn can be parts of a network too. They are slower. With candle 0.11.1
//! some have a wrong gradient or none: `max_pool2d` and `conv1d`, `LayerNorm` with a bias, `RmsNorm`, and `conv2d` with a
//! stride in some sizes. The page "What trains in candle", `notebooks-md/what-trains-in-candle.md`, has all of them, and
//! what to use instead. A [`Trainer`](crate::Trainer) compares candle's gradients with finite differences, in its first step
//! and where something is new. A wrong gradient is an error of that step.
//!
//! Under [`Initializer::Layers`](crate::Initializer) all parameters begin as PyTorch's do: weights and biases of
//! `Linear` and `Conv2d` evenly between ±1/√(inputs of an output).
//!
//! The operations of `functional` take images as (B, H, W, C), those of candle as (B, C, H, W).

mod activation;
mod batch_norm;
mod dropout;
mod norms;
mod pooling;
mod recurrent;
mod sequential;
mod tokens;
mod upsampling;

pub use activation::{Flatten, Gelu, Nhwc, Relu, Relu6, Sigmoid, Silu, Tanh};
pub use batch_norm::BatchNorm2d;
pub use dropout::Dropout;
pub(crate) use dropout::DropoutPass;
pub use norms::{GroupNorm, LayerNorm, RmsNorm};
pub use pooling::{AvgPool2d, GlobalAvgPool2d, MaxPool2d};
pub use recurrent::{Gru, Lstm};
pub use sequential::Sequential;
pub use tokens::Embedding;
pub use upsampling::{ConvTranspose2d, Upsample};

use candle_core::{Error, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use functional::{Network, Value};

/// PyTorch's for a linear or convolutional layer, each output of which has this many inputs.
fn evenly(inputs: usize) -> Init {
    let up = 1.0 / (inputs as f64).sqrt();
    Init::Uniform { lo: -up, up }
}

/// The value of the layer that `name` names; an error names it too.
fn of_layer(name: &str, y: Result<Value>) -> Result<Value> {
    y.map_err(|error| {
        if name.is_empty() {
            error
        } else {
            Error::Msg(format!(
                "layer {name}: {}",
                devices::without_backtrace(error)
            ))
        }
    })
}

/// Two-dimensional convolution: (B, H, W, inputs) to (B, H', W', outputs). It has no dilation; candle's has, and costs more
/// (`notebooks-md/your-own-project.md`).
#[derive(Debug, Clone)]
pub struct Conv2d {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
    stride: usize,
    padding: usize,
    groups: usize,
}

impl Conv2d {
    /// A square kernel with a bias. Default: stride 1, no padding.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let conv = data_parallel::layers::Conv2d::new(1, 64, 3, vb)?.padding(1).stride(2);
    /// let x = Value::new(&Tensor::zeros((4, 28, 28, 1), DType::F32, &cpu)?)?;
    /// assert_eq!(conv.forward(&x, true)?.dims(), [4, 14, 14, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(inputs: usize, outputs: usize, kernel: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Self::rectangular(inputs, outputs, [kernel, kernel], vb)
    }

    /// As [`new`](Self::new), with a kernel of `[rows, columns]`. With `[1, k]` and images of one row it is a
    /// convolution in one dimension: (B, 1, T, inputs) to (B, 1, T', outputs). [`padding`](Self::padding) would also add
    /// rows there: pad such an input itself.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let conv = data_parallel::layers::Conv2d::rectangular(8, 16, [1, 5], vb)?;
    /// let x = Value::new(&Tensor::zeros((4, 1, 100, 8), DType::F32, &cpu)?)?;
    /// assert_eq!(conv.forward(&x, true)?.dims(), [4, 1, 96, 16]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn rectangular(
        inputs: usize,
        outputs: usize,
        kernel: [usize; 2],
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let mut conv = Self::weight_alone(inputs, outputs, kernel, vb.clone())?;
        let init = evenly(inputs * kernel[0] * kernel[1]);
        conv.bias = Some(vb.get_with_hints(outputs, "bias", init)?);
        Ok(conv)
    }

    /// A convolution in `groups` groups, with a bias: each group of outputs sees one group of inputs. With as many groups as
    /// inputs, each channel is convolved by itself: a depthwise convolution.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let conv = data_parallel::layers::Conv2d::grouped(96, 96, 7, 96, vb)?.padding(3);
    /// let x = Value::new(&Tensor::zeros((4, 14, 14, 96), DType::F32, &cpu)?)?;
    /// assert_eq!(conv.forward(&x, true)?.dims(), [4, 14, 14, 96]);
    /// # candle_core::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Where the groups do not divide inputs and outputs.
    pub fn grouped(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        groups: usize,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let mut conv = Self::grouped_without_bias(inputs, outputs, kernel, groups, vb.clone())?;
        let init = evenly(inputs / groups * kernel * kernel);
        conv.bias = Some(vb.get_with_hints(outputs, "bias", init)?);
        Ok(conv)
    }

    /// The same as [`grouped`](Self::grouped), without a bias: in front of a batch norm, which has one.
    ///
    /// # Errors
    /// Where the groups do not divide inputs and outputs.
    pub fn grouped_without_bias(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        groups: usize,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let name = vb.prefix();
            bail!(
                "layer {name}: {groups} groups do not divide {inputs} inputs and {outputs} outputs"
            )
        }
        let conv = Self::weight_alone(inputs / groups, outputs, [kernel, kernel], vb)?;
        Ok(Self { groups, ..conv })
    }

    /// As [`new`](Self::new), without a bias: in front of a batch norm, which has one.
    pub fn without_bias(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        Self::weight_alone(inputs, outputs, [kernel, kernel], vb)
    }

    fn weight_alone(
        inputs: usize,
        outputs: usize,
        kernel: [usize; 2],
        vb: VarBuilder<'_>,
    ) -> Result<Self> {
        let [rows, columns] = kernel;
        let init = evenly(inputs * rows * columns);
        Ok(Self {
            name: vb.prefix(),
            weight: vb.get_with_hints((outputs, inputs, rows, columns), "weight", init)?,
            bias: None,
            stride: 1,
            padding: 0,
            groups: 1,
        })
    }

    /// Sets the step of the kernel.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets the rows and columns of zeros around the image.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }
}

impl Network for Conv2d {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let Self {
            weight,
            stride,
            padding,
            groups,
            ..
        } = self;
        let bias = self.bias.as_ref();
        let y = if *groups == 1 {
            x.conv2d(weight, bias, *stride, *padding)
        } else {
            x.grouped_conv2d(weight, bias, *stride, *padding, *groups)
        };
        of_layer(&self.name, y)
    }
}

/// Fully connected layer over the last dimension: (…, inputs) to (…, outputs).
#[derive(Debug, Clone)]
pub struct Linear {
    name: String,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer with a bias.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let fc = data_parallel::layers::Linear::new(512, 10, vb)?;
    /// let x = Value::new(&Tensor::zeros((4, 512), DType::F32, &cpu)?)?;
    /// assert_eq!(fc.forward(&x, true)?.dims(), [4, 10]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(inputs: usize, outputs: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let mut linear = Self::without_bias(inputs, outputs, vb.clone())?;
        linear.bias = Some(vb.get_with_hints(outputs, "bias", evenly(inputs))?);
        Ok(linear)
    }

    /// A layer without a bias.
    pub fn without_bias(inputs: usize, outputs: usize, vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            name: vb.prefix(),
            weight: vb.get_with_hints((outputs, inputs), "weight", evenly(inputs))?,
            bias: None,
        })
    }
}

impl Network for Linear {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        of_layer(&self.name, x.linear(&self.weight, self.bias.as_ref()))
    }
}
