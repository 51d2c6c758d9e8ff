//! Activations and changes of shape, as layers without parameters for [`Sequential`](super::Sequential).

use candle_core::Result;
use functional::{Network, Value};

/// The larger of each element and 0; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Relu;

/// x · Φ(x) of each element: PyTorch's `nn.GELU()`; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Gelu;

/// x / (1 + e⁻ˣ) of each element: PyTorch's `nn.SiLU()`; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Silu;

/// 1 / (1 + e⁻ˣ) of each element; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Sigmoid;

/// The hyperbolic tangent of each element; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Tanh;

/// Each element, at least 0 and at most 6; any shape.
#[derive(Debug, Clone, Copy)]
pub struct Relu6;

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

impl Network for Silu {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.silu()
    }
}

impl Network for Sigmoid {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.sigmoid()
    }
}

impl Network for Tanh {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.tanh()
    }
}

impl Network for Relu6 {
    fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
        x.relu6()
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
