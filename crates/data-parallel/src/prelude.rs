//! The names that a program needs to train its own network: `use data_parallel::prelude::*;`.

pub use anyhow::Result;
pub use candle_core::{DType, Device, Tensor, Var};
pub use candle_nn::{Init, VarBuilder};
pub use devices::devices;
pub use functional::{
    AdamW, Network, Optimizer, Sgd, Slice, Value, binary_cross_entropy, candle, cross_entropy,
    squared_error,
};
pub use training::{DataIter, normal, rng, uniform};

pub use crate::data_parallel::DataParallel;
pub use crate::evaluate::{evaluate, evaluate_accuracy_gpus};
pub use crate::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, Dropout, GlobalAvgPool2d, LayerNorm, Linear, MaxPool2d,
    Sequential,
};
pub use crate::schedule;
pub use crate::settings::Replication;
pub use crate::state::Initializer;
pub use crate::trainer::Trainer;
