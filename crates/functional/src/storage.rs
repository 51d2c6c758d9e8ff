//! The floats of a CPU tensor as a slice, and back. It refuses other devices and other types.

use crate::gemm::Matrix;
use candle_core::{CpuStorage, Device, Layout, Result, Shape, Storage, Tensor, bail};

/// All of `storage`'s floats, whatever the layout.
fn floats(storage: &CpuStorage) -> Result<&[f32]> {
    match storage {
        CpuStorage::F32(floats) => Ok(floats),
        _ => bail!("expected an f32 tensor"),
    }
}

/// The elements of a contiguous f32 tensor, which may start anywhere in its storage.
pub(crate) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&floats(storage)?[start..end]),
        None => bail!(
            "expected a contiguous tensor, got strides {:?}",
            layout.stride()
        ),
    }
}

/// The elements of a 2-d f32 tensor of any strides.
pub(crate) fn matrix<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<Matrix<'a>> {
    let shape = layout.shape().dims2()?;
    let strides = (layout.stride()[0], layout.stride()[1]);
    let data = &floats(storage)?[layout.start_offset()..];
    Ok(Matrix::strided(data, shape, strides))
}

fn cpu(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("expected a CPU tensor"),
    }
}

/// Calls `f` with the elements of each tensor in row-major order, copied only where they do not
/// lie so already.
pub(crate) fn read<const N: usize, R>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> R,
) -> Result<R> {
    let tensors = tensors.iter().map(|t| t.contiguous());
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    let locked: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut slices = [&[][..]; N];
    for (s, (storage, layout)) in slices.iter_mut().zip(&locked) {
        *s = slice(cpu(storage)?, layout)?;
    }
    Ok(f(slices))
}

/// Calls `f` with a 2-d tensor of any strides.
pub(crate) fn read_matrix<R>(tensor: &Tensor, f: impl FnOnce(Matrix) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    f(matrix(cpu(&storage)?, layout)?)
}

/// A CPU tensor of these elements.
pub(crate) fn tensor(elements: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(elements, shape.into(), &Device::Cpu)
}
