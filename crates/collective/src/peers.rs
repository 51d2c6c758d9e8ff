//! Copies between the GPUs of a process: directly if the driver allows it, otherwise through the host.

use candle_core::{Device, Result, Tensor};

/// Lets the GPUs of `devices` copy from each other directly, if the driver allows it. Returns a line that says why some
/// copies go through the host. No copy may be in progress.
///
/// A direct copy needs access to the memory pool of the other GPU. Some drivers lose the data of candle's copies once
/// there is such access (CUDA.jl, pull request 3112). So patterns are copied in both directions and read back. If one
/// has changed, the access is taken back.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(collective::connect(&[Device::Cpu, Device::Cpu]), None); // there is nothing to connect
/// ```
pub fn connect(devices: &[Device]) -> Option<String> {
    platform::connect(devices)
}

/// A copy of a contiguous tensor on `device`, after the work of the tensor's stream so far.
pub(crate) fn copy(data: &Tensor, device: &Device) -> Result<Tensor> {
    platform::copy(data, device)
}

#[cfg(not(feature = "cuda"))]
mod platform {
    use candle_core::{Device, Result, Tensor};

    pub fn connect(_devices: &[Device]) -> Option<String> {
        None
    }

    pub fn copy(data: &Tensor, device: &Device) -> Result<Tensor> {
        data.to_device(device)
    }
}

#[cfg(feature = "cuda")]
#[allow(unsafe_code)]
mod platform {
    use candle_core::cuda_backend::cudarc::driver::{
        CudaContext, DevicePtr, DevicePtrMut, DriverError,
    };
    use candle_core::cuda_backend::cudarc::driver::{result, sys};
    use candle_core::{
        CpuStorage, CudaDevice, CudaStorage, CustomOp1, DType, Device, Error, Layout, Result,
        Shape, Tensor, bail,
    };
    use std::collections::BTreeMap;
    use std::ffi::{c_int, c_uint};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    /// The pairs of GPUs that were tried out, and whether their copies are direct.
    fn tried() -> MutexGuard<'static, BTreeMap<[usize; 2], bool>> {
        static TRIED: Mutex<BTreeMap<[usize; 2], bool>> = Mutex::new(BTreeMap::new());
        TRIED.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pair(a: &CudaDevice, b: &CudaDevice) -> [usize; 2] {
        let mut pair = [a, b].map(|gpu| context(gpu).ordinal());
        pair.sort_unstable();
        pair
    }

    pub fn connect(devices: &[Device]) -> Option<String> {
        let gpus = devices
            .iter()
            .filter_map(|device| device.as_cuda_device().ok());
        let gpus: Vec<&CudaDevice> = gpus.collect();
        let pairs = gpus
            .iter()
            .enumerate()
            .flat_map(|(i, b)| gpus[..i].iter().map(move |a| (a, b)));
        let (mut tried, mut said) = (tried(), None);
        for (a, b) in pairs {
            let pair @ [first, second] = pair(a, b);
            if first == second || tried.contains_key(&pair) {
                continue;
            }
            let works = try_out(a, b);
            tried.insert(pair, works.is_ok());
            if let Err(why) = works {
                said.get_or_insert(format!(
                    "copies between GPU {first} and GPU {second} go through the host: {why}"
                ));
            }
        }
        said
    }

    pub fn copy(data: &Tensor, device: &Device) -> Result<Tensor> {
        match (data.device(), device, data.dtype()) {
            (Device::Cuda(from), Device::Cuda(to), DType::F32)
                if tried().get(&pair(from, to)) == Some(&true) =>
            {
                data.apply_op1_no_bwd(&CopyTo(to))
            }
            _ => data.to_device(device),
        }
    }

    fn try_out(a: &CudaDevice, b: &CudaDevice) -> Result<()> {
        let of = [context(a), context(b)];
        if !can_access(&of[0], &of[1])? || !can_access(&of[1], &of[0])? {
            bail!("the driver allows no direct copies")
        }
        let arrive = set_access(&of, true).and_then(|()| {
            let [on_a, on_b] = [a, b].map(|gpu| Device::Cuda(gpu.clone()));
            arrives(1., &on_a, |pattern| pattern.apply_op1_no_bwd(&CopyTo(b)))?;
            arrives(2., &on_b, |pattern| pattern.apply_op1_no_bwd(&CopyTo(a)))?;
            arrives(3., &on_a, |pattern| pattern.to_device(&on_b))?;
            arrives(4., &on_b, |pattern| pattern.to_device(&on_a))
        });
        if arrive.is_err() {
            set_access(&of, false)?;
        }
        arrive
    }

    /// Copies numbers from `first` on, which no memory has from an earlier copy.
    fn arrives(first: f32, on: &Device, copy: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        let pattern = Tensor::arange(first, first + 1e6, on)?;
        match copy(&pattern)?.to_vec1::<f32>()? == pattern.to_vec1::<f32>()? {
            true => Ok(()),
            false => bail!("a copy has lost data while direct copies were allowed"),
        }
    }

    fn context(gpu: &CudaDevice) -> Arc<CudaContext> {
        gpu.cuda_stream().context().clone()
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
    fn set_access([a, b]: &[Arc<CudaContext>; 2], allowed: bool) -> Result<()> {
        for (owner, reader) in [(a, b), (b, a)] {
            let access = Access {
                kind: 1,
                gpu: reader.cu_device(),
                flags: if allowed { 3 } else { 0 },
            };
            let set = || -> std::result::Result<(), DriverError> {
                // Safety: the device exists, and the call reads one description, `access`.
                unsafe {
                    let pool = result::device::get_default_mem_pool(owner.cu_device())?;
                    sys::cuMemPoolSetAccess(pool, (&raw const access).cast(), 1).result()
                }
            };
            set().map_err(Error::wrap)?;
        }
        Ok(())
    }

    /// A copy on another GPU, which has access to the memory of the tensor's.
    struct CopyTo<'a>(&'a CudaDevice);

    impl CustomOp1 for CopyTo<'_> {
        fn name(&self) -> &'static str {
            "copy to another GPU"
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            bail!("expected a tensor on a GPU")
        }

        fn cuda_fwd(&self, data: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            let Some((first, end)) = layout.contiguous_offsets() else {
                bail!("expected a contiguous tensor")
            };
            let (gpu, source) = (self.0, data.device.cuda_stream());
            let stream = gpu.cuda_stream();
            let data = data.as_cuda_slice::<f32>()?.slice(first..end);
            // Safety: the copy writes all elements on this stream, before later work on it reads them.
            let mut copy = unsafe { gpu.alloc::<f32>(end - first) }?;
            {
                let (from, _reads) = data.device_ptr(&source);
                let written = source.record_event(None).map_err(Error::wrap)?;
                stream.wait(&written).map_err(Error::wrap)?;
                let (to, _writes) = copy.device_ptr_mut(&stream);
                let bytes = (end - first) * size_of::<f32>();
                // Safety: both addresses have that many bytes. The GPU of the stream has access to both.
                let begun =
                    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) };
                begun.map_err(Error::wrap)?;
            }
            Ok((
                CudaStorage::wrap_cuda_slice(copy, gpu.clone()),
                layout.shape().clone(),
            ))
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;
    use candle_core::Device;

    /// From and to each GPU, a part of a tensor too, on streams that order nothing by themselves.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_copies_between_gpus_are_whole() {
        let gpus = (0..4).map_while(|i| Device::new_cuda_with_stream(i).ok());
        let gpus: Vec<Device> = gpus.collect();
        assert_eq!(connect(&gpus), None);
        for (from, to) in gpus.iter().flat_map(|a| gpus.iter().map(move |b| (a, b))) {
            for n in [1, 1000, 1_000_000] {
                let data = Tensor::arange(0f32, n as f32, from).unwrap();
                let part = data.narrow(0, n / 3, n - n / 3).unwrap();
                let copied = copy(&part, to).unwrap();
                assert!(copied.device().same_device(to));
                assert_eq!(
                    copied.to_vec1::<f32>().unwrap(),
                    part.to_vec1::<f32>().unwrap()
                );
            }
        }
    }
}
