//! What the driver says of a GPU.

use candle_core::Device;

/// A GPU's name and its memory in bytes.
pub struct Gpu {
    /// As `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The free memory.
    pub free: usize,
    /// All its memory.
    pub total: usize,
}

/// What the driver says of the GPU `device`; `None` for the CPU.
#[cfg(feature = "cuda")]
pub fn gpu(device: &Device) -> Option<Gpu> {
    let stream = device.as_cuda_device().ok()?.cuda_stream();
    let gpu = stream.context();
    let (free, total) = gpu.mem_get_info().ok()?;
    let name = gpu.name().ok()?;
    Some(Gpu { name, free, total })
}

/// What the driver says of the GPU `device`; `None` for the CPU.
#[cfg(not(feature = "cuda"))]
pub fn gpu(_device: &Device) -> Option<Gpu> {
    None
}
