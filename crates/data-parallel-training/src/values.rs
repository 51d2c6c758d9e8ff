//! The values of a tensor where they lie.

use candle_core::{CpuStorage, Result, Storage, Tensor};

/// Calls `f` with the values of an f32 tensor: without a copy if they lie in memory in their order.
pub(crate) fn with_values<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    {
        let (storage, layout) = tensor.storage_and_layout();
        if let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) =
            (&*storage, layout.contiguous_offsets())
        {
            return Ok(f(&values[start..end]));
        }
    }
    Ok(f(&tensor.flatten_all()?.to_vec1::<f32>()?))
}
