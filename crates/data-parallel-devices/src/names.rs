//! The names of replicas' devices, which an error on a replica has.

use candle_core::{Device, DeviceLocation, Result};

use crate::errors::Context;
use crate::panics::or_panic;

/// The names of replicas' devices as they are printed: `[cuda(0), cuda(1)]`, `[cpu(0), cpu(1)]`.
///
/// A GPU's number is the GPU's; CPU replicas are counted.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(data_parallel_devices::device_names(&[Device::Cpu, Device::Cpu]), "[cpu(0), cpu(1)]");
/// ```
pub fn device_names(devices: &[Device]) -> String {
    let names: Vec<String> = devices
        .iter()
        .enumerate()
        .map(|(i, device)| device_name(i, device))
        .collect();
    format!("[{}]", names.join(", "))
}

/// The name of the device of replica `i`, as in [`device_names`].
///
/// ```
/// assert_eq!(data_parallel_devices::device_name(1, &candle_core::Device::Cpu), "cpu(1)");
/// ```
pub fn device_name(i: usize, device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => format!("cuda({gpu_id})"),
        DeviceLocation::Metal { gpu_id } => format!("metal({gpu_id})"),
        DeviceLocation::Cpu => format!("cpu({i})"),
    }
}

/// Runs the part of replica `i`, on its `device`: where it fails or panics, the error names it. It is in a
/// span `replica` with the device's name, so that a timeline can show what this replica does.
///
/// ```
/// use candle_core::{Device, Result, bail};
///
/// let fails = || -> Result<()> { bail!("no memory") };
/// let failed = data_parallel_devices::on_replica(1, &Device::Cpu, fails);
/// assert!(failed.unwrap_err().to_string().starts_with("replica cpu(1): no memory"));
/// ```
///
/// # Errors
/// As `f`.
pub fn on_replica<T>(i: usize, device: &Device, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let name = || device_name(i, device);
    let _replica = tracing::info_span!("replica", name = %name()).entered();
    named(|| format!("replica {}", name()), f)
}

/// Runs `what` all `devices` have a part in: where it fails or panics, the error says so.
///
/// ```
/// use candle_core::{Device, Result};
///
/// let sum = || -> Result<()> { panic!("there is no sum") };
/// let failed = data_parallel_devices::on_devices("all-reduce", &[Device::Cpu, Device::Cpu], sum);
/// let line = "all-reduce on [cpu(0), cpu(1)]: it panicked: there is no sum";
/// assert_eq!(failed.unwrap_err().to_string(), line);
/// ```
///
/// # Errors
/// As `f`.
pub fn on_devices<T>(what: &str, devices: &[Device], f: impl FnOnce() -> Result<T>) -> Result<T> {
    named(|| format!("{what} on {}", device_names(devices)), f)
}

fn named<T>(name: impl Fn() -> String, f: impl FnOnce() -> Result<T>) -> Result<T> {
    or_panic(f).with_context(name)
}
