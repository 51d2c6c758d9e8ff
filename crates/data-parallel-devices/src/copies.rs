//! Copies between devices, in order with the other work of both, and waiting for devices.
//!
//! candle's events do not order a read of another replica's memory. [`to_device`] does: it orders a copy with the work
//! that both GPUs were given before, and with the later work of the source's GPU. [`barrier`] holds every stream until
//! all replicas have read. `.ci/emulate-cuda` detects such data races.

use candle_core::{Device, Result, Tensor, bail};

use crate::gpu_cache::retry_with_empty_cache;
use crate::names::{on_devices, on_replica};

/// Waits until all devices have finished their work, the book's `torch.cuda.synchronize()`. On the CPU it returns at
/// once.
///
/// ```
/// data_parallel_devices::synchronize(&data_parallel_devices::devices(2)?)?;
/// # candle_core::Result::Ok(())
/// ```
pub fn synchronize(devices: &[Device]) -> Result<()> {
    let mut replicas = devices.iter().enumerate();
    replicas.try_for_each(|(i, device)| on_replica(i, device, || device.synchronize()))
}

/// Waits on every device until all devices have reached this point. So no device overwrites memory that another still
/// reads. The host does not wait. On the CPU it does nothing.
///
/// ```
/// data_parallel_devices::barrier(&data_parallel_devices::devices(2)?)?;
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn barrier(devices: &[Device]) -> Result<()> {
    on_devices("barrier", devices, || {
        let mut gpus = devices.iter().filter(|device| device.is_cuda());
        gpus.try_for_each(|first| devices.iter().try_for_each(|second| follow(first, second)))
    })
}

/// `tensor` on `device`, as candle's `to_device`, in order with the other work of both devices. The copy waits
/// for the work that the tensor's GPU was given before; the work that it is given later waits for the copy.
///
/// candle's events do not ensure this between GPUs, or between replicas that share a GPU. They record the
/// result of candle's operation as read, not as written. Of several readers they keep the last one. They do not
/// record a reader on another GPU: the memory of the tensor may be allocated again during the copy.
///
/// ```
/// let ones = candle_core::Tensor::new(&[1f32, 1.0], &data_parallel_devices::try_gpu(0))?;
/// assert_eq!(data_parallel_devices::to_device(&ones, &data_parallel_devices::try_gpu(1))?.to_vec1::<f32>()?, [1.0, 1.0]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    follow(tensor.device(), device)?;
    let copy = retry_with_empty_cache(|| tensor.to_device(device))?;
    follow(device, tensor.device())?;
    Ok(copy)
}

/// Some examples of a tensor on `device`, as [`to_device`] of a view. Only these examples are sent. If they
/// are on the device already, nothing is copied: the result is a view of the tensor's memory, and a write to
/// this memory changes it.
///
/// ```
/// let x = candle_core::Tensor::new(&[1f32, 2.0, 3.0], &data_parallel_devices::try_gpu(0))?;
/// let last = data_parallel_devices::view_to_device(&x.narrow(0, 2, 1)?, &data_parallel_devices::try_gpu(1))?;
/// assert_eq!(last.to_vec1::<f32>()?, [3.0]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If the device fails, or is a GPU and there is no example. The message names the device.
pub fn view_to_device(view: &Tensor, device: &Device) -> Result<Tensor> {
    if view.device().same_device(device) {
        return Ok(view.clone());
    }
    on_devices("copy", std::slice::from_ref(device), || {
        if view.elem_count() == 0 {
            bail!("a GPU needs at least 1 example");
        }
        // candle would send the whole memory
        to_device(&retry_with_empty_cache(|| view.force_contiguous())?, device)
    })
}

/// The work that `second` is given from now on comes after the work that `first` was given so far.
#[cfg(feature = "cuda")]
fn follow(first: &Device, second: &Device) -> Result<()> {
    use candle_core::Error;
    match (first, second) {
        (Device::Cuda(first), Device::Cuda(second)) if first.id() != second.id() => {
            let here = first
                .cuda_stream()
                .record_event(None)
                .map_err(Error::wrap)?;
            second.cuda_stream().wait(&here).map_err(Error::wrap)
        }
        _ => Ok(()),
    }
}

/// The CPU does one thing after the other.
#[cfg(not(feature = "cuda"))]
fn follow(_first: &Device, _second: &Device) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies the result of candle's operation to another replica on the same GPU, or to another GPU. The next
    /// tensor may get the memory of the result.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_what_is_copied_is_there_until_it_is() -> Result<()> {
        let gpu = |i| Device::new_cuda_with_stream(i);
        let first = gpu(0)?;
        let n = 1 << 20;
        for second in [gpu(0)?, gpu(1).or_else(|_| gpu(0))?] {
            for i in 0..10 {
                let ones = Tensor::ones(n, candle_core::DType::F32, &first)?;
                let copy = to_device(&(ones * f64::from(i))?, &second)?;
                Tensor::ones(n, candle_core::DType::F32, &first)?;
                assert_eq!(copy.to_vec1::<f32>()?, vec![i as f32; n]);
            }
        }
        Ok(())
    }
}
