//! Copies of many small tensors.

use std::cell::LazyCell;
use std::collections::HashSet;

use candle_core::{DType, Result, Tensor, Var};

/// Copies each of `from` into the variable of the same number. Where all have memory of their own, those that are F32 on
/// one GPU take one launch.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// let from = [Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(3u32, &Device::Cpu)?];
/// let to = [Var::from_tensor(&from[0].zeros_like()?)?, Var::from_tensor(&from[1].zeros_like()?)?];
/// data_parallel_functional::copy_all(&[&from[0], &from[1]], &to)?;
/// assert_eq!(to[0].to_vec1::<f32>()?, [1., 2.]);
/// assert_eq!(to[1].to_scalar::<u32>()?, 3);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// If a tensor has another shape, type or device than its variable, or shares its memory.
///
/// # Panics
/// If there are not as many variables as tensors.
pub fn copy_all(from: &[&Tensor], to: &[Var]) -> Result<()> {
    assert_eq!(from.len(), to.len(), "a variable for each tensor");
    let memory_of = |t: &Tensor| std::ptr::from_ref(&*t.storage_and_layout().0) as usize;
    // a copy that another one reads or writes must come in its turn, and no memory can be locked twice
    let are_apart = LazyCell::new(|| {
        let read = from.iter().map(|from| memory_of(from));
        let written = to.iter().map(|to| memory_of(to));
        read.chain(written).collect::<HashSet<_>>().len() == 2 * to.len()
    });
    let mut together: Vec<(&Tensor, &Tensor)> = Vec::new();
    for (from, to) in from.iter().zip(to) {
        let with_others = together
            .first()
            .is_none_or(|(first, _)| first.device().same_device(from.device()));
        if is_copied_by_a_kernel(from, to) && with_others && *are_apart {
            together.push((from, to));
        } else {
            to.set(from)?;
        }
    }
    #[cfg(feature = "cuda")]
    crate::cuda::copy_all(&together)?;
    Ok(())
}

fn is_copied_by_a_kernel(from: &Tensor, to: &Tensor) -> bool {
    // candle's own copy says what does not fit
    let fit = from.dims() == to.dims() && from.device().same_device(to.device());
    let are_f32 = from.dtype() == DType::F32 && to.dtype() == DType::F32;
    fit && are_f32 && from.is_contiguous() && from.device().is_cuda()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Tensors of several sizes, types and layouts.
    fn tensors(device: &Device) -> Result<Vec<Tensor>> {
        let numbers = |n: u32| Tensor::arange(1f32, 1. + n as f32, device);
        let sizes = [1, 3, 64, 1000, 5000].map(numbers);
        let mut all = sizes.into_iter().collect::<Result<Vec<_>>>()?;
        all.push(numbers(35)?.reshape((7, 5))?.t()?);
        all.push(all[3].narrow(0, 3, 11)?);
        all.push(Tensor::new(&[1u32, 2, 3], device)?);
        Ok(all)
    }

    fn are_copied(device: &Device) -> Result<()> {
        let from = tensors(device)?;
        let to = from
            .iter()
            .map(|from| Var::from_tensor(&from.zeros_like()?));
        let to = to.collect::<Result<Vec<_>>>()?;
        copy_all(&from.iter().collect::<Vec<_>>(), &to)?;
        for (from, to) in from.iter().zip(&to) {
            let values = |t: &Tensor| t.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            assert_eq!(values(from)?, values(to)?);
        }
        // in their turn
        let a = Var::from_tensor(&Tensor::new(1f32, device)?)?;
        let b = Var::from_tensor(&Tensor::new(2f32, device)?)?;
        copy_all(&[&a, &b], &[b.clone(), a.clone()])?;
        assert_eq!([a.to_scalar::<f32>()?, b.to_scalar::<f32>()?], [1., 1.]);
        let wrong = [Tensor::zeros(2, DType::F32, device)?, to[2].detach()];
        for wrong in &wrong {
            assert!(copy_all(&[wrong], &to[2..3]).is_err());
        }
        Ok(())
    }

    #[test]
    fn tensors_are_copied() -> Result<()> {
        are_copied(&Device::Cpu)
    }

    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_tensors_are_copied() -> Result<()> {
        are_copied(&Device::new_cuda_with_stream(0)?)
    }
}
