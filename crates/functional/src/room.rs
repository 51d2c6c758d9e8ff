//! Room on GPUs: memory that is kept here for later steps goes back to the driver where an allocation needs it.

use candle_core::Result;

/// Gives the driver all memory that is kept for later steps and free now, on the GPU that this thread used last. It
/// waits for the GPU. On the CPU it does nothing.
///
/// ```
/// functional::give_back_memory();
/// ```
pub fn give_back_memory() {
    #[cfg(feature = "cuda")]
    crate::cuda::give_back();
}

/// The result of `f`, which is called again if it fails: a GPU may have no memory left because it is kept for later
/// steps. So `f` must not change anything before it fails. Memory that this crate asks for needs no such call.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// let zeros = functional::with_room(|| Tensor::zeros(2, DType::F32, &Device::Cpu))?;
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
