//! The names that a program needs to train its own network: `use data_parallel::prelude::*;`.
//!
//! One `Result` serves networks, losses, data and training loops: candle's, which this library returns as well. The
//! crates `candle_core` and `candle_nn` are here too, so a package needs no other dependency.

pub use candle_core::{self, DType, Device, Module, ModuleT, Tensor, Var};
pub use candle_nn::{self, Init, VarBuilder};
pub use devices::devices;
pub use functional::{
    AdamW, Attention, Network, Optimizer, Sgd, Slice, Value, binary_cross_entropy, candle,
    candle_fn, check_gradients, cross_entropy, masked_cross_entropy, network_fn, squared_error,
};
pub use training::{Batch, DataIter, Examples, Minibatches, example_rng, normal, rng, uniform};

pub use crate::buffer::buffer;
pub use crate::checkpoints::{Checkpoints, Epoch};
pub use crate::data_parallel::DataParallel;
pub use crate::error::Result;
pub use crate::evaluate::{evaluate, evaluate_accuracy};
pub use crate::launch::launch;
pub use crate::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, ConvTranspose2d, Dropout, Embedding, Flatten, Gelu,
    GlobalAvgPool2d, GroupNorm, Gru, LayerNorm, Linear, Lstm, MaxPool2d, Nhwc, Relu, Relu6,
    RmsNorm, Sequential, Sigmoid, Silu, Tanh, Upsample,
};
pub use crate::network_state::{BufferRule, Initializer};
pub use crate::place::World;
pub use crate::predict::predict;
pub use crate::replica::all_examples;
pub use crate::replication::Replication;
pub use crate::schedule;
pub use crate::trainer::Trainer;
