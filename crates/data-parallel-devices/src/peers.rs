//! Direct copies between the GPUs of a process. The driver copies directly if it may, otherwise through the host. Direct
//! copies are tried with patterns before training, because with access to CUDA's memory pools some drivers reportedly
//! lose data.

use candle_core::Device;

/// Lets the GPUs of `devices` copy from each other directly, if the driver allows it. Returns a line that says why some
/// copies go through the host. No copy may be in progress.
///
/// A direct copy needs access to the memory pool of the other GPU. Some drivers lose the data of candle's copies once
/// there is such access (CUDA.jl, pull request 3112). So patterns are copied in both directions and read back. If one
/// has changed, the access is taken back.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(data_parallel_devices::connect(&[Device::Cpu, Device::Cpu]), None); // there is nothing to connect
/// ```
pub fn connect(devices: &[Device]) -> Option<String> {
    platform::connect(devices)
}

#[cfg(not(feature = "cuda"))]
mod platform {
    pub fn connect(_devices: &[candle_core::Device]) -> Option<String> {
        None
    }
}

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod platform {
    use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
    use candle_core::{Device, Error, Result, Tensor, bail};
    use std::ffi::{c_int, c_uint};
    use std::sync::Arc;

    pub fn connect(devices: &[Device]) -> Option<String> {
        let gpus = devices.iter().filter_map(|gpu| Some((gpu, context(gpu)?)));
        let gpus: Vec<_> = gpus.collect();
        let mut said = None;
        for (i, (b, of_b)) in gpus.iter().enumerate() {
            for (a, of_a) in &gpus[..i] {
                let first = of_a.ordinal();
                let second = of_b.ordinal();
                if first != second
                    && let Err(why) = try_out(a, b, [of_a, of_b])
                {
                    said.get_or_insert(format!(
                        "copies between GPU {first} and GPU {second} go through the host: {why}"
                    ));
                }
            }
        }
        said
    }

    fn context(device: &Device) -> Option<Arc<CudaContext>> {
        let gpu = device.as_cuda_device().ok()?;
        Some(gpu.cuda_stream().context().clone())
    }

    fn try_out(a: &Device, b: &Device, of: [&CudaContext; 2]) -> Result<()> {
        if !can_access(of[0], of[1])? || !can_access(of[1], of[0])? {
            bail!("the driver allows no direct copies")
        }
        let arrive = set_access(of, true)
            .and_then(|()| arrives(1., a, b))
            .and_then(|()| arrives(2., b, a));
        if arrive.is_err() {
            set_access(of, false)?;
        }
        arrive
    }

    /// Copies numbers from `first` on, which no memory has from an earlier copy.
    fn arrives(first: f32, from: &Device, to: &Device) -> Result<()> {
        let pattern = Tensor::arange(first, first + 1e6, from)?;
        let copy = crate::to_device(&pattern, to)?;
        if copy.to_vec1::<f32>()? == pattern.to_vec1::<f32>()? {
            Ok(())
        } else {
            bail!("a copy has lost data while direct copies were allowed")
        }
    }

    fn can_access(reader: &CudaContext, owner: &CudaContext) -> Result<bool> {
        let mut can = 0;
        // Safety: both devices exist, and the call writes one number, `can`.
        let asked =
            unsafe { sys::cuDeviceCanAccessPeer(&mut can, reader.cu_device(), owner.cu_device()) };
        asked.result().map_err(Error::wrap)?;
        Ok(can != 0)
    }

    /// `CUmemAccessDesc`, which has another type in each version of cudarc's CUDA.
    #[repr(C)]
    struct Access {
        /// 1: a GPU.
        kind: c_uint,
        gpu: c_int,
        /// 0: none; 3: read and write.
        flags: c_uint,
    }

    /// Lets both GPUs access each other's memory pool, or no longer.
    fn set_access([a, b]: [&CudaContext; 2], allowed: bool) -> Result<()> {
        for (owner, reader) in [(a, b), (b, a)] {
            let access = Access {
                kind: 1,
                gpu: reader.cu_device(),
                flags: if allowed { 3 } else { 0 },
            };
            // Safety: the device exists, and the call reads one description, `access`.
            let set = unsafe {
                result::device::get_default_mem_pool(owner.cu_device()).and_then(|pool| {
                    sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1).result()
                })
            };
            set.map_err(Error::wrap)?;
        }
        Ok(())
    }
}
