//! Copies between devices, in order with the other work of both, and waiting for devices.
//!
//! [`to_device`] orders a copy with the work that both GPUs were given before, and with the later work of the source's
//! GPU. [`barrier`] holds every stream until all replicas have read. `streams` says why candle does neither.

use candle_core::{Device, Result, Tensor, bail};

use crate::gpu_cache::retry_with_empty_cache;
use crate::names::{on_devices, on_replica};
use crate::streams::{WorkSoFar, copy, follow, make_current, sends_a_part};

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
        let gpus: Vec<&Device> = devices.iter().filter(|device| device.is_cuda()).collect();
        let [first, others @ ..] = &gpus[..] else {
            return Ok(());
        };
        if others.is_empty() {
            return Ok(());
        }
        // the first waits for all, and the others for the first
        others.iter().try_for_each(|other| follow(other, first))?;
        let of_all = WorkSoFar::of(first)?;
        others
            .iter()
            .try_for_each(|other| of_all.comes_before(other))
    })
}

/// `tensor` on `device`, as candle's `to_device`, in order with the other work of both devices. The copy waits
/// for the work that the tensor's GPU was given before; the work that it is given later waits for the copy.
///
/// candle does not ensure this. Between replicas that share a GPU, its copy may begin before the tensor is written.
/// Between GPUs, the memory of the tensor may be allocated again during the copy.
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
    let copy = send(tensor, device)?;
    follow(device, tensor.device())?;
    make_current(device)?;
    Ok(copy)
}

/// The first half of [`to_device`]: the later work of the tensor's GPU does not wait for the copy.
fn send(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    follow(tensor.device(), device)?;
    let copy = retry_with_empty_cache(|| copy(tensor, device))?;
    make_current(device)?; // it was the source's GPU, and not each call of candle's says which one it needs
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
    view_by(to_device, view, device)
}

/// Copies like [`view_to_device`], but the view's GPU goes on with its work while the copy is made. Before the memory of the view
/// is written or freed, [`follow(device, view.device())`](follow) has to be called.
///
/// ```
/// use data_parallel_devices::{follow, send_view, try_gpu};
/// let x = candle_core::Tensor::new(&[1f32, 2.0, 3.0], &try_gpu(0))?;
/// let last = send_view(&x.narrow(0, 2, 1)?, &try_gpu(1))?;
/// follow(&try_gpu(1), x.device())?;
/// assert_eq!(last.to_vec1::<f32>()?, [3.0]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// As [`view_to_device`].
pub fn send_view(view: &Tensor, device: &Device) -> Result<Tensor> {
    view_by(send, view, device)
}

/// The examples of a view on `device`, sent by `copy`.
fn view_by(
    copy: fn(&Tensor, &Device) -> Result<Tensor>,
    view: &Tensor,
    device: &Device,
) -> Result<Tensor> {
    if view.device().same_device(device) {
        return Ok(view.clone());
    }
    on_devices("copy", std::slice::from_ref(device), || {
        if view.elem_count() == 0 {
            bail!("a GPU needs at least 1 example");
        }
        if sends_a_part(view, device) {
            return copy(view, device);
        }
        // the contiguous copy is freed at once
        to_device(&retry_with_empty_cache(|| view.force_contiguous())?, device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::without_events;
    use candle_core::DType;

    fn gpu(i: usize) -> Result<Device> {
        Device::new_cuda_with_stream(i).map(without_events)
    }

    /// Copies the result of candle's operation to another replica on the same GPU, or to another GPU. The next
    /// tensor may get the memory of the result.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_what_is_copied_is_there_until_it_is() -> Result<()> {
        let first = gpu(0)?;
        let n = 1 << 20;
        for second in [gpu(0)?, gpu(1).or_else(|_| gpu(0))?] {
            for i in 0..10 {
                let ones = Tensor::ones(n, DType::F32, &first)?;
                let copy = to_device(&(ones * f64::from(i))?, &second)?;
                Tensor::ones(n, DType::F32, &first)?;
                assert_eq!(copy.to_vec1::<f32>()?, vec![i as f32; n]);
            }
        }
        Ok(())
    }

    /// Of each type that a minibatch may have, a part and a transposed part.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_a_part_is_copied() -> Result<()> {
        let first = gpu(0)?;
        for second in [gpu(0)?, gpu(1).or_else(|_| gpu(0))?] {
            for dtype in [DType::F32, DType::U32, DType::U8, DType::I64] {
                let all = Tensor::arange(0u32, 24, &first)?.to_dtype(dtype)?;
                let rows = all.reshape((6, 4))?.narrow(0, 2, 3)?;
                for part in [rows.clone(), rows.t()?, rows.narrow(1, 1, 2)?] {
                    for copy in [to_device(&part, &second)?, view_to_device(&part, &second)?] {
                        let [copy, part] = [&copy, &part].map(|t| t.to_dtype(DType::F32));
                        assert_eq!(
                            copy?.to_vec2::<f32>()?,
                            part?.to_vec2::<f32>()?,
                            "{dtype:?}"
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// candle's own copies between replicas on one GPU have no order but that of the barriers.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_a_barrier_orders_each_device_with_each() -> Result<()> {
        let n = 1000;
        let gpus = [gpu(0)?, gpu(0)?, gpu(0)?];
        let zeros = gpus.each_ref().map(|gpu| Tensor::zeros(n, DType::F32, gpu));
        let numbers = zeros.into_iter().collect::<Result<Vec<_>>>()?;
        let mut copies = Vec::new();
        for round in 0..10 {
            for own in &numbers {
                own.slice_set(&Tensor::full(round as f32, n, own.device())?, 0, 0)?;
            }
            barrier(&gpus)?;
            for reader in &gpus {
                let others = numbers
                    .iter()
                    .filter(|own| !own.device().same_device(reader));
                for own in others {
                    copies.push((round, own.to_device(reader)?));
                }
            }
            barrier(&gpus)?;
        }
        for (round, copy) in copies {
            assert_eq!(copy.to_vec1::<f32>()?, vec![round as f32; n]);
        }
        Ok(())
    }
}
