//! What a program that trains its own network uses: `use concise::prelude::*;`.
//!
//! ```
//! use concise::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let (x, y) = (Tensor::rand(-1f32, 1.0, (64, 2), &Device::Cpu)?, Tensor::zeros(64, DType::U32, &Device::Cpu)?);
//! let train_iter = DataIter::of_tensors(&x, &y, 16, Some(0))?;
//! let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
//! let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
//! for batch in train_iter.epoch(1) {
//!     let (x, y) = batch?;
//!     trainer.step(&x, &y)?;
//! }
//! # Ok(())
//! # }
//! ```

pub use anyhow::Result;
pub use candle_core::{DType, Device, Tensor, Var};
pub use candle_nn::{Init, VarBuilder};
pub use d2l::{devices, normal, rng, uniform};
pub use dataset::DataIter;
pub use functional::{
    Network, Slice, Value, binary_cross_entropy, candle, cross_entropy, squared_error,
};

pub use crate::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, Dropout, GlobalAvgPool2d, LayerNorm, Linear, MaxPool2d,
    Sequential,
};
pub use crate::{
    AdamW, DataParallel, Initializer, Optimizer, Replication, Sgd, Trainer, evaluate,
    evaluate_accuracy_gpus, schedule,
};
