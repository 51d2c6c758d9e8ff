//! The memory of a GPU.

use candle_core::Device;

/// The memory of a GPU in bytes.
pub struct Gpu {
    /// The free memory.
    pub free: usize,
    /// All its memory.
    pub total: usize,
}

/// The memory of `device`; `None` for the CPU.
#[cfg(feature = "cuda")]
pub fn gpu(device: &Device) -> Option<Gpu> {
    let stream = device.as_cuda_device().ok()?.cuda_stream();
    let (free, total) = stream.context().mem_get_info().ok()?;
    Some(Gpu { free, total })
}

/// The memory of `device`; `None` for the CPU.
#[cfg(not(feature = "cuda"))]
pub fn gpu(_device: &Device) -> Option<Gpu> {
    None
}
