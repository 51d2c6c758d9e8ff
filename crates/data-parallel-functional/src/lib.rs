//! Differentiable operations for LeNet, ResNet-18 and a small transformer: fast on the CPU, those of images also on
//! NVIDIA GPUs; and the tape that runs them. candle keeps the tensors.
//!
//! A step of training has three parts. A [`Network`] writes a computation down as a [`Value`], up to the loss;
//! shapes are checked here, and nothing is computed. [`Gradients::backward`] makes a tape of it, in which one kernel
//! computes several operations where it can, and runs the tape forward and backward. Each gradient is written into
//! memory of the caller, in buckets that can be handed out as soon as they are complete. An [`Optimizer`] takes the step:
//! [`Sgd`], [`AdamW`], or one of your own. To look at a value, [`Value::eval`] computes it alone.
//!
//! **Activations are NHWC**: (B, H, W, C), batch, height, width, channel, because a matrix product wants a pixel's
//! channels side by side. The book's images are (B, C, H, W): [`Value::nhwc`] brings them in, and
//! [`Value::flatten`] hands them to the linear layers in the book's order. Weights have PyTorch's layouts,
//! convolution (O, I, KH, KW) and linear (O, I). They are repacked inside, so parameters in memory look like the
//! book's and load from PyTorch's files.
//!
//! A network of candle's own operations is one operation here: [`candle()`] wraps it, and candle differentiates it.
//! [`check_gradients`] compares candle's gradients with finite differences; [`GradientChecks`] does it for the networks and
//! losses that a training writes down.
//!
//! On the CPU an operation uses as many threads as [`threads::budget`] says, and its bits do not depend on it. On a
//! GPU [`set_precision`] and [`set_deterministic`] say how exact it is. With [`BackwardOptions::norms`] batch norms take
//! their statistics over several parts of a minibatch.
//!
//! This crate knows no model, no dataset and no replica, and it converts no tensor that does not fit: that is an error,
//! which names both sides. A batch of no examples is fine, except for means and for batch normalization in training.
//!
//! Each floor uses only those below it: `operations` (those that have a file each), `optim` (optimizers and their
//! state) and `copies` (of many tensors); `graph` (values, compiler, tape, gradients, candle's networks); `cpu` and `cuda` (the other kernels);
//! `kernel` (the traits of a backend and of a kernel); `statistics` (of batch norms); `descriptors` (sizes and checks);
//! `memory` (tensors, buckets, free memory, limits) and `settings` (of the whole process).
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use data_parallel_functional::{Gradients, Value, cross_entropy, sgd};
//!
//! // softmax regression: one step on four images of class 3
//! let (x, y) = (Tensor::ones((4, 784), DType::F32, &Device::Cpu)?, Tensor::new(&[3u32; 4], &Device::Cpu)?);
//! let (w, b) = (Var::zeros((10, 784), DType::F32, &Device::Cpu)?, Var::zeros(10, DType::F32, &Device::Cpu)?);
//! let loss = || cross_entropy(&Value::new(&x)?.linear(&w, Some(&b))?, &y)?.sum();
//!
//! let mut gradients = Gradients::new([("w", &w), ("b", &b)], usize::MAX)?;
//! let before = gradients.backward(&loss()?)?.to_scalar::<f32>()?;
//! assert_eq!(before, 4. * 10f32.ln());
//! sgd(&[&w, &b], &gradients.values()?, 0.1, 4)?;
//! assert!(loss()?.eval()?.to_scalar::<f32>()? < before);
//! # Ok::<(), candle_core::Error>(())
//! ```

extern crate data_parallel_devices as devices;

mod copies;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod descriptors;
mod gather;
mod graph;
mod kernel;
mod memory;
mod operations;
mod optim;
mod settings;
mod statistics;

pub use copies::copy_all;
pub use cpu::budget as threads;
pub use cpu::buffer::empty_cache;
pub use cpu::finite::not_finite;
pub use descriptors::norm::BatchNorm;
pub use graph::alone::each_example_alone;
pub use graph::candle::{Candle, candle, candle_fn};
pub use graph::checked::{GradientChecks, is_power_of_four};
pub use graph::difference::check_gradients;
pub use graph::gradient_error::GradientError;
pub use graph::gradients::{BackwardOptions, Gradients, Ready, backward};
pub use graph::network::{Network, NetworkFn, network_fn};
pub use graph::value::Value;
pub use graph::variables::Variables;
pub use memory::allocator::Allocator;
pub use memory::bucket::{Bucket, BucketMemory, Part, bucket_sizes};
pub use memory::limits::check as check_memory;
pub use operations::attention::Attention;
pub use operations::losses::{
    binary_cross_entropy, cross_entropy, masked_cross_entropy, squared_error,
};
pub use optim::{AdamW, Optimizer, OptimizerState, Sgd, Slice, Update, not_finite_sum, sgd};
pub use settings::algorithms::{algorithms, set_algorithms};
pub use settings::precision::{
    Precision, describe_arithmetic, set_deterministic, set_precision, set_winograd,
};
pub use statistics::Summation;

/// True if the kernels of the CPU were compiled with optimization; without, they take many times as long.
pub const OPTIMIZED: bool = !matches!(env!("OPT_LEVEL").as_bytes(), b"0");
