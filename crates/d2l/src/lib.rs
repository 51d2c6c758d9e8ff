//! The book's saved helpers, under the book's names.
//!
//! | of the book (`d2l.…`) | here |
//! |---|---|
//! | `try_gpu`, `try_all_gpus` | [`try_gpu`], [`try_all_gpus`], [`devices()`] |
//! | `Timer`, `Accumulator`, `Animator` | [`Timer`], [`Accumulator`], [`Animator`] |
//! | `show_images` | [`show_images`] |
//! | `accuracy`, `evaluate_accuracy_gpu` | [`accuracy`], [`evaluate_accuracy_gpu`] |
//! | `p.requires_grad_()`, `p.grad`, `l.backward()` | [`Param`], [`backward`] |
//! | `sgd` | [`sgd`] |
//!
//! Not of the book: [`on_each`] runs replicas on all devices at once. Devices and random numbers come from the crates
//! `devices` and `training`.
//!
//! The crate knows no network: LeNet is in `scratch`, ResNet-18 in `concise`. Options, records and checkpoints of a
//! run are in `run`.

extern crate data_parallel_devices as devices;
extern crate data_parallel_functional as functional;
extern crate data_parallel_training as training;

mod accumulator;
mod animator;
mod metrics;
mod param;
mod replicas;
mod show_images;
mod svg;
mod timer;

pub use accumulator::Accumulator;
pub use animator::Animator;
pub use devices::{
    barrier, cores, device_names, devices, synchronize, to_device, try_all_gpus, try_gpu,
    view_to_device,
};
pub use metrics::evaluate_accuracy_gpu;
pub use param::{Param, backward, sgd};
pub use replicas::{on_each, share_cores, try_share_cores};
pub use show_images::show_images;
pub use svg::{DARK_MODE, display_svg, escape};
pub use timer::Timer;
pub use training::{Rng, accuracy, normal, num_examples, rng, uniform};
