//! Data-parallel training of any network on several devices: a replica of the network on each, the gradients summed
//! while they are computed, and the same step on all.
//!
//! ```
//! use data_parallel::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let (x, y) = (Tensor::rand(-1f32, 1.0, (64, 2), &Device::Cpu)?, Tensor::zeros(64, DType::U32, &Device::Cpu)?);
//! let train_iter = DataIter::of_tensors(&x, &y, 16, Some(0))?;
//! // two GPUs, or two replicas on the CPU
//! let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
//! let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
//! for batch in train_iter.epoch(1) {
//!     let (x, y) = batch?;
//!     trainer.step(&x, &y)?; // split, forward, backward, all-reduce, update
//! }
//! println!("{}", evaluate_accuracy(&net, &train_iter)?);
//! # Ok(())
//! # }
//! ```
//!
//! | you want to | use |
//! |---|---|
//! | train a network on several devices | [`DataParallel::new`], [`Trainer::step`]; [`layers`] or a closure |
//! | train a network that is written in candle | [`candle`](prelude::candle), of several inputs [`candle_fn`](prelude::candle_fn) |
//! | find out whether a gradient is right | [`check_gradients`](prelude::check_gradients); a trainer does it where something is new |
//! | measure an accuracy, or something else | [`evaluate_accuracy`], [`evaluate`] |
//! | look at all outputs, in order | [`predict`] |
//! | write a loss, or an optimizer | [`Trainer::new`], [`Optimizer`] |
//! | train on several inputs or targets, or none | [`Batch`](prelude::Batch), [`Trainer::with`], [`network_fn`](prelude::network_fn) |
//! | take a mean over tokens, with padding | [`Trainer::mean_over`], [`masked_cross_entropy`](prelude::masked_cross_entropy) |
//! | train two parts in turn, as in a GAN | [`Trainer::with`], one trainer for each |
//! | change the learning rate | [`Trainer::schedule`] with one of [`schedule`], [`Trainer::set_lr`] |
//! | freeze a layer, or train it more slowly | [`Trainer::rate`] |
//! | clip gradients, or look at them | [`Trainer::clip_norm`], [`Trainer::gradients`] |
//! | train on minibatches that do not fit into memory | [`Trainer::accumulate`], [`Trainer::backward`] |
//! | save and load parameters | [`DataParallel::save`], [`DataParallel::load`] |
//! | go on with a run later, keep the best, stop early | [`Checkpoints`] |
//! | end a run in order | [`Trainer::stop_when`] |
//! | keep a state yourself | [`Trainer::state_dict`], [`Trainer::load_state_dict`] |
//! | share the statistics of batch norm | [`Replication::sync_bn`] |
//! | choose how gradients are summed | [`Replication::allreduce`], [`Algorithm`] |
//! | train in several processes | [`launch`], [`World`], [`DataParallel::part`] |
//! | act on an error | [`Error`] |
//!
//! The chapter `notebooks-md/seven-diffs.md` builds the parts of this crate and of `collective` by hand, one after the
//! other: flat buckets (diff 1), reduce-scatter and all-gather (2), overlap (3), batch norm over all replicas (4),
//! several processes (5); and what this crate has not: sharded optimizers, gradients and parameters (6, 7).
//!
//! A network is any [`Network`](prelude::Network) that is built from a candle `VarBuilder`. [`DataParallel`] puts a replica of
//! it on each device, each on a thread of its own.
//!
//! This crate prints nothing, except where the check of candle's gradients takes over five seconds, and reads no option of
//! a program. It knows no dataset.

mod agreement;
mod batch_tensors;
mod buffer;
mod checkpoints;
mod data_parallel;
mod error;
mod evaluate;
mod finite;
mod launch;
pub mod layers;
mod network_state;
mod place;
mod predict;
pub mod prelude;
mod processes;
mod replica;
mod replication;
mod report;
mod resumed;
pub mod schedule;
mod statistics;
mod trainer;
mod update_rule;
mod watchers;

// a package needs no other name
pub use {candle_core, candle_nn};
// the crates below, for programs of this repository: what no page names may change
#[doc(hidden)]
pub extern crate data_parallel_collective as collective;
#[doc(hidden)]
pub extern crate data_parallel_devices as devices;
#[doc(hidden)]
pub extern crate data_parallel_functional as functional;
#[doc(hidden)]
pub extern crate data_parallel_training as training;

pub use buffer::buffer;
pub use checkpoints::{Checkpoints, Epoch};
pub use collective::{Algorithm, cost::Link};
pub use data_parallel::DataParallel;
pub use error::{Error, Result};
pub use evaluate::{evaluate, evaluate_accuracy};
pub use functional::{AdamW, Optimizer, Sgd};
pub use launch::launch;
pub use network_state::{BufferRule, Initializer};
pub use place::{Place, World};
pub use predict::predict;
pub use processes::Processes;
pub use replica::all_examples;
pub use replication::{ReduceOn, Replication};
pub use trainer::{Count, Step, Trainer};
