//! What a failure says of the devices: which ones the run had, and after an out-of-memory error of a GPU its free
//! memory and what the user can do. So it is where the CPU's memory or its threads do not suffice.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::Device;
use d2l::{Panicked, device_name, device_names};
use functional::Allocator;

use crate::gpu::{Gpu, gpu};
use crate::options::{Book, Options};

/// What is known of the run when it fails.
struct Known {
    /// The names of all devices.
    names: String,
    gpus: Vec<Device>,
    /// A minibatch was asked for.
    trains: bool,
}

/// A static, because a panic leaves nothing else of the run.
static KNOWN: Mutex<Known> = Mutex::new(Known {
    names: String::new(),
    gpus: Vec::new(),
    trains: false,
});

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run begins, on these devices.
pub(crate) fn run_on(devices: &[Device]) {
    let gpus = devices.iter().filter(|device| !device.is_cpu());
    *known() = Known {
        names: device_names(devices),
        gpus: gpus.cloned().collect(),
        trains: false,
    };
}

/// From now on it is the minibatches that need more.
pub(crate) fn trains() {
    known().trains = true;
}

/// A panic of the training, with the names of the devices.
pub(crate) fn with_devices(panicked: Panicked) -> anyhow::Error {
    match &*known().names {
        "" => panicked.into(),
        names => anyhow::Error::new(panicked).context(format!("on {names}")),
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
pub(crate) fn hint(error: &str, options: &Options, book: &Book) -> Option<String> {
    if error.contains(REFUSED) {
        return Some(SMALLER.to_owned());
    }
    if error.contains("a thread could not be started") {
        return Some("; choose fewer --gpus or fewer --threads".to_owned());
    }
    if !is_out_of_memory(error) {
        return None;
    }
    let Known { gpus, trains, .. } = &*known();
    let left: BTreeSet<String> = gpus.iter().enumerate().filter_map(left).collect();
    let minibatch = options.batch_size.or(options.gpus.map(book.batch_size));
    Some(words(error, &left, trains.then_some(minibatch)))
}

/// What errors of ours say, which name the GPU.
const OURS: &str = "out of memory on cuda";

fn is_out_of_memory(error: &str) -> bool {
    error.contains(OURS) || error.contains("CUDA_ERROR_OUT_OF_MEMORY")
}

/// What is left on the GPU of replica `i`; candle's errors do not say on which one it happened.
fn left((i, device): (usize, &Device)) -> Option<String> {
    let Gpu { free, total, .. } = gpu(device)?;
    let (name, free, total) = (device_name(i, device), free >> 20, total >> 20);
    Some(format!("{name} has {free} of {total} MiB free"))
}

/// The same from what is `left` on each GPU, and, once minibatches are trained, how many examples one has if that
/// is known.
fn words(error: &str, left: &BTreeSet<String>, minibatch: Option<Option<usize>>) -> String {
    let mut hint = String::new();
    if !error.contains(OURS) {
        left.iter().for_each(|left| hint += &format!("; {left}"));
    }
    match minibatch {
        _ if left.is_empty() => hint + "; end other processes on the GPU (nvidia-smi lists them)",
        None => {
            hint + "; the network and the images alone do not fit: choose a smaller --limit-train, \
                    or end other processes on the GPU (nvidia-smi lists them)"
        }
        Some(Some(n)) => {
            format!("{hint}; the minibatch has {n} examples, choose a smaller --batch-size")
        }
        Some(None) => hint + "; choose a smaller --batch-size",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_has_a_way_out_and_nothing_else_has() {
        let ours = "replica cuda(0): out of memory on cuda(0): 49 MiB more were needed";
        let candles = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        let left = BTreeSet::from(["cuda(0) has 2 of 90 MiB free".to_owned()]);
        let said = |error, minibatch| words(error, &left, minibatch);
        assert_eq!(
            said(ours, Some(Some(512))),
            "; the minibatch has 512 examples, choose a smaller --batch-size"
        );
        let before = said(candles, None);
        assert!(
            before.starts_with("; cuda(0) has 2 of 90 MiB free")
                && before.contains("--limit-train"),
            "{before}"
        );
        assert!(!before.contains("--batch-size"), "{before}");
        assert!(said(candles, Some(None)).contains("--batch-size"));
        assert!(is_out_of_memory(ours) && is_out_of_memory(candles));
        assert!(!is_out_of_memory("no such file"));
        // while the GPU was opened
        let opening = words(candles, &BTreeSet::new(), None);
        assert_eq!(
            opening,
            "; end other processes on the GPU (nvidia-smi lists them)"
        );
    }
}
