//! Activations and changes of shape, as layers without parameters for [`Sequential`](super::Sequential).

use candle_core::Result;
use functional::{Network, Value};

/// Layers without parameters: each is a method of a value.
macro_rules! layers {
    ($($(#[$doc:meta])* $layer:ident: $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $layer;

        impl Network for $layer {
            fn forward(&self, x: &Value, _train: bool) -> Result<Value> {
                x.$method()
            }
        }
    )*};
}

layers! {
    /// The larger of each element and 0; any shape.
    Relu: relu;

    /// x · Φ(x) of each element: PyTorch's `nn.GELU()`; any shape.
    Gelu: gelu;

    /// x / (1 + e⁻ˣ) of each element: PyTorch's `nn.SiLU()`; any shape.
    Silu: silu;

    /// 1 / (1 + e⁻ˣ) of each element; any shape.
    Sigmoid: sigmoid;

    /// The hyperbolic tangent of each element; any shape.
    Tanh: tanh;

    /// Each element, at least 0 and at most 6; any shape.
    Relu6: relu6;

    /// Images (B, C, H, W), as PyTorch and candle have them, to (B, H, W, C): the first layer of a network for images.
    Nhwc: nhwc;

    /// Activations (B, H, W, C) to vectors (B, C·H·W), in PyTorch's order.
    Flatten: flatten;
}
