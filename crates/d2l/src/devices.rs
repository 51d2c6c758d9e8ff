//! Which devices the replicas live on, and how the cores are shared among them.
//!
//! The rule: k replicas on k GPUs or more have one each; on fewer GPUs they share them in turn;
//! without a GPU they are k replicas on the CPU, each with its share of the cores. The same
//! code trains all of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, DeviceLocation, Result, Tensor, bail};

use crate::gpu::{self, NoGpu};
use crate::{Process, on_devices, on_replica};

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
    let found = find_devices(kind, k, Process::ALONE).map_err(candle_core::Error::msg)?;
    Ok(found.0)
}

/// As [`devices_of_kind`]; also returns a line for the user if an expected GPU is not among the devices.
///
/// Processes on one machine take its GPUs in order, and begin again at GPU 0 if there are too few.
///
/// # Errors
/// As [`devices_of_kind`].
pub fn find_devices(
    kind: DeviceKind,
    k: Option<usize>,
    process: Process,
) -> anyhow::Result<(Vec<Device>, Option<String>)> {
    functional::threads::leave_the_cores_to_us();
    anyhow::ensure!(k != Some(0), "the number of replicas is 0: give at least 1");
    let (alone, k) = (process.on_machine == 1, k.or((process.of > 1).then_some(1)));
    let (mut devices, missing) = match kind {
        DeviceKind::Cpu => (Vec::new(), None),
        _ if alone => open_gpus(k.unwrap_or(usize::MAX)),
        _ => open_gpus_of(process, k.unwrap_or(1)),
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

/// `k` GPUs of a process that shares the machine with others: those after the GPUs of the processes before it,
/// and from GPU 0 on again where there are no more. None, and why, where one cannot be used.
fn open_gpus_of(process: Process, k: usize) -> (Vec<Device>, Option<NoGpu>) {
    let first = process.local_rank * k;
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

/// The names of replicas' devices as they are printed: `[cuda(0), cuda(1)]`, `[cpu(0), cpu(1)]`.
///
/// A GPU's number is the GPU's; CPU replicas are counted.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(d2l::device_names(&[Device::Cpu, Device::Cpu]), "[cpu(0), cpu(1)]");
/// ```
pub fn device_names(devices: &[Device]) -> String {
    let replicas = devices.iter().enumerate();
    let names: Vec<String> = replicas.map(|(i, device)| device_name(i, device)).collect();
    format!("[{}]", names.join(", "))
}

/// The name of the device of replica `i`, as in [`device_names`].
///
/// ```
/// assert_eq!(d2l::device_name(1, &candle_core::Device::Cpu), "cpu(1)");
/// ```
pub fn device_name(i: usize, device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda({gpu_id})"),
        DeviceLocation::Metal { gpu_id } => format!("metal({gpu_id})"),
        DeviceLocation::Cpu => format!("cpu({i})"),
    }
}

/// What [`share_cores`] was told; 0 is all. A static, because the cores are the process's, and so are rayon's threads.
static CORES: AtomicUsize = AtomicUsize::new(0);

/// How many cores the run may use: what [`share_cores`] was told, or all that there are.
pub fn cores() -> usize {
    match CORES.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    }
}

/// The share of the [`cores`] that each of `replicas` has: at least one.
///
/// ```
/// assert_eq!(d2l::cores_each(1), d2l::cores());
/// assert_eq!(d2l::cores_each(100_000), 1);
/// ```
pub fn cores_each(replicas: usize) -> usize {
    (cores() / replicas.max(1)).max(1)
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
        to_device(&view.force_contiguous()?, device)
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

/// Gives each of `replicas` its share of the cores, and returns it: the operations of one
/// replica use that many threads. `threads` limits the cores of the whole run.
///
/// A process starts the threads on which `scratch` runs its replicas only once. A process that trains
/// several times calls this with the largest number of replicas first; otherwise the replicas of a
/// later run share too few threads.
///
/// ```
/// assert_eq!(d2l::share_cores(Some(4), 2), 2);
/// assert_eq!(d2l::share_cores(Some(2), 3), 1);
/// assert_eq!(d2l::cores(), 2);
/// ```
pub fn share_cores(threads: Option<usize>, replicas: usize) -> usize {
    functional::threads::leave_the_cores_to_us();
    CORES.store(threads.unwrap_or(0), Ordering::Relaxed);
    let share = cores_each(replicas);
    functional::threads::set_default(share);
    // a thread for each replica, as more would cost a tenth of LeNet's step; the threads within one
    // are `functional`'s
    let pool = rayon::ThreadPoolBuilder::new().num_threads(replicas.min(cores()));
    let pool = pool.thread_name(|i| format!("worker {i}"));
    let _ = pool.build_global();
    share
}

#[cfg(test)]
mod tests {
    use super::*;

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
