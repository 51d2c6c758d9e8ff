//! The book's saved helpers, under the book's names, and what both programs share: their
//! options, and the record of a run.
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
//! [`Timeline`] is ours: which thread does what in a step.
//!
//! The crate knows no network: LeNet is in `scratch`, ResNet-18 in `concise`.

mod accumulator;
mod animator;
mod bar;
mod batch_loss;
mod checkpoint;
mod command_line;
mod devices;
mod display;
mod faults;
mod gpu;
mod interrupt;
mod loss_curve;
mod metrics;
mod options;
mod out_of_memory;
mod param;
mod picture;
mod process;
mod program;
mod random;
mod record;
mod run;
mod show_images;
mod table;
mod timeline;
mod timer;
mod trace;
mod trained;
pub mod weights;
mod whole;

pub use accumulator::Accumulator;
pub use animator::Animator;
pub use batch_loss::BatchLoss;
pub use devices::{
    DeviceKind, barrier, cores, cores_each, device_name, device_names, devices, devices_of_kind,
    num_examples, share_cores, synchronize, to_device, try_all_gpus, try_gpu, view_to_device,
};
pub use display::display_svg;
pub use faults::{Panicked, catch_panic, on_devices, on_each, on_replica};
pub use gpu::memory as gpu_memory;
pub use interrupt::{interrupt, interrupted, wants_to_end};
pub use metrics::{accuracy, evaluate_accuracy_gpu};
pub use options::{Book, Options, Precision};
pub use param::{Param, backward, sgd};
pub use process::{Process, say};
pub use program::{BadInput, program};
pub use random::{Rng, normal, rng, uniform};
pub use run::{Run, Summary};
pub use show_images::show_images;
pub use timeline::{Span, Timeline};
pub use timer::Timer;
pub use trained::{Trained, compare};
