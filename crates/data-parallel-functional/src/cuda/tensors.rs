//! candle's tensors on a GPU: the addresses of what they hold, and tensors of memory of ours.

use super::floats::Floats;
use super::stream::Stream;
use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::op::BackpropOp;
use candle_core::{Layout, Result, Storage, Tensor, bail};
use devices::{StorageMut, with_storage_mut};

/// Calls `f` with the elements of contiguous tensors on the stream's device.
pub(crate) fn with_floats<R>(
    tensors: &[&Tensor],
    stream: &Stream,
    f: impl FnOnce(&[Floats]) -> Result<R>,
) -> Result<R> {
    let locked: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut floats = Vec::new();
    let mut reading = Vec::new();
    for (storage, layout) in &locked {
        let slice = match &**storage {
            Storage::Cuda(storage) if storage.device.id() == stream.device().id() => {
                storage.as_cuda_slice::<f32>()?
            }
            _ => bail!("a tensor is on another device than the operation"),
        };
        let (address, guard) = slice.device_ptr(stream.cuda());
        reading.push(guard);
        floats.push(elements(address, slice.len(), layout)?);
    }
    f(&floats)
}

/// The elements of a contiguous tensor, to write. The stream keeps the order.
pub(crate) fn memory_of(tensor: &Tensor, stream: &Stream) -> Result<Floats> {
    with_storage_mut(tensor, |memory, layout| {
        let StorageMut::Cuda(storage) = memory else {
            bail!("expected a tensor on a GPU")
        };
        if storage.device.id() != stream.device().id() {
            bail!("a tensor is on another device than the operation")
        }
        let slice = storage.as_cuda_slice::<f32>()?;
        let address = slice.device_ptr(stream.cuda()).0;
        elements(address, slice.len(), layout)
    })
}

/// The elements of a contiguous tensor in its memory.
fn elements(address: u64, len: usize, layout: &Layout) -> Result<Floats> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        let strides = layout.stride();
        bail!("expected a contiguous tensor, got strides {strides:?}")
    };
    Ok(Floats::new(address, len).at(start, end - start))
}

/// A tensor with this memory.
pub(crate) fn tensor(memory: CudaSlice<f32>, dims: &[usize], stream: &Stream) -> Tensor {
    let storage = CudaStorage::wrap_cuda_slice(memory, stream.device().clone());
    Tensor::from_storage(Storage::Cuda(storage), dims, BackpropOp::none(), false)
}
