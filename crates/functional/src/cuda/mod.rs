//! Expressions on NVIDIA GPUs: the operations of a tape by cuDNN, cuBLAS and a few kernels of ours, all
//! in order on the stream of a replica's device.
//!
//! Nothing here waits for the GPU but batch norms that share their statistics, and nothing is handed to
//! another stream: candle's events guard what goes in and what comes out. Memory between the operations is used again without them, because the
//! stream keeps the order.

mod convolution;
mod cudnn;
mod gemm;
mod layers;
mod linear;
mod loss;
mod memory;
mod narrow;
mod norm;
mod operation;
mod sgd;
mod single;
mod stream;
mod tape;

pub(crate) use loss::{cross_entropy, sum};
pub(crate) use narrow::narrowed;
pub(crate) use operation::Grad;
pub(crate) use sgd::step;
pub(crate) use stream::Stream;
pub(crate) use tape::with_memory_of;

use crate::layer::{Backend, Layer};

/// Where a tape's operations run on a GPU.
pub(crate) struct Cuda;

impl Backend for Cuda {
    type Operation = dyn operation::Operation;

    fn operation(layer: Layer) -> Option<Box<Self::Operation>> {
        Some(match layer {
            Layer::Transpose(layer) => Box::new(layer),
            Layer::Relu(layer) => Box::new(layer),
            Layer::Sum(layer) => Box::new(layer),
            Layer::Average(layer) => Box::new(layer),
            Layer::Maximum(layer) => Box::new(layer),
            Layer::GlobalAverage(layer) => Box::new(layer),
            Layer::Linear(layer) => Box::new(layer),
            Layer::Norm(layer) => Box::new(layer),
            Layer::Convolution(layer) => Box::new(layer),
        })
    }
}
