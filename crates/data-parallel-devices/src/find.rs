//! Finds the devices for k replicas, by the rule of the [crate's page](crate).

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use candle_core::{Device, Error, Result};

use crate::ensure;
use crate::errors::wrap;
use crate::gpu::{self, NoGpu};
use crate::instructions::check_max_cpu_isa;

/// The kind of device for the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    /// GPUs if there are any, otherwise the CPU
    #[default]
    Auto,
    /// The CPU
    Cpu,
    /// GPUs; an error if CUDA cannot be used
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(kind: &str) -> Result<Self> {
        match kind {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => candle_core::bail!("there is no kind of device {kind:?}; give auto, cpu or cuda"),
        }
    }
}

/// GPU `i` if it exists, else the CPU ("GPUs").
///
/// ```
/// assert!(data_parallel_devices::try_gpu(1_000).is_cpu());
/// ```
pub fn try_gpu(i: usize) -> Device {
    gpu::open(i).unwrap_or(Device::Cpu)
}

/// All GPUs, or the CPU if there is none ("GPUs").
///
/// ```
/// assert!(!data_parallel_devices::try_all_gpus().is_empty());
/// ```
pub fn try_all_gpus() -> Vec<Device> {
    let (gpus, _) = open_gpus(usize::MAX);
    if gpus.is_empty() {
        return vec![Device::Cpu];
    }
    gpus
}

/// Devices for `k` replicas, by the rule of the crate's page: one GPU each, or GPUs shared in turn, or
/// the CPU k times.
///
/// ```
/// let devices = data_parallel_devices::devices(2)?;
/// assert_eq!(devices.len(), 2); // [cuda(0), cuda(1)], [cuda(0), cuda(0)] or [cpu(0), cpu(1)]
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `k` is 0, or the variable [`MAX_CPU_ISA`](crate::MAX_CPU_ISA) has no name of an instruction set. A GPU that cannot
/// be used counts as none; so do those after it.
pub fn devices(k: usize) -> Result<Vec<Device>> {
    devices_of_kind(DeviceKind::Auto, Some(k))
}

/// Like [`devices`], on the kind of device that is asked for; without `k` there is a replica for
/// each GPU, or one.
///
/// ```
/// let devices = data_parallel_devices::devices_of_kind(data_parallel_devices::DeviceKind::Cpu, Some(3))?;
/// assert_eq!(data_parallel_devices::device_names(&devices), "[cpu(0), cpu(1), cpu(2)]");
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// As [`devices`]; and if `kind` is [`DeviceKind::Cuda`] and CUDA cannot be used.
pub fn devices_of_kind(kind: DeviceKind, k: Option<usize>) -> Result<Vec<Device>> {
    Ok(find_devices(kind, k, None)?.0)
}

/// Like [`devices_of_kind`]; also returns a line for the user if an expected GPU is not among the devices.
///
/// `first` is the number of this process's first replica among those that share the machine, if there are several
/// processes. The replicas take its GPUs in order, and begin again at GPU 0 if there are too few.
///
/// # Errors
/// As [`devices_of_kind`].
pub fn find_devices(
    kind: DeviceKind,
    k: Option<usize>,
    first: Option<usize>,
) -> Result<(Vec<Device>, Option<String>)> {
    ensure!(k != Some(0), "the number of replicas is 0: give at least 1");
    check_max_cpu_isa()?;
    let (mut devices, missing) = match (kind, first) {
        (DeviceKind::Cpu, _) => (Vec::new(), None),
        (_, None) => open_gpus(k.unwrap_or(usize::MAX)),
        (_, Some(first)) => open_gpus_from(first, k.unwrap_or(1)),
    };
    let gpus = devices.len();
    let note = match missing {
        Some(why) if gpus == 0 && kind == DeviceKind::Cuda => return Err(wrap(why)),
        Some(why) => {
            let is_there = gpu::leaves_traces(Path::new("/")) && !gpu::are_hidden();
            note(gpus, &why, is_there)
        }
        None => None,
    };
    if gpus == 0 {
        return Ok((vec![Device::Cpu; k.unwrap_or(1)], note));
    }
    // a stream and handles of its own for each replica, also where two share a GPU
    for replica in gpus..k.unwrap_or(gpus) {
        devices.push(gpu::open(replica % gpus).map_err(wrap)?);
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
            (first + replica)
                .checked_rem(all.len())
                .map_or(Err(missing), gpu::open)
        }
        opened => opened,
    };
    match (0..k).map(open).collect::<std::result::Result<_, _>>() {
        Ok(gpus) => (gpus, None),
        Err(why) => (Vec::new(), Some(why)),
    }
}

/// A line about the first GPU that cannot be used, after `gpus` that can; `is_there` says whether the machine has one, for
/// programs that cannot ask.
fn note(gpus: usize, why: &NoGpu, is_there: bool) -> Option<String> {
    match (gpus, why) {
        (_, NoGpu::NotBuilt) if is_there => Some(format!(
            "training on the CPU, although this machine has an NVIDIA GPU: {why}"
        )),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_missed_is_told_of() {
        let failed = || NoGpu::Failed("no memory".into());
        let line = "training on the CPU: no memory";
        assert_eq!(note(0, &failed(), true).as_deref(), Some(line));
        let line = "training on the CPU, although this machine has an NVIDIA GPU: this program was built without \
                    CUDA; rebuild it with --features cuda";
        assert_eq!(note(0, &NoGpu::NotBuilt, true).as_deref(), Some(line));
        assert_eq!(note(0, &NoGpu::NotBuilt, false), None);
        assert_eq!(note(2, &NoGpu::NoDevice, true), None);
        let line = "GPU 1 and those after it are not used: no memory";
        assert_eq!(note(1, &failed(), true).as_deref(), Some(line));
    }

    #[test]
    fn no_replica_is_an_error() {
        assert!(devices(0).is_err());
    }
}
