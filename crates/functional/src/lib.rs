//! The differentiable operations of LeNet and ResNet-18 for candle tensors of f32: fast on the
//! CPU, right on every device.
//!
//! **Activations are NHWC**: (B, H, W, C), batch, height, width, channel, because a matrix product
//! wants a pixel's channels side by side. The book's images are (B, C, H, W): [`nhwc`] brings them
//! in, and [`flatten`] hands them to the linear layers in the book's order. Weights have PyTorch's
//! layouts, convolution (O, I, KH, KW) and linear (O, I), and are repacked inside, so parameters in
//! memory look like the book's and load from PyTorch's files.
//!
//! On the CPU each function is an operation of our own. On other devices it is its twin of the
//! same name in [`plain`], composed from candle's operations, against which it is tested.
//! An operation uses as many threads as [`threads::budget`] says, and its bits do not depend on it.
//!
//! This crate knows no model, no dataset and no replica, and it never moves a tensor to another
//! device or type: what does not fit is an error that names both sides. A batch of no examples is
//! fine, except for batch normalization in training, which has no statistics then.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use functional::{avg_pool2d, conv2d, flatten, nhwc, relu};
//!
//! // the first layer of the book's LeNet
//! let images = Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?;
//! let w1 = Tensor::ones((20, 1, 3, 3), DType::F32, &Device::Cpu)?;
//! let h = relu(&conv2d(&nhwc(&images)?, &w1, None, 1, 0)?)?;
//! assert_eq!(h.dims(), [2, 26, 26, 20]);
//! let h = avg_pool2d(&h, 2, 2)?;
//! assert_eq!(h.dims(), [2, 13, 13, 20]);
//! assert_eq!(flatten(&h)?.dims(), [2, 20 * 13 * 13]);
//! # Ok::<(), candle_core::Error>(())
//! ```

mod activation;
mod args;
mod conv;
mod gemm;
mod grad;
mod im2col;
mod layout;
mod linear;
mod loss;
mod norm;
pub mod plain;
mod pool;
mod scoped;
mod storage;
mod sums;
pub mod threads;

pub use activation::relu;
pub use conv::conv2d;
pub use grad::no_grad;
pub use layout::{flatten, nhwc};
pub use linear::linear;
pub use loss::cross_entropy;
pub use norm::batch_norm2d;
pub use pool::{avg_pool2d, global_avg_pool2d, max_pool2d};
