//! The floats of a CPU tensor, to read and to write.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};
use devices::{StorageMut, with_storage_mut};

/// The elements of a contiguous f32 tensor, which may start anywhere in its storage.
pub(crate) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(floats) = storage else {
        bail!("expected an f32 tensor")
    };
    let Some((start, end)) = layout.contiguous_offsets() else {
        let strides = layout.stride();
        bail!("expected a contiguous tensor, got strides {strides:?}")
    };
    let Some(slice) = floats.get(start..end) else {
        let dims = layout.dims();
        let len = floats.len();
        bail!("a tensor of shape {dims:?} has {len} elements in memory")
    };
    Ok(slice)
}

/// Calls `f` with the elements of contiguous tensors on the CPU.
pub(crate) fn read_all<R>(tensors: &[Tensor], f: impl FnOnce(&[&[f32]]) -> Result<R>) -> Result<R> {
    let locked: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let slices = locked.iter().map(|(storage, layout)| match &**storage {
        Storage::Cpu(storage) => slice(storage, layout),
        _ => bail!("expected a CPU tensor"),
    });
    f(&slices.collect::<Result<Vec<_>>>()?)
}

/// Calls `f` with the elements of a contiguous tensor on the CPU, to write.
pub(crate) fn with_slice_mut<R>(
    tensor: &Tensor,
    f: impl FnOnce(&mut [f32]) -> Result<R>,
) -> Result<R> {
    with_memory(tensor, |memory, layout| match layout.contiguous_offsets() {
        Some((start, end)) => f(&mut memory[start..end]),
        None => bail!("expected a contiguous tensor"),
    })
}

/// Calls `f` with the memory of a tensor on the CPU, of which the tensor may be a part.
fn with_memory<R>(
    tensor: &Tensor,
    f: impl FnOnce(&mut Vec<f32>, &Layout) -> Result<R>,
) -> Result<R> {
    with_storage_mut(tensor, |memory, layout| match memory {
        StorageMut::Cpu(CpuStorage::F32(memory)) => f(memory, layout),
        _ => bail!("expected an f32 tensor on the CPU"),
    })
}

/// The memory of a contiguous CPU tensor, taken out of it for as long as this lives: meanwhile the tensor must not
/// be used.
pub(crate) struct TensorMemory {
    tensor: Tensor,
    floats: Vec<f32>,
}

impl TensorMemory {
    /// # Errors
    /// Where the tensor is a view of a larger memory.
    pub(crate) fn new(tensor: Tensor) -> Result<Self> {
        let floats = exchange(&tensor, Vec::new())?;
        let len = floats.len();
        let expected = tensor.elem_count();
        let taken = Self { tensor, floats };
        if len != expected || taken.tensor.layout().start_offset() != 0 {
            bail!(
                "the memory of a gradient has {len} elements, expected {expected}: give it its own"
            )
        }
        Ok(taken)
    }

    pub(crate) fn floats(&mut self) -> &mut [f32] {
        &mut self.floats
    }

    /// The tensor, with its memory.
    pub(crate) fn put_back(self) -> Tensor {
        self.tensor.clone()
    }
}

impl Drop for TensorMemory {
    fn drop(&mut self) {
        let floats = std::mem::take(&mut self.floats);
        exchange(&self.tensor, floats).expect("its memory came from there");
    }
}

/// Gives a CPU tensor other memory, and returns what it had.
fn exchange(tensor: &Tensor, floats: Vec<f32>) -> Result<Vec<f32>> {
    with_memory(tensor, |memory, _| Ok(std::mem::replace(memory, floats)))
}
