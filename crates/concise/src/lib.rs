//! "Concise Implementation for Multiple GPUs": ResNet-18, and data-parallel training of any
//! network in a few lines.
//!
//! ```no_run
//! use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus, resnet18};
//!
//! let (train_iter, test_iter) = dataset::load_data_fashion_mnist(512)?;
//! let devices = d2l::devices(2)?;
//! let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| resnet18(10, vb))?;
//! let mut trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.2));
//! for epoch in 1..=10 {
//!     for batch in train_iter.epoch(epoch) {
//!         let (x, y) = batch?;
//!         trainer.step(&x, &y)?;
//!     }
//!     println!("{}", evaluate_accuracy_gpus(&net, &test_iter)?);
//! }
//! # anyhow::Ok(())
//! ```
//!
//! A network is any [`functional::Network`] that is built from a candle `VarBuilder`, such as a closure or a
//! layer of [`layers`]. [`DataParallel`] puts a replica of it on each device, each on a thread of its own.

mod evaluate;
pub mod layers;
mod options;
pub mod prelude;
mod replication;
mod resnet;
pub mod schedule;
mod start;
mod train;

// a package needs no other name
pub use {candle_core, candle_nn, collective, d2l, dataset, functional};

pub use collective::{Algorithm, cost::Link};
pub use evaluate::{Minibatches, evaluate, evaluate_accuracy_gpus};
pub use functional::{AdamW, Optimizer, Sgd};
pub use options::Options;
pub use replication::{
    Backend, DataParallel, Initializer, Processes, ReduceOn, Replication, Split, Step, Trainer,
    split_by_weights,
};
pub use resnet::{Residual, Resnet18, resnet18};
pub use train::{BOOK, train};
