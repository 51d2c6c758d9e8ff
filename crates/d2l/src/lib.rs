//! The book's saved helpers, under the book's names.
//!
//! | of the book (`d2l.…`) | here |
//! |---|---|
//! | `try_gpu`, `try_all_gpus` | [`try_gpu`], [`try_all_gpus`], [`devices`] |
//! | `Timer`, `Accumulator`, `Animator` | [`Timer`], [`Accumulator`], [`Animator`] |
//! | `show_images` | [`show_images`] |
//! | `accuracy`, `evaluate_accuracy_gpu` | [`accuracy`], [`evaluate_accuracy_gpu`] |
//! | `p.requires_grad_()`, `p.grad`, `l.backward()` | [`Param`], [`backward`] |
//! | `sgd` | [`sgd`] |
//!
//! Devices, replicas on them ([`on_each`]), and the names of both in errors are ours.
//!
//! The crate knows no network: LeNet is in `scratch`, ResNet-18 in `concise`. Options, records and checkpoints of a
//! run are in `run`.

mod accumulator;
mod animator;
mod cores;
mod devices;
mod faults;
mod gpu;
mod metrics;
mod param;
mod random;
mod show_images;
mod svg;
mod timer;

pub use accumulator::Accumulator;
pub use animator::Animator;
pub use cores::{cores, cores_each, share_cores, try_share_cores};
pub use devices::{
    DeviceKind, barrier, devices, devices_of_kind, find_devices, num_examples, on_each,
    synchronize, to_device, try_all_gpus, try_gpu, view_to_device,
};
pub use faults::{
    Panicked, catch_panic, device_name, device_names, on_devices, on_replica, quietly,
};
pub use metrics::{accuracy, evaluate_accuracy_gpu};
pub use param::{Param, backward, sgd};
pub use random::{Rng, normal, rng, uniform};
pub use show_images::show_images;
pub use svg::{display_svg, escape};
pub use timer::Timer;
