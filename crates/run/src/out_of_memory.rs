//! Notes on a failure besides its cause: the devices of the run after a panic, and what to do if memory or threads do
//! not suffice.
//!
//! **Limits end in a line.** A step that needs more CPU memory than is left is refused before it begins, with status
//! 2: `functional` compares. An allocation that fails all the same is status 1 ([`ALLOCATOR`]). So is a thread that
//! cannot be started.

use std::io::Write;
use std::sync::Mutex;

use candle_core::Device;
use devices::{Panicked, device_names, lock};
use functional::Allocator;

/// The names of the run's devices. A static, because a panic leaves nothing else of a run.
static DEVICES: Mutex<String> = Mutex::new(String::new());

/// A run begins, on these devices.
pub(crate) fn run_on(all: &[Device]) {
    *lock(&DEVICES) = device_names(all);
}

/// A panic of the training, with the names of the devices.
pub(crate) fn with_devices(panicked: Panicked) -> anyhow::Error {
    match lock(&DEVICES).as_str() {
        "" => panicked.into(),
        names => anyhow::Error::new(panicked).context(format!("on {names}")),
    }
}

/// The memory of a program. Where the system has no more, the program ends in a line on stderr and with status 1.
///
/// ```
/// #[global_allocator]
/// static MEMORY: data_parallel_functional::Allocator = run::ALLOCATOR;
/// ```
pub const ALLOCATOR: Allocator = Allocator(end);

fn end(bytes: usize) -> ! {
    // it takes no memory to write this: stderr has no buffer
    let line = format_args!("error: out of memory: {bytes} bytes more were needed{SMALLER}\n");
    let _ = std::io::stderr().write_fmt(line);
    std::process::exit(1)
}

const SMALLER: &str = "; choose a smaller --batch-size or fewer --gpus";

/// Text of an error if the CPU's memory does not suffice, before it is taken.
pub(crate) const REFUSED: &str = "out of memory on the CPU";

/// Text after an error that says that memory or threads do not suffice; nothing after others.
pub(crate) fn hint(error: &str) -> &'static str {
    // ours names the GPU, candle's does not
    let on_gpu = ["out of memory on cuda", "CUDA_ERROR_OUT_OF_MEMORY"];
    match error {
        error if error.contains(REFUSED) => SMALLER,
        error if error.contains("a thread could not be started") => {
            "; choose fewer --gpus or fewer --threads"
        }
        error if on_gpu.iter().any(|words| error.contains(words)) => {
            "; choose a smaller --batch-size or --limit-train, or end other processes on the GPU \
             (nvidia-smi lists them)"
        }
        _ => "",
    }
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
