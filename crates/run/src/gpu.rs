//! Facts about a GPU, from the driver.

use candle_core::Device;

/// A GPU's name and its memory in bytes.
pub struct Gpu {
    /// Its name, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// The free memory.
    pub free: usize,
    /// All its memory.
    pub total: usize,
}

/// Facts about the GPU `device`, from the driver; `None` for the CPU.
#[cfg(feature = "cuda")]
pub fn gpu(device: &Device) -> Option<Gpu> {
    let stream = device.as_cuda_device().ok()?.cuda_stream();
    let gpu = stream.context();
    let (free, total) = gpu.mem_get_info().ok()?;
    let name = gpu.name().ok()?;
    Some(Gpu { name, free, total })
}

/// Facts about the GPU `device`, from the driver; `None` for the CPU.
#[cfg(not(feature = "cuda"))]
pub fn gpu(_device: &Device) -> Option<Gpu> {
    None
}
