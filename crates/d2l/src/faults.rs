//! What fails, and where: a panic becomes an error, and an error names the device.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use candle_core::{Device, Error, Result};
use rayon::prelude::*;

use crate::{barrier, device_name, device_names};

/// A panic that was caught: `it panicked: index out of range`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(String);

impl Panicked {
    /// What the panic said.
    pub fn message(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}

/// Runs `f`, and returns its panic, if it panics.
///
/// ```
/// let panicked = d2l::catch_panic(|| [1, 2][d2l::cores() + 1]).unwrap_err();
/// assert!(panicked.to_string().starts_with("it panicked: index out of bounds"));
/// ```
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    let caught = panic::catch_unwind(AssertUnwindSafe(f));
    caught.map_err(|panic| Panicked(message(&*panic)))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_owned()
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

/// Runs the part of replica `i`, on its `device`: where it fails or panics, the error names it. It is in a
/// span `replica` with the device's name, so that a timeline can show what this replica does.
///
/// ```
/// use candle_core::{Device, Result, bail};
///
/// let fails = || -> Result<()> { bail!("no memory") };
/// let failed = d2l::on_replica(1, &Device::Cpu, fails);
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
/// let failed = d2l::on_devices("all-reduce", &[Device::Cpu, Device::Cpu], sum);
/// let line = "all-reduce on [cpu(0), cpu(1)]: it panicked: there is no sum";
/// assert_eq!(failed.unwrap_err().to_string(), line);
/// ```
///
/// # Errors
/// As `f`.
pub fn on_devices<T>(what: &str, devices: &[Device], f: impl FnOnce() -> Result<T>) -> Result<T> {
    named(|| format!("{what} on {}", device_names(devices)), f)
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
        candle_core::bail!("{} items for {k} devices; give one for each", items.len());
    }
    barrier(devices)?;
    let replica = |(i, item)| on_replica(i, &devices[i], || f(item));
    items.enumerate().map(replica).collect()
}

fn named<T>(name: impl Fn() -> String, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // a new error, since candle's own `context` takes a line for each
    let fault = |fault: &dyn fmt::Display| Error::Msg(format!("{}: {fault}", name()));
    match catch_panic(f) {
        Ok(result) => result.map_err(|error| fault(&error)),
        Err(panicked) => Err(fault(&panicked)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_may_be_within_quiet() {
        let outer: std::result::Result<(), Panicked> = quietly(|| {
            let inner = quietly(|| -> () { panic!("number {}", 1) });
            assert_eq!(inner.unwrap_err().message(), "number 1");
            panic::panic_any(2)
        });
        let panicked = outer.unwrap_err();
        assert_eq!(panicked.to_string(), "it panicked: no message");
    }
}
