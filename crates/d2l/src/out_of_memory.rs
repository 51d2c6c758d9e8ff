//! What a user is told who has too little memory on a GPU: on which, how much is left there, and the way out.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::Device;

use crate::{Book, Options, device_name, gpu};

/// What is known of the run when it fails.
struct Known {
    gpus: Vec<Device>,
    /// A minibatch was asked for.
    trains: bool,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
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
        gpus: gpus.cloned().collect(),
        trains: false,
    };
}

/// From now on it is the minibatches that need more.
pub(crate) fn trains() {
    known().trains = true;
}

/// What follows an error that says that a GPU is out of memory; nothing after others.
pub(crate) fn hint(error: &str, options: &Options, book: &Book) -> Option<String> {
    let ours = error.contains("out of memory on cuda");
    if !ours && !error.contains("CUDA_ERROR_OUT_OF_MEMORY") {
        return None;
    }
    let Known { gpus, trains } = &*known();
    let mut hint = String::new();
    if !ours {
        let left: BTreeSet<String> = gpus.iter().enumerate().filter_map(left).collect();
        left.iter().for_each(|left| hint += &format!("; {left}"));
    }
    let minibatch = options.batch_size.or(options.gpus.map(book.batch_size));
    Some(match (trains, minibatch) {
        _ if gpus.is_empty() => hint + "; nvidia-smi says who else uses the GPU",
        (false, _) => {
            hint + "; the network and the images alone do not fit: --limit-train takes fewer images, \
                    nvidia-smi says who else uses the GPU"
        }
        (true, Some(n)) => {
            format!("{hint}; a minibatch has {n} examples, --batch-size makes it smaller")
        }
        (true, None) => hint + "; a smaller minibatch may fit, --batch-size makes it smaller",
    })
}

/// What is left on the GPU of replica `i`; candle's errors do not say on which one it happened.
fn left((i, gpu): (usize, &Device)) -> Option<String> {
    let [free, total] = gpu::memory(gpu)?.map(|bytes| bytes >> 20);
    let name = device_name(i, gpu);
    Some(format!("{name} has {total} MiB, {free} of them free now"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_has_a_way_out_and_nothing_else_has() {
        let book = Book {
            program: "demo",
            section: "",
            network: "",
            batch_size: |k| 256 * k,
            lr: |_| 0.1,
        };
        let two = Options {
            gpus: Some(2),
            ..Options::default()
        };
        let ours = "replica cuda(0): out of memory on cuda(0): 49 MiB more were needed";
        let candles = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        run_on(&[Device::Cpu]);
        let before = hint(candles, &two, &book).unwrap();
        assert!(
            before.contains("--limit-train") && !before.contains("--batch-size"),
            "{before}"
        );
        trains();
        assert_eq!(
            hint(ours, &two, &book).unwrap(),
            "; a minibatch has 512 examples, --batch-size makes it smaller"
        );
        let without_gpus = hint(candles, &Options::default(), &book).unwrap();
        assert!(without_gpus.contains("--batch-size"), "{without_gpus}");
        assert_eq!(hint("no such file", &two, &book), None);
    }
}
