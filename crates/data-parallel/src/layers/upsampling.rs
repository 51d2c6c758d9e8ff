//! Layers whose images are larger than their inputs'.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use functional::{Network, Value};

use super::{evenly, of_layer};

/// Transposed convolution: (B, H, W, inputs) to (B, H', W', outputs), with H' = (H − 1) · stride − 2 · padding + kernel +
/// output padding. It has no groups and no dilation.
#[derive(Debug, Clone)]
pub struct ConvTranspose2d {
    name: String,
    weight: Tensor,
    bias: Tensor,
    stride: usize,
    padding: usize,
    output_padding: usize,
}

impl ConvTranspose2d {
    /// A square kernel with a bias. Default: stride 1, no padding.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let (varmap, cpu) = (candle_nn::VarMap::new(), Device::Cpu);
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &cpu);
    /// let conv = data_parallel::layers::ConvTranspose2d::new(64, 32, 2, vb)?.stride(2);
    /// let x = Value::new(&Tensor::zeros((4, 7, 7, 64), DType::F32, &cpu)?)?;
    /// assert_eq!(conv.forward(&x, true)?.dims(), [4, 14, 14, 32]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(inputs: usize, outputs: usize, kernel: usize, vb: VarBuilder<'_>) -> Result<Self> {
        // PyTorch's, which counts the outputs of a pixel
        let init = evenly(outputs * kernel * kernel);
        let shape = (inputs, outputs, kernel, kernel);
        Ok(Self {
            name: vb.prefix(),
            weight: vb.get_with_hints(shape, "weight", init)?,
            bias: vb.get_with_hints(outputs, "bias", init)?,
            stride: 1,
            padding: 0,
            output_padding: 0,
        })
    }

    /// Sets the step from pixel to pixel in the result.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Sets the rows and columns that the result loses at each side.
    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Sets the rows and columns that the result gets at its end, fewer than the stride.
    pub fn output_padding(self, output_padding: usize) -> Self {
        Self {
            output_padding,
            ..self
        }
    }
}

impl Network for ConvTranspose2d {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        let bias = Some(&self.bias);
        let y = x.conv_transpose2d(
            &self.weight,
            bias,
            self.stride,
            self.padding,
            self.output_padding,
        );
        of_layer(&self.name, y)
    }
}

/// Images that are larger by a factor: (B, H, W, C) to (B, factor · H, factor · W, C).
#[derive(Debug, Clone, Copy)]
pub struct Upsample {
    factor: usize,
    is_bilinear: bool,
}

impl Upsample {
    /// Each pixel becomes `factor` × `factor` equal ones.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// let up = data_parallel::layers::Upsample::nearest(2);
    /// let x = Value::new(&Tensor::zeros((4, 7, 7, 64), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(up.forward(&x, true)?.dims(), [4, 14, 14, 64]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn nearest(factor: usize) -> Self {
        Self {
            factor,
            is_bilinear: false,
        }
    }

    /// The pixels are weighted means of their neighbours: PyTorch's `mode="bilinear"` with `align_corners=False`.
    pub fn bilinear(factor: usize) -> Self {
        Self {
            factor,
            is_bilinear: true,
        }
    }
}

impl Network for Upsample {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        // of another shape, the operation says what is wrong
        let size = |dim: usize| x.dims().get(dim).map_or(0, |size| size * self.factor);
        if self.is_bilinear {
            x.upsample_bilinear2d(size(1), size(2))
        } else {
            x.upsample_nearest2d(size(1), size(2))
        }
    }
}
