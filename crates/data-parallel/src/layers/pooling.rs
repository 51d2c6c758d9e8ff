//! Layers that pool images, without parameters.

use candle_core::Result;
use functional::{Network, Value};

/// Largest value of each window: (B, H, W, C) to (B, H', W', C).
#[derive(Debug, Clone, Copy)]
pub struct MaxPool2d {
    kernel: usize,
    stride: usize,
}

/// Mean of each window: (B, H, W, C) to (B, H', W', C).
#[derive(Debug, Clone, Copy)]
pub struct AvgPool2d {
    kernel: usize,
    stride: usize,
}

/// Mean of each channel: (B, H, W, C) to (B, C).
#[derive(Debug, Clone, Copy)]
pub struct GlobalAvgPool2d;

impl MaxPool2d {
    /// Square windows side by side. [`stride`](Self::stride) changes the stride.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// let pool = data_parallel::layers::MaxPool2d::new(3).stride(2);
    /// let x = Value::new(&Tensor::zeros((4, 28, 28, 6), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(pool.forward(&x, true)?.dims(), [4, 13, 13, 6]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(kernel: usize) -> Self {
        let stride = kernel;
        Self { kernel, stride }
    }

    /// Sets the step from window to window.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }
}

impl AvgPool2d {
    /// Square windows side by side. [`stride`](Self::stride) changes the stride.
    pub fn new(kernel: usize) -> Self {
        let stride = kernel;
        Self { kernel, stride }
    }

    /// Sets the step from window to window.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }
}

impl Network for MaxPool2d {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.max_pool2d(self.kernel, self.stride)
    }
}

impl Network for AvgPool2d {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.avg_pool2d(self.kernel, self.stride)
    }
}

impl Network for GlobalAvgPool2d {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.global_avg_pool2d()
    }
}
