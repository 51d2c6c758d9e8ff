//! What fails, and where: a panic becomes an error, and an error names the device.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::{Device, DeviceLocation, Error, Result};

use crate::errors::{Context, wrap};

/// A panic that was caught, and what it said. It prints as `it panicked: index out of range`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(pub String);

impl Panicked {
    /// The panic with this payload, as a thread's `join` returns it.
    pub fn of(panic: &(dyn Any + Send)) -> Self {
        let owned = panic.downcast_ref::<String>().map(String::as_str);
        let text = owned.or_else(|| panic.downcast_ref::<&str>().copied());
        Self(text.unwrap_or("no message").to_owned())
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Self {
        wrap(panicked)
    }
}

/// Runs `f`, and returns its panic, if it panics.
///
/// ```
/// let panicked = devices::catch_panic(|| [1, 2][devices::cores() + 1]).unwrap_err();
/// assert!(panicked.to_string().starts_with("it panicked: index out of bounds"));
/// ```
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    let caught = panic::catch_unwind(AssertUnwindSafe(f));
    caught.map_err(|panic| Panicked::of(&*panic))
}

/// Runs `f`. If it panics, the panic is the error.
///
/// ```
/// let panics = devices::or_panic(|| -> candle_core::Result<()> { panic!("image 7 is broken") });
/// assert_eq!(panics.unwrap_err().to_string(), "it panicked: image 7 is broken");
/// ```
///
/// # Errors
/// Those of `f`, and its panic.
pub fn or_panic<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_panic(f).unwrap_or_else(|panicked| Err(panicked.into()))
}

/// Locks `mutex`, also if a thread has panicked while it had the lock: its panic is reported elsewhere.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many of [`quietly`] go on. A static, because a process has one panic hook, which is replaced once.
static QUIET: OnceLock<AtomicUsize> = OnceLock::new();

/// As [`catch_panic`]; what panics meanwhile, in whatever thread, is not shown: the caller reports it.
pub fn quietly<T>(f: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    let quiet = QUIET.get_or_init(|| {
        let show = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if QUIET.get().is_none_or(|quiet| quiet.load(SeqCst) == 0) {
                show(panic);
            }
        }));
        AtomicUsize::new(0)
    });
    quiet.fetch_add(1, SeqCst);
    let caught = catch_panic(f);
    quiet.fetch_sub(1, SeqCst);
    caught
}

/// The names of replicas' devices as they are printed: `[cuda(0), cuda(1)]`, `[cpu(0), cpu(1)]`.
///
/// A GPU's number is the GPU's; CPU replicas are counted.
///
/// ```
/// use candle_core::Device;
/// assert_eq!(devices::device_names(&[Device::Cpu, Device::Cpu]), "[cpu(0), cpu(1)]");
/// ```
pub fn device_names(devices: &[Device]) -> String {
    let replicas = devices.iter().enumerate();
    let names: Vec<String> = replicas.map(|(i, device)| device_name(i, device)).collect();
    format!("[{}]", names.join(", "))
}

/// The name of the device of replica `i`, as in [`device_names`].
///
/// ```
/// assert_eq!(devices::device_name(1, &candle_core::Device::Cpu), "cpu(1)");
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
/// let failed = devices::on_replica(1, &Device::Cpu, fails);
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
/// let failed = devices::on_devices("all-reduce", &[Device::Cpu, Device::Cpu], sum);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_may_be_within_quiet() {
        let outer: std::result::Result<(), Panicked> = quietly(|| {
            let inner = quietly(|| -> () { panic!("number {}", 1) });
            assert_eq!(inner.unwrap_err().0, "number 1");
            panic::panic_any(2)
        });
        let panicked = outer.unwrap_err();
        assert_eq!(panicked.to_string(), "it panicked: no message");
    }
}
