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

mod cores;
mod data_parallel;
mod evaluate;
pub mod layers;
mod memory;
mod norms;
mod options;
mod processes;
mod reducer;
mod replica;
mod replication;
mod resnet;
mod state;
mod train;
mod trained;
mod trainer;

pub use collective::{Algorithm, cost::Link};
pub use data_parallel::DataParallel;
pub use evaluate::evaluate_accuracy_gpus;
pub use functional::Sgd;
pub use options::Options;
pub use processes::{Backend, Processes};
pub use replication::{ReduceOn, Replication, Split, split_by_weights};
pub use resnet::{Residual, Resnet18, resnet18};
pub use state::Initializer;
pub use train::{BOOK, train};
pub use trainer::{Loss, Step, Trainer};
