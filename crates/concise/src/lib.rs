//! "Concise Implementation for Multiple GPUs": ResNet-18, and its data-parallel training in a few lines.
//!
//! ```no_run
//! use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus, resnet18};
//!
//! let (train_iter, test_iter) = dataset::load_data_fashion_mnist(512)?;
//! let devices = d2l::devices(2)?;
//! let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| resnet18(10, vb))?;
//! let mut trainer = Trainer::new(&net, data_parallel_functional::cross_entropy, Sgd::new(0.2));
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
//! The trainer, the replicas and the layers are those of the library [`data_parallel`]; this crate hands on what the
//! section uses. Here are the network and the program of the section.

extern crate data_parallel_functional as functional;

mod options;
mod processes;
mod resnet;
mod run_checkpoints;
mod start;
mod train;

pub use data_parallel::evaluate_accuracy as evaluate_accuracy_gpus; // the book's name
pub use data_parallel::{
    Algorithm, DataParallel, Initializer, Link, Replication, Sgd, Trainer, layers, schedule,
};
pub use {d2l, dataset};

pub use options::{Options, ProcessGroupBackend};
pub use resnet::{Residual, Resnet18, resnet18};
pub use train::{BOOK, train};
