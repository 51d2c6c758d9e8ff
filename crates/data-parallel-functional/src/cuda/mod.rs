//! NVIDIA GPUs: kernels by cuDNN, cuBLAS and a few of our own, all in order on the stream of a replica's device. Each
//! replica has its own stream, library handles and memory pool.
//!
//! Nothing here waits for the GPU, except batch norms that share their statistics. Memory is used again without events,
//! because the stream keeps the order. What goes to another stream is ordered there (`devices::streams`).
//!
//! cuDNN computes convolutions in NHWC, cuBLAS matrix products, and own kernels the rest. Small convolutions are not
//! cuDNN's: those of few channels that are no multiples of 8, such as LeNet's second, are products of cuBLAS
//! (`im2col`); those of one channel have kernels of our own (`one_channel`). `convolution` says when weights are
//! repacked, `cudnn` how algorithms are chosen, `alloc` what happens where memory runs out, and `backend` what is
//! bf16.

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
