//! Activations and changes of shape, as layers without parameters for [`Sequential`](super::Sequential).

use candle_core::Result;
use functional::{Network, Value};

/// The larger of each element and 0; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Relu;

/// x · Φ(x) of each element: PyTorch's `nn.GELU()`; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Gelu;

/// Images (B, C, H, W), as PyTorch and candle have them, to (B, H, W, C): the first layer of a network for images.
#[derive(Debug, Clone, Copy)]
pub struct Nhwc;

/// Activations (B, H, W, C) to vectors (B, C·H·W), in PyTorch's order.
#[derive(Debug, Clone, Copy)]
pub struct Flatten;

impl Network for Relu {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.relu()
    }
}

impl Network for Gelu {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.gelu()
    }
}

impl Network for Nhwc {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.nhwc()
    }
}

impl Network for Flatten {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.flatten()
    }
}
