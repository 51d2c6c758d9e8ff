//! The differentiable operations of LeNet and ResNet-18 for candle tensors of f32: fast on the
//! CPU and on NVIDIA GPUs, right on every device.
//!
//! **Activations are NHWC**: (B, H, W, C), batch, height, width, channel, because a matrix product
//! wants a pixel's channels side by side. The book's images are (B, C, H, W): [`nhwc`] brings them
//! in, and [`flatten`] hands them to the linear layers in the book's order. Weights have PyTorch's
//! layouts, convolution (O, I, KH, KW) and linear (O, I), and are repacked inside, so parameters in
//! memory look like the book's and load from PyTorch's files.
//!
//! An [`Expr`] writes operations down and computes them together; each function of this crate is an
//! expression of one. It is one operation of candle's graph, whatever it consists of: on the CPU with
//! kernels of our own for AVX-512, AVX2 and NEON, chosen at run time; on NVIDIA GPUs, with the feature
//! `cuda`, by cuDNN, cuBLAS and kernels of our own. On other devices the operations run one by one as
//! their twins of the same name in [`plain`], composed from candle's, against which they are tested. On
//! the CPU an operation uses as many threads as [`threads::budget`] says, and its bits do not depend on
//! it; on a GPU [`set_precision`] and [`set_deterministic`] say how exact it is.
//!
//! [`backward`] writes a network's gradients where their owner wants them, [`Gradients`] collects them
//! in buckets and hands each out as soon as it is complete, and [`Sgd`] takes the steps.
//!
//! [`with_synchronized_norms`] takes batch norms' statistics over several parts of a minibatch.
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
mod bucket;
mod buffer;
#[cfg(test)]
mod case;
mod chain;
mod compile;
mod conv;
#[cfg(feature = "cuda")]
mod cuda;
mod direct;
mod expr;
mod gemm;
mod grad;
mod gradients;
mod im2col;
mod layer;
mod layout;
mod linear;
mod loss;
mod norm;
mod operation;
mod optim;
mod places;
pub mod plain;
mod pool;
mod precision;
mod record;
mod scoped;
mod simd;
mod storage;
mod sum;
mod sums;
mod synchronized;
mod tape;
mod team;
pub mod threads;
mod vector;
mod winograd;

pub use activation::relu;
pub use bucket::{Bucket, Part, Values};
pub use conv::{conv2d, set_winograd};
pub use expr::Expr;
pub use grad::no_grad;
pub use gradients::{Gradients, backward};
pub use layout::{flatten, nhwc};
pub use linear::{linear, matmul};
pub use loss::cross_entropy;
pub use norm::batch_norm2d;
pub use optim::Sgd;
pub use pool::{avg_pool2d, global_avg_pool2d, max_pool2d};
pub use precision::{Precision, set_deterministic, set_precision};
pub use sum::sum;
pub use synchronized::{Summation, with_synchronized_norms};
