//! The communication stream of a GPU, beside the stream that computes. With it, gradients are summed while the
//! backward pass goes on. It knows no member and no sum.
//!
//! A tensor moves to it with its memory, without a copy. Events order the two streams. So a sum waits only for what
//! has written its own tensor, and the computing stream waits for the sum when it gets the tensor back.

use candle_core::{Device, Result, Tensor};

/// A second stream on a device. A tensor moves to it and back with its memory, without a copy. On the CPU, this does
/// nothing.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_collective::CommunicationStream;
/// let stream = CommunicationStream::beside(&Device::Cpu)?;
/// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
/// let data = stream.take(Tensor::new(&[1f32, 2.], &Device::Cpu)?)?;
/// let sum = stream.give_back(member.all_reduce_tensor(&data)?)?;
/// assert_eq!(sum.to_vec1::<f32>()?, [1., 2.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CommunicationStream {
    computes: Device,
    communicates: Device,
}

impl CommunicationStream {
    /// A stream beside that of `device`.
    ///
    /// # Errors
    /// If the GPU has no memory left for the handles of the libraries.
    pub fn beside(device: &Device) -> Result<Self> {
        Ok(Self {
            computes: device.clone(),
            communicates: second(device)?,
        })
    }

    /// The f32 of `tensor` for work on this stream. Such work comes after what has written them so far. Other tensors
    /// that share the memory of `tensor` lose it.
    ///
    /// # Errors
    /// If `tensor` is not f32, is a part of another tensor, or is not on the device.
    pub fn take(&self, tensor: Tensor) -> Result<Tensor> {
        moved(tensor, &self.computes, &self.communicates)
    }

    /// The f32 of `tensor` for the stream that computes. Its later work on them comes after the work here so far.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn give_back(&self, tensor: Tensor) -> Result<Tensor> {
        moved(tensor, &self.communicates, &self.computes)
    }
}

#[cfg(not(feature = "cuda"))]
fn second(device: &Device) -> Result<Device> {
    Ok(device.clone())
}

#[cfg(not(feature = "cuda"))]
fn moved(tensor: Tensor, _from: &Device, _to: &Device) -> Result<Tensor> {
    Ok(tensor)
}

#[cfg(feature = "cuda")]
use gpu::{moved, second};

#[cfg(feature = "cuda")]
mod gpu {
    use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
    use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
    use candle_core::op::BackpropOp;
    use candle_core::{Device, Layout, Result, Storage, Tensor, bail};
    use devices::{StorageMut, with_storage_mut};

    /// A device with another stream on the same GPU.
    pub fn second(device: &Device) -> Result<Device> {
        match device {
            Device::Cuda(gpu) if gpu.is_event_tracking() => {
                Device::new_cuda_with_stream(gpu.cuda_stream().context().ordinal())
            }
            Device::Cuda(_) => {
                bail!("a second stream needs candle's events, which are turned off for this device")
            }
            _ => Ok(device.clone()),
        }
    }

    /// A tensor of `to` with the memory of `tensor`, which is one of `from`.
    pub fn moved(tensor: Tensor, from: &Device, to: &Device) -> Result<Tensor> {
        let (Device::Cuda(from), Device::Cuda(to)) = (from, to) else {
            return Ok(tensor);
        };
        if tensor.elem_count() == 0 {
            return Tensor::zeros(tensor.shape(), tensor.dtype(), &Device::Cuda(to.clone()));
        }
        let memory = with_storage_mut(&tensor, |memory, layout| match memory {
            StorageMut::Cuda(storage) => taken(storage, layout, &from.cuda_stream()),
            StorageMut::Cpu(_) => bail!("expected a tensor on a GPU"),
        })?;
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(memory, to.clone()));
        let none = BackpropOp::none();
        Ok(Tensor::from_storage(storage, tensor.shape(), none, false))
    }

    /// Takes the memory out of a tensor.
    fn taken(
        storage: &mut CudaStorage,
        layout: &Layout,
        written_on: &CudaStream,
    ) -> Result<CudaSlice<f32>> {
        let len = storage.as_cuda_slice::<f32>()?.len();
        if layout.contiguous_offsets() != Some((0, len)) {
            bail!("a part of a tensor cannot move to another stream")
        }
        let nothing = CudaStorageSlice::F32(storage.device.alloc_zeros(1)?);
        let CudaStorageSlice::F32(mut memory) = std::mem::replace(&mut storage.slice, nothing)
        else {
            unreachable!("its type was looked at")
        };
        // candle's kernels leave no event that they have written: this one is after all of them
        drop(memory.device_ptr_mut(written_on));
        Ok(memory)
    }
}
