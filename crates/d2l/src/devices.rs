//! Which devices the replicas live on, and what runs on all of them.
//!
//! The rule: k replicas on k GPUs or more have one each; on fewer GPUs they share them in turn;
//! without a GPU they are k replicas on the CPU, each with its share of the cores. The same
//! code trains all of them.

use candle_core::{Device, Result, Tensor, bail};
use rayon::prelude::*;

use crate::faults::{on_devices, on_replica};
use crate::gpu::{self, NoGpu};

/// Where the replicas may live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum DeviceKind {
    /// GPUs if there are any, otherwise the CPU
    #[default]
    Auto,
    /// The CPU
    Cpu,
    /// GPUs; an error if CUDA cannot be used
    Cuda,
}

/// GPU `i` if it exists, else the CPU ("GPUs").
///
/// ```
/// assert!(d2l::try_gpu(1_000).is_cpu());
/// ```
pub fn try_gpu(i: usize) -> Device {
    gpu::open(i).unwrap_or(Device::Cpu)
}

/// All GPUs, or the CPU if there is none ("GPUs").
///
/// ```
/// assert!(!d2l::try_all_gpus().is_empty());
/// ```
pub fn try_all_gpus() -> Vec<Device> {
    let (gpus, _) = open_gpus(usize::MAX);
    if gpus.is_empty() {
        return vec![Device::Cpu];
    }
    gpus
}

/// Devices for `k` replicas, by the rule of this page: one GPU each, or GPUs shared in turn, or
/// the CPU k times.
///
/// ```
/// let devices = d2l::devices(2)?;
/// assert_eq!(devices.len(), 2); // [cuda(0), cuda(1)], [cuda(0), cuda(0)] or [cpu(0), cpu(1)]
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `k` is 0. A GPU that cannot be used counts as none; so do those after it.
pub fn devices(k: usize) -> Result<Vec<Device>> {
    devices_of_kind(DeviceKind::Auto, Some(k))
}

/// As [`devices`], on the kind of device that is asked for; without `k` there is a replica for
/// each GPU, or one.
///
/// ```
/// let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(3))?;
/// assert_eq!(d2l::device_names(&devices), "[cpu(0), cpu(1), cpu(2)]");
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// As [`devices`]; and if `kind` is [`DeviceKind::Cuda`] and CUDA cannot be used.
pub fn devices_of_kind(kind: DeviceKind, k: Option<usize>) -> Result<Vec<Device>> {
    let found = find_devices(kind, k, None).map_err(candle_core::Error::msg)?;
    Ok(found.0)
}

/// As [`devices_of_kind`]; also returns a line for the user if an expected GPU is not among the devices.
///
/// `local_rank` is this process's number among those that share the machine, if there are several. They take
/// its GPUs in order, and begin again at GPU 0 if there are too few.
///
/// # Errors
/// As [`devices_of_kind`].
pub fn find_devices(
    kind: DeviceKind,
    k: Option<usize>,
    local_rank: Option<usize>,
) -> anyhow::Result<(Vec<Device>, Option<String>)> {
    functional::threads::leave_the_cores_to_us();
    anyhow::ensure!(k != Some(0), "the number of replicas is 0: give at least 1");
    let (mut devices, missing) = match (kind, local_rank) {
        (DeviceKind::Cpu, _) => (Vec::new(), None),
        (_, None) => open_gpus(k.unwrap_or(usize::MAX)),
        (_, Some(rank)) => open_gpus_from(rank * k.unwrap_or(1), k.unwrap_or(1)),
    };
    let gpus = devices.len();
    let note = match missing {
        Some(why) if gpus == 0 && kind == DeviceKind::Cuda => return Err(why.into()),
        Some(why) => note(gpus, &why),
        None => None,
    };
    if gpus == 0 {
        return Ok((vec![Device::Cpu; k.unwrap_or(1)], note));
    }
    // a stream and handles of its own for each replica, also where two share a GPU
    for replica in gpus..k.unwrap_or(gpus) {
        devices.push(gpu::open(replica % gpus)?);
    }
    Ok((devices, note))
}

/// `k` GPUs from GPU `first` on, and from GPU 0 on again if there are no more. If one cannot be used: no GPU, and
/// the reason.
fn open_gpus_from(first: usize, k: usize) -> (Vec<Device>, Option<NoGpu>) {
    let open = |replica: usize| match gpu::open(first + replica) {
        Err(NoGpu::NoDevice) => {
            let (all, missing) = open_gpus(first + replica);
            let missing = missing.unwrap_or(NoGpu::NoDevice);
            let again = (first + replica).checked_rem(all.len());
            again.map_or(Err(missing), gpu::open)
        }
        opened => opened,
    };
    match (0..k).map(open).collect::<std::result::Result<_, _>>() {
        Ok(gpus) => (gpus, None),
        Err(why) => (Vec::new(), Some(why)),
    }
}

/// What a reader should know of the GPU that could not be used after so many that could.
fn note(gpus: usize, why: &NoGpu) -> Option<String> {
    match (gpus, why) {
        // a program built without CUDA needs no such line
        (_, NoGpu::NotBuilt) => None,
        (0, why) => Some(format!("training on the CPU: {why}")),
        // there are no more
        (_, NoGpu::NoDevice) => None,
        (n, why) => Some(format!("GPU {n} and those after it are not used: {why}")),
    }
}

/// GPUs from 0 on, `most` at most; and where there are fewer, what the next one said.
fn open_gpus(most: usize) -> (Vec<Device>, Option<NoGpu>) {
    let mut gpus = Vec::new();
    while gpus.len() < most {
        match gpu::open(gpus.len()) {
            Ok(gpu) => gpus.push(gpu),
            Err(why) => return (gpus, Some(why)),
        }
    }
    (gpus, None)
}

/// Waits until all devices have done what was asked of them, the book's
/// `torch.cuda.synchronize()`; on the CPU that is always so.
///
/// ```
/// d2l::synchronize(&d2l::devices(2)?)?;
/// # candle_core::Result::Ok(())
/// ```
pub fn synchronize(devices: &[Device]) -> Result<()> {
    let mut replicas = devices.iter().enumerate();
    replicas.try_for_each(|(i, device)| on_replica(i, device, || device.synchronize()))
}

/// Lets no device go on before all have come to this point: what one reads of another, that one must
/// not write over. Nothing waits on the host; on the CPU it is always so.
///
/// ```
/// d2l::barrier(&d2l::devices(2)?)?;
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn barrier(devices: &[Device]) -> Result<()> {
    on_devices("barrier", devices, || gpu::barrier(devices))
}

/// Runs `f` on all `devices` at once, on each with its own of `items`; returns the results in their order. It
/// is rayon's parallel iterator, in which an error names its replica as [`on_replica`] does.
///
/// No device begins before all have done their earlier work: one may still read what another writes next.
///
/// ```
/// let devices = d2l::devices(2)?;
/// let sums = d2l::on_each(&devices, ([1, 2], [10, 20]), |(a, b)| Ok(a + b))?;
/// assert_eq!(sums, [11, 22]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If there is not one item for each device, or a device fails.
pub fn on_each<I, T>(
    devices: &[Device],
    items: I,
    f: impl Fn(I::Item) -> Result<T> + Sync,
) -> Result<Vec<T>>
where
    I: IntoParallelIterator<Iter: IndexedParallelIterator>,
    T: Send,
{
    let (items, k) = (items.into_par_iter(), devices.len());
    if items.len() != k || k == 0 {
        bail!("{} items for {k} devices; give one for each", items.len());
    }
    barrier(devices)?;
    let replica = |(i, item)| {
        functional::threads::set_together(k.min(rayon::current_num_threads()));
        let done = on_replica(i, &devices[i], || f(item));
        functional::threads::set_together(1);
        done
    };
    items.enumerate().map(replica).collect()
}

/// `tensor` on `device`, as candle's `to_device`, in order with the other work of both devices. The copy waits
/// for the work that the tensor's GPU was given before; the work that it is given later waits for the copy.
///
/// candle's events do not ensure this between GPUs, or between replicas that share a GPU. They record the
/// result of candle's operation as read, not as written. Of several readers they keep the last one. They do not
/// record a reader on another GPU: the memory of the tensor may be allocated again during the copy.
///
/// ```
/// let ones = candle_core::Tensor::new(&[1f32, 1.0], &d2l::try_gpu(0))?;
/// assert_eq!(d2l::to_device(&ones, &d2l::try_gpu(1))?.to_vec1::<f32>()?, [1.0, 1.0]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If a device fails.
pub fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    gpu::to_device(tensor, device)
}

/// Some examples of a tensor on `device`, as [`to_device`] of a view. Only these examples are sent. If they
/// are on the device already, nothing is copied: the result is a view of the tensor's memory, and a write to
/// this memory changes it.
///
/// ```
/// let x = candle_core::Tensor::new(&[1f32, 2.0, 3.0], &d2l::try_gpu(0))?;
/// let last = d2l::view_to_device(&x.narrow(0, 2, 1)?, &d2l::try_gpu(1))?;
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
        to_device(&functional::with_room(|| view.force_contiguous())?, device)
    })
}

/// The number of examples in a minibatch.
///
/// ```
/// let (x, y) = (candle_core::Tensor::new(&[[1f32], [2.0]], &d2l::try_gpu(0))?, candle_core::Tensor::new(&[0u32, 1], &d2l::try_gpu(0))?);
/// assert_eq!(d2l::num_examples(&x, &y)?, 2);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `x` and `y` have different numbers of examples.
pub fn num_examples(x: &Tensor, y: &Tensor) -> Result<usize> {
    match (x.dim(0)?, y.dim(0)?) {
        (n, labels) if n == labels => Ok(n),
        (n, labels) => bail!("x has {n} examples, y has {labels}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::device_names;

    #[test]
    fn k_replicas_without_a_gpu_live_on_the_cpu() -> Result<()> {
        let devices = devices_of_kind(DeviceKind::Cpu, Some(3))?;
        assert_eq!(device_names(&devices), "[cpu(0), cpu(1), cpu(2)]");
        assert_eq!(devices_of_kind(DeviceKind::Cpu, None)?.len(), 1);
        Ok(())
    }

    #[test]
    fn a_gpu_that_is_missed_is_told_of() {
        let failed = || NoGpu::Failed("no memory".into());
        let line = "training on the CPU: no memory";
        assert_eq!(note(0, &failed()).as_deref(), Some(line));
        assert_eq!(note(0, &NoGpu::NotBuilt), None);
        assert_eq!(note(2, &NoGpu::NoDevice), None);
        let line = "GPU 1 and those after it are not used: no memory";
        assert_eq!(note(1, &failed()).as_deref(), Some(line));
    }

    /// Copies the result of candle's operation to another replica on the same GPU, or to another GPU. The next
    /// tensor may get the memory of the result.
    #[test]
    #[ignore = "needs an NVIDIA GPU"]
    fn on_a_gpu_what_is_copied_is_there_until_it_is() -> Result<()> {
        let gpu = |i| Device::new_cuda_with_stream(i);
        let (first, n) = (gpu(0)?, 1 << 20);
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

    #[test]
    fn no_replica_is_an_error() {
        assert!(devices(0).is_err());
    }
}
