//! The streams of GPUs, and the order between them. Each device has a stream of its own, which does one thing after the
//! other.
//!
//! cudarc can order streams by itself: with two events for each tensor, on which each use of the tensor waits. Nearly
//! all of them order a stream with itself, and candle's copies to another replica are not ordered by them. So they are
//! turned off ([`without_events`]), and order is written where two streams meet, and nowhere else: in copies and barriers
//! here, and for the sums of gradients in `collective`. What orders two streams is [`WorkSoFar`]. `.ci/emulate-cuda`
//! detects data races.

#![cfg_attr(feature = "cuda", allow(unsafe_code))]

use candle_core::{Device, Result, Tensor};

/// The device, for which cudarc records no events from now on. On the CPU this does nothing.
///
/// Copies from it to another replica are made by [`to_device`](crate::to_device): candle's own copy between two
/// replicas on one GPU is not ordered with their work.
///
/// ```
/// let device = data_parallel_devices::without_events(candle_core::Device::Cpu);
/// assert!(device.is_cpu());
/// ```
pub fn without_events(device: Device) -> Device {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = &device {
        // Safety: all work on a tensor of the device is on the device's stream, which does one thing after the other.
        // Operations of another device refuse the tensor. `to_device` and `CommunicationStream` use it on another
        // stream, and order the two.
        unsafe { gpu.disable_event_tracking() }
    }
    device
}

/// All work that a device was given so far. On the CPU, which does one thing after the other, it is nothing.
///
/// ```
/// use candle_core::Device;
/// let so_far = data_parallel_devices::WorkSoFar::of(&Device::Cpu)?;
/// so_far.comes_before(&Device::Cpu)?;
/// assert!(so_far.is_done()?);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct WorkSoFar {
    #[cfg(feature = "cuda")]
    event: Option<cuda::Event>,
}

impl WorkSoFar {
    /// The work of `device` until now.
    ///
    /// # Errors
    /// If the device fails.
    pub fn of(device: &Device) -> Result<Self> {
        let _ = device;
        Ok(Self {
            #[cfg(feature = "cuda")]
            event: cuda::recorded(device)?,
        })
    }

    /// Later work of `device` waits for this work. The host does not wait.
    ///
    /// # Errors
    /// If the device fails.
    pub fn comes_before(&self, device: &Device) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let (Some(event), Device::Cuda(gpu)) = (&self.event, device) {
            event.wait_on(gpu)?;
        }
        let _ = device;
        Ok(())
    }

    /// True if the work is done.
    ///
    /// # Errors
    /// If the work failed.
    pub fn is_done(&self) -> Result<bool> {
        #[cfg(feature = "cuda")]
        if let Some(event) = &self.event {
            return event.is_reached();
        }
        Ok(true)
    }
}

/// The work that `second` is given from now on comes after the work that `first` was given so far.
///
/// ```
/// use candle_core::Device;
/// data_parallel_devices::follow(&Device::Cpu, &Device::Cpu)?; // nothing to do
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn follow(first: &Device, second: &Device) -> Result<()> {
    if first.is_cuda() && second.is_cuda() && !first.same_device(second) {
        WorkSoFar::of(first)?.comes_before(second)?;
    }
    Ok(())
}

/// Makes the GPU of `device` that of the calling thread.
pub(crate) fn make_current(device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(gpu) = device {
        let context = gpu.cuda_stream().context().clone();
        context.bind_to_thread().map_err(candle_core::Error::wrap)?;
    }
    let _ = device;
    Ok(())
}

/// A copy of `tensor` on `device`, without any order.
pub(crate) fn copy(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if let Some(copy) = cuda::copy(tensor, device)? {
        return Ok(copy);
    }
    tensor.to_device(device)
}

/// True if [`copy`] sends the elements of `tensor` alone, not the whole memory of which they are a part.
pub(crate) fn sends_a_part(tensor: &Tensor, device: &Device) -> bool {
    #[cfg(feature = "cuda")]
    return cuda::can_copy(tensor, device);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (tensor, device);
        false
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::sync::Mutex;

    use candle_core::cuda_backend::cudarc::driver::{
        CudaEvent, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, result,
    };
    use candle_core::cuda_backend::{CudaDType, CudaDevice};
    use candle_core::op::BackpropOp;
    use candle_core::{CudaStorage, DType, Device, Error, Result, Storage, Tensor};

    use crate::panics::lock;

    /// An event that is used again: to create and to destroy one takes the host longer than to record it.
    #[derive(Debug)]
    pub struct Event(Option<CudaEvent>);

    /// The events that nothing uses now. A stream that waits for one has taken what it waits for along.
    static SPARE: Mutex<Vec<CudaEvent>> = Mutex::new(Vec::new());

    /// An event behind the work of `device` so far; none on the CPU.
    pub fn recorded(device: &Device) -> Result<Option<Event>> {
        let Device::Cuda(gpu) = device else {
            return Ok(None);
        };
        let stream = gpu.cuda_stream();
        let of_gpu = |event: &CudaEvent| event.context() == stream.context();
        let mut spare = lock(&SPARE);
        let found = spare
            .iter()
            .position(of_gpu)
            .map(|at| spare.swap_remove(at));
        drop(spare);
        let event = match found {
            Some(event) => event,
            None => stream.context().new_event(None).map_err(Error::wrap)?,
        };
        event.record(&stream).map_err(Error::wrap)?;
        Ok(Some(Event(Some(event))))
    }

    impl Event {
        fn event(&self) -> &CudaEvent {
            self.0.as_ref().expect("it is there until the drop")
        }

        pub fn wait_on(&self, gpu: &CudaDevice) -> Result<()> {
            gpu.cuda_stream().wait(self.event()).map_err(Error::wrap)
        }

        pub fn is_reached(&self) -> Result<bool> {
            self.event().try_is_complete().map_err(Error::wrap)
        }
    }

    impl Drop for Event {
        fn drop(&mut self) {
            lock(&SPARE).extend(self.0.take());
        }
    }

    /// True if [`copy`] copies the tensor: images, labels and gradients.
    pub fn can_copy(tensor: &Tensor, device: &Device) -> bool {
        tensor.device().is_cuda()
            && device.is_cuda()
            && !tensor.device().same_device(device)
            && matches!(tensor.dtype(), DType::F32 | DType::U32)
            && tensor.is_contiguous()
    }

    /// A copy between two streams, on that of `device`. candle's would send the whole memory of which the tensor is a
    /// part, and between two GPUs create an event for each copy.
    pub fn copy(tensor: &Tensor, device: &Device) -> Result<Option<Tensor>> {
        if !can_copy(tensor, device) {
            return Ok(None);
        }
        let to = device.as_cuda_device()?;
        let storage = match tensor.dtype() {
            DType::U32 => elements::<u32>(tensor, to)?,
            _ => elements::<f32>(tensor, to)?,
        };
        let storage = Storage::Cuda(storage);
        let none = BackpropOp::none();
        Ok(Some(Tensor::from_storage(
            storage,
            tensor.shape(),
            none,
            false,
        )))
    }

    fn elements<T: CudaDType + DeviceRepr>(
        tensor: &Tensor,
        to: &CudaDevice,
    ) -> Result<CudaStorage> {
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            candle_core::bail!("expected a tensor on a GPU")
        };
        let first = layout.start_offset();
        let memory = storage.as_cuda_slice::<T>()?;
        let from = memory.slice(first..first + layout.shape().elem_count());
        let stream = to.cuda_stream();
        // Safety: all elements are written below, before later work of the stream reads them.
        let mut copy = unsafe { to.alloc::<T>(from.len())? };
        let there = from.stream();
        if there.context() == stream.context() {
            stream.memcpy_dtod(&from, &mut copy).map_err(Error::wrap)?;
        } else {
            let (source, _) = from.device_ptr(there);
            let (target, _) = copy.device_ptr_mut(&stream);
            let [of_source, of_target] = [there, &stream].map(|stream| stream.context().cu_ctx());
            let bytes = from.num_bytes();
            // Safety: both addresses have that many bytes, on the GPUs of the contexts. `to_device` orders the copy with
            // the work of both streams, so the memory stays until it is done.
            let begun = unsafe {
                result::memcpy_peer_async(
                    of_target,
                    target,
                    of_source,
                    source,
                    bytes,
                    stream.cu_stream(),
                )
            };
            begun.map_err(Error::wrap)?;
        }
        Ok(T::wrap_cuda_slice(copy, to.clone()))
    }
}
