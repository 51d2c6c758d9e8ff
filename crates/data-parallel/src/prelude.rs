//! The names that a program needs to train its own network: `use data_parallel::prelude::*;`.
//!
//! `Result` is candle's: networks and losses return it. A function that trains returns `anyhow::Result`. The crates
//! `anyhow`, `candle_core` and `candle_nn` are here too, so a package needs no other dependency.

pub use anyhow;
pub use candle_core::{self, DType, Device, Module, ModuleT, Result, Tensor, Var};
pub use candle_nn::{self, Init, VarBuilder};
pub use devices::devices;
pub use functional::{
    AdamW, Network, Optimizer, Sgd, Slice, Value, binary_cross_entropy, candle, candle_fn,
    check_gradients, cross_entropy, squared_error,
};
pub use training::{DataIter, normal, rng, uniform};

pub use crate::data_parallel::DataParallel;
pub use crate::evaluate::{evaluate, evaluate_accuracy_gpus};
pub use crate::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, Dropout, Embedding, Flatten, Gelu, GlobalAvgPool2d, LayerNorm,
    Linear, MaxPool2d, Nhwc, Relu, Sequential,
};
pub use crate::schedule;
pub use crate::settings::Replication;
pub use crate::state::Initializer;
pub use crate::trainer::Trainer;
