//! Opens GPUs, and says in one line why one cannot be used. It knows no replica.

use std::fmt;
use std::path::Path;

use candle_core::{DType, Device, Error, Tensor};

use crate::panics::quietly;
use crate::streams::without_events;

/// Why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoGpu {
    /// The program was built without CUDA.
    NotBuilt,
    /// The machine has no GPU, or too few.
    NoDevice,
    /// Anything else, and what to do about it.
    Failed(String),
}

impl fmt::Display for NoGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotBuilt => {
                "this program was built without CUDA; rebuild it with --features cuda"
            }
            Self::NoDevice => "the CUDA driver finds no GPU",
            Self::Failed(why) => why,
        })
    }
}

impl std::error::Error for NoGpu {}

/// Traces of an NVIDIA GPU or its driver in the file system: a device, a folder with an entry for each GPU, and the
/// driver within Windows' Linux.
const TRACES: [&str; 3] = [
    "dev/nvidia0",
    "proc/driver/nvidia/gpus",
    "usr/lib/wsl/lib/libcuda.so.1",
];

/// True if the user has hidden the GPUs from CUDA.
pub(crate) fn are_hidden() -> bool {
    std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|says| says.is_empty() || says == "-1")
}

/// True if this machine has an NVIDIA GPU, as far as the files below `root` tell without CUDA.
pub(crate) fn leaves_traces(root: &Path) -> bool {
    TRACES.iter().any(|trace| {
        let path = root.join(trace);
        match path.read_dir() {
            Ok(mut entries) => entries.next().is_some(),
            Err(_) => path.exists(),
        }
    })
}

/// GPU `i`, with a stream of its own (candle's default stream is ordered within a thread only), and
/// tried: a kernel has run on it.
pub(crate) fn open(i: usize) -> Result<Device, NoGpu> {
    // the text of an error is asked of the driver too, which may lack it
    let opened = quietly(|| try_out(i).map_err(|error| reason(&error)));
    opened.unwrap_or_else(|panicked| Err(reason_of_panic(&panicked.0)))
}

/// Loads all that is ever needed: the driver, cuBLAS, cuDNN and compiled kernels. All kernels of a program are compiled
/// for the same GPUs, so those of candle stand for all.
fn try_out(i: usize) -> candle_core::Result<Device> {
    let device = without_events(Device::new_cuda_with_stream(i)?);
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = &device {
        use candle_core::cuda_backend::cudarc::cudnn::Cudnn;
        Cudnn::new(gpu.cuda_stream()).map_err(Error::wrap)?;
    }
    let ones = Tensor::ones((24, 24), DType::F32, &device)?;
    match ones.matmul(&ones)?.sum_all()?.to_scalar::<f32>()? {
        13824.0 => Ok(device),
        sum => candle_core::bail!("GPU {i} computes wrong results: 13824 ones add up to {sum}"),
    }
}

const NO_DRIVER: &str = "there is no CUDA driver (libcuda cannot be loaded); install the driver";
const OLD_DRIVER: &str =
    "the CUDA driver is older than the CUDA version of this program; update the driver";
const OTHER_ARCHITECTURE: &str = "the kernels of this program were compiled for other GPUs; rebuild it with \
    CUDA_COMPUTE_CAP set to the compute capability of this GPU";

fn reason(error: &Error) -> NoGpu {
    if let Error::NotCompiledWithCudaSupport = error {
        return NoGpu::NotBuilt;
    }
    let text = error.to_string();
    let says = |name: &str| text.contains(name);
    if says("CUDA_ERROR_NO_DEVICE") || says("CUDA_ERROR_INVALID_DEVICE") {
        return NoGpu::NoDevice;
    }
    NoGpu::Failed(if says("CUDA_ERROR_STUB_LIBRARY") {
        NO_DRIVER.to_owned()
    } else if says("UNSUPPORTED_PTX_VERSION") || says("COMPAT_NOT_SUPPORTED_ON_DEVICE") {
        OLD_DRIVER.to_owned()
    } else if says("CUDA_ERROR_NO_BINARY_FOR_GPU") || says("CUDA_ERROR_INVALID_PTX") {
        OTHER_ARCHITECTURE.to_owned()
    } else {
        first_line(&text)
    })
}

/// cudarc panics where a library cannot be loaded, which it names in quotes, and where the driver lacks
/// a function.
fn reason_of_panic(text: &str) -> NoGpu {
    let library = text
        .split('"')
        .nth(1)
        .filter(|_| text.contains("shared library"));
    let symbol = text.split_once("Missing symbol ").map_or("", |(_, s)| s);
    let old = |name: &str| {
        format!("the installed {name} is older than the one this program needs; update {name}")
    };
    NoGpu::Failed(match library {
        Some("cuda") => NO_DRIVER.to_owned(),
        Some(name) => format!(
            "the CUDA library lib{name} cannot be loaded; install it, or put its folder into LD_LIBRARY_PATH"
        ),
        None if symbol.starts_with("cudnn") => old("cuDNN"),
        None if symbol.starts_with("cublas") => old("cuBLAS"),
        None if symbol.starts_with("cu") => OLD_DRIVER.to_owned(),
        None => first_line(text),
    })
}

/// An error may have a backtrace behind it.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_leaves_traces() {
        let plant = |root: &Path, path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let root = tempfile::tempdir().unwrap();
        assert!(!leaves_traces(root.path()));
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia/gpus")).unwrap();
        assert!(!leaves_traces(root.path()), "a driver without a GPU");
        for path in [
            "dev/nvidia0",
            "proc/driver/nvidia/gpus/0000:01:00.0/information",
            "usr/lib/wsl/lib/libcuda.so.1",
        ] {
            let root = tempfile::tempdir().unwrap();
            plant(root.path(), path);
            assert!(leaves_traces(root.path()), "{path}");
        }
    }

    #[test]
    fn cudas_words_become_one_line() {
        let of = |text: &str| reason(&Error::Msg(text.to_owned())).to_string();
        let said = "DriverError(CUDA_ERROR_NO_DEVICE, \"no CUDA-capable device is detected\")";
        assert_eq!(of(said), "the CUDA driver finds no GPU");
        let said = "DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"the provided PTX …\") when \
            loading fill";
        let line =
            "the CUDA driver is older than the CUDA version of this program; update the driver";
        assert_eq!(of(said), line);
        let line = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
        assert_eq!(of(&format!("{line}\n   0: a backtrace")), line);
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let of = |panic: &str| reason_of_panic(panic).to_string();
        let missing = "Unable to dynamically load the \"cuda\" shared library - searched for …";
        let words = "there is no CUDA driver (libcuda cannot be loaded); install the driver";
        assert_eq!(of(missing), words);
        let missing = missing.replace("cuda", "cublas");
        let words = "the CUDA library libcublas cannot be loaded; install it";
        assert!(of(&missing).starts_with(words), "{}", of(&missing));
        let missing = "Missing symbol cuGreenCtxCreate: dlsym failed";
        assert_eq!(of(missing), OLD_DRIVER);
        let missing = "Missing symbol cudnnGetVersion: dlsym failed";
        let words = "the installed cuDNN is older than the one this program needs; update cuDNN";
        assert_eq!(of(missing), words);
        assert_eq!(of("index out of range\nnote: …"), "index out of range");
    }
}
