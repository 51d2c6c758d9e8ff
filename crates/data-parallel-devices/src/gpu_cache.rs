//! GPU memory that a library keeps in a cache for later steps, and that goes back to the driver when an allocation needs it.

use std::sync::OnceLock;

use candle_core::Result;

/// Empties the cache. A static, because the memory of GPUs belongs to the process.
static EMPTY: OnceLock<fn()> = OnceLock::new();

/// Registers the function that [`empty_gpu_cache`] calls. The library that has the cache calls this; the first
/// call counts.
pub fn register_gpu_cache(empty: fn()) {
    EMPTY.get_or_init(|| empty);
}

/// Gives the driver all memory of the cache that is free now, on the GPU that this thread used last. It
/// waits for the GPU. On the CPU it does nothing.
///
/// ```
/// data_parallel_devices::empty_gpu_cache();
/// ```
pub fn empty_gpu_cache() {
    if let Some(empty) = EMPTY.get() {
        empty();
    }
}

/// The result of `f`. If `f` fails, the cache is emptied, and `f` is called again: the GPU may have had
/// no memory left. So `f` must not change anything before it fails.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// let zeros = data_parallel_devices::retry_with_empty_cache(|| Tensor::zeros(2, DType::F32, &Device::Cpu))?;
/// assert_eq!(zeros.dims(), [2]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// Those of the second call.
pub fn retry_with_empty_cache<T>(f: impl Fn() -> Result<T>) -> Result<T> {
    f().or_else(|_| {
        empty_gpu_cache();
        f()
    })
}
