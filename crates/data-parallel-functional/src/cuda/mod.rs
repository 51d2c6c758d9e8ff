//! NVIDIA GPUs: kernels by cuDNN, cuBLAS and a few of our own, all in order on the stream of a replica's device.
//!
//! Nothing here waits for the GPU, except batch norms that share their statistics. Memory between kernels is used
//! again without events, because the stream keeps the order. candle's events guard only what goes in and what comes
//! out.

mod alloc;
mod backend;
mod convolution;
mod cudnn;
mod cudnn_descriptors;
mod elementwise;
mod floats;
mod gemm;
mod gradient;
mod im2col;
mod launch;
mod layers;
mod linear;
mod loss;
mod memory;
mod norm;
mod one_channel;
mod optim;
mod stream;
mod tensors;

pub(crate) use elementwise::copy_all;
pub(crate) use gradient::Cuda;
pub(crate) use optim::{Slice, adamw, sgd};
