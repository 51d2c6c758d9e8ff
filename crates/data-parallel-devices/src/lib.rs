//! The devices on which replicas live: which there are, each one's share of the cores, copies between devices in order
//! with their other work, the memory of tensors, and the names of devices in errors.
//!
//! The rule for k replicas: with k GPUs or more, each has its own. With fewer, they share the GPUs in turn. Without a
//! GPU they are k replicas on the CPU, each with its share of the cores. The same code trains all of them.
//!
//! This crate uses candle and no other crate of the project. It knows no network, no gradient and no sum.
//!
//! ```
//! let devices = data_parallel_devices::devices(2)?; // [cuda(0), cuda(1)], [cuda(0), cuda(0)] or [cpu(0), cpu(1)]
//! assert_eq!(devices.len(), 2);
//! # candle_core::Result::Ok(())
//! ```

mod copies;
mod cores;
mod errors;
mod find;
mod gpu;
mod gpu_cache;
mod instructions;
mod names;
mod panics;
mod peers;
mod process;
mod storage;
mod streams;
pub mod threads;

pub use copies::{barrier, send_view, synchronize, to_device, view_to_device};
pub use cores::{GivenCores, cores, cores_each, given_cores, limit_cores};
pub use errors::{Context, find, io_kind, message, without_backtrace, wrap};
pub use find::{DeviceKind, devices, devices_of_kind, find_devices, try_all_gpus, try_gpu};
pub use gpu_cache::{empty_gpu_cache, register_gpu_cache, retry_with_empty_cache};
pub use instructions::{
    InstructionSet, MAX_CPU_ISA, check_max_cpu_isa, dispatch, instruction_set, vectorized,
};
pub use names::{device_name, device_names, on_devices, on_replica};
pub use panics::{Panicked, catch_panic, lock, or_panic, quietly, with_local};
pub use peers::connect;
pub use process::{Launched, Process, launched};
pub use storage::{StorageMut, with_storage_mut};
pub use streams::{WorkSoFar, follow, without_events};
