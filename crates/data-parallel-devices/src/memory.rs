//! Memory of GPUs that a library keeps for later steps goes back to the driver when an allocation needs it.

use std::sync::OnceLock;

use candle_core::Result;

/// Gives kept memory back. A static, because the memory of GPUs belongs to the process.
static GIVE_BACK: OnceLock<fn()> = OnceLock::new();

/// Registers the function that [`give_back_memory`] calls. The library that keeps memory of GPUs calls this; the first
/// call counts.
pub fn kept_memory(give_back: fn()) {
    GIVE_BACK.get_or_init(|| give_back);
}

/// Gives the driver all memory that is kept for later steps and free now, on the GPU that this thread used last. It
/// waits for the GPU. On the CPU it does nothing.
///
/// ```
/// devices::give_back_memory();
/// ```
pub fn give_back_memory() {
    if let Some(give_back) = GIVE_BACK.get() {
        give_back();
    }
}

/// The result of `f`. If `f` fails, kept memory goes back to the driver, and `f` is called again: the GPU may have had
/// no memory left. So `f` must not change anything before it fails.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// let zeros = devices::with_room(|| Tensor::zeros(2, DType::F32, &Device::Cpu))?;
/// assert_eq!(zeros.dims(), [2]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// Those of the second call.
pub fn with_room<T>(f: impl Fn() -> Result<T>) -> Result<T> {
    f().or_else(|_| {
        give_back_memory();
        f()
    })
}
