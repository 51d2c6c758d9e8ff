//! The memory of a tensor, to write: candle lends it to an operation in place and to nothing else.

use std::cell::Cell;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor};

/// The memory of a tensor, to write.
pub enum StorageMut<'a> {
    /// Of a tensor on the CPU.
    Cpu(&'a mut CpuStorage),
    /// Of a tensor on an NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda(&'a mut CudaStorage),
}

/// Calls `f` with the memory of a tensor, of which the tensor may be a part. Other tensors may share the memory.
///
/// ```
/// use candle_core::{CpuStorage, Device, Tensor};
/// use data_parallel_devices::StorageMut;
/// let x = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// let old = data_parallel_devices::with_storage_mut(&x, |memory, _layout| match memory {
///     StorageMut::Cpu(CpuStorage::F32(floats)) => Ok(std::mem::replace(&mut floats[1], 3.)),
///     _ => candle_core::bail!("expected an f32 tensor on the CPU"),
/// })?;
/// assert_eq!((old, x.to_vec1::<f32>()?), (2., vec![1., 3.]));
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// Those of `f`, and where a device has no such memory.
pub fn with_storage_mut<R>(
    tensor: &Tensor,
    f: impl FnOnce(StorageMut<'_>, &Layout) -> Result<R>,
) -> Result<R> {
    let write = Write {
        f: Cell::new(Some(f)),
        result: Cell::new(None),
    };
    tensor.inplace_op1(&write)?;
    write.result.take().expect("candle called it")
}

struct Write<F, R> {
    f: Cell<Option<F>>,
    result: Cell<Option<Result<R>>>,
}

impl<R, F: FnOnce(StorageMut<'_>, &Layout) -> Result<R>> InplaceOp1 for Write<F, R> {
    fn name(&self) -> &'static str {
        "write"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let result = self.f.take().map(|f| f(StorageMut::Cpu(storage), layout));
        self.result.set(result);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let result = self.f.take().map(|f| f(StorageMut::Cuda(storage), layout));
        self.result.set(result);
        Ok(())
    }
}
