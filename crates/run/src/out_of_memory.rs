//! What a failure says of the devices: which ones the run had, and after an out-of-memory error of a GPU its free
//! memory and what the user can do. So it is where the CPU's memory or its threads do not suffice.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::Device;
use d2l::{Panicked, device_name, device_names};
use functional::Allocator;

use crate::gpu::{Gpu, gpu};

/// The devices of the run. A static, because a panic leaves nothing else of it.
static DEVICES: Mutex<Vec<Device>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Device>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run begins, on these devices.
pub(crate) fn run_on(all: &[Device]) {
    *devices() = all.to_vec();
}

/// A panic of the training, with the names of the devices.
pub(crate) fn with_devices(panicked: Panicked) -> anyhow::Error {
    match &devices()[..] {
        [] => panicked.into(),
        devices => anyhow::Error::new(panicked).context(format!("on {}", device_names(devices))),
    }
}

/// The memory of a program. Where the system has no more, the program ends in a line on stderr and with status 1.
///
/// ```
/// #[global_allocator]
/// static MEMORY: functional::Allocator = run::ALLOCATOR;
/// ```
pub const ALLOCATOR: Allocator = Allocator(end);

fn end(bytes: usize) -> ! {
    // it takes no memory to write this: stderr has no buffer
    let line = format_args!("error: out of memory: {bytes} bytes more were needed{SMALLER}\n");
    let _ = std::io::stderr().write_fmt(line);
    std::process::exit(1)
}

const SMALLER: &str = "; choose a smaller --batch-size or fewer --gpus";

/// What an error says if the CPU's memory does not suffice, before it is taken.
pub(crate) const REFUSED: &str = "out of memory on the CPU";

/// What follows an error that says that memory or threads do not suffice; nothing after others.
pub(crate) fn hint(error: &str) -> String {
    const THREADS: &str = "; choose fewer --gpus or fewer --threads";
    const GPU: &str = "; choose a smaller --batch-size or --limit-train, or end other processes \
                       on the GPU (nvidia-smi lists them)";
    if error.contains(REFUSED) {
        return SMALLER.to_owned();
    }
    if error.contains("a thread could not be started") {
        return THREADS.to_owned();
    }
    // ours names the GPU, candle's does not
    if error.contains("out of memory on cuda") {
        return GPU.to_owned();
    }
    match error.contains("CUDA_ERROR_OUT_OF_MEMORY") {
        true => memory_left() + GPU,
        false => String::new(),
    }
}

/// What is left on each GPU of the run.
fn memory_left() -> String {
    let left = |(i, device): (usize, &Device)| {
        let Gpu { free, total, .. } = gpu(device)?;
        let (name, free, total) = (device_name(i, device), free >> 20, total >> 20);
        Some(format!("; {name} has {free} of {total} MiB free"))
    };
    let left: BTreeSet<String> = devices().iter().enumerate().filter_map(left).collect();
    left.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_has_a_way_out_and_nothing_else_has() {
        for error in [
            "replica cuda(0): out of memory on cuda(0): 49 MiB more were needed",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "out of memory on the CPU: a step needs at least 971 MiB",
        ] {
            assert!(hint(error).contains("smaller --batch-size"), "{error}");
        }
        assert_eq!(hint("no such file"), "");
    }
}
