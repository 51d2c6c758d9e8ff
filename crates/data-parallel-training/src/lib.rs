//! Parts of every training loop: minibatches (X, y) in a shuffled order, their losses, random numbers from one seed,
//! files of parameters, and checkpoints.
//!
//! This crate opens no dataset file: a [`DataIter`] gets [`Examples`] in memory, or tensors. It knows no network and no
//! replica.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use data_parallel_training::DataIter;
//!
//! let (x, y) = (Tensor::zeros((5, 2), DType::F32, &Device::Cpu)?, Tensor::zeros(5, DType::U32, &Device::Cpu)?);
//! let data_iter = DataIter::of_tensors(&x, &y, 2, Some(0))?;
//! assert_eq!(data_iter.epoch(1).count(), 3); // 2 + 2 + 1 examples
//! # candle_core::Result::Ok(())
//! ```

extern crate data_parallel_devices as devices;

mod accuracy;
mod batch;
mod checkpoint;
mod checkpoint_error;
mod compare;
pub mod files;
mod folder;
mod iter;
mod loader;
mod loss;
mod random;
mod shares;
mod unread;
mod values;
pub mod weights;

pub use accuracy::accuracy;
pub use batch::{Batch, named, num_examples, num_examples_of, tensors, with_tensors};
pub use checkpoint::{Checkpoint, CheckpointFolder, Found, NEWEST, difference};
pub use checkpoint_error::CheckpointError;
pub use compare::compare;
pub use folder::Folder;
pub use iter::{DataIter, Examples, Minibatches};
pub use loader::Loader;
pub use loss::BatchLoss;
pub use random::{Rng, example_rng, generator, normal, rng, uniform};
pub use shares::shares;
pub use unread::{ReadLoss, Unread};
