//! Panics: one becomes an error, or is not shown; a lock that a panic has left behind is still a lock, and what a thread
//! had for one call ends with it.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::LocalKey;

use candle_core::{Error, Result};

use crate::errors::wrap;

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
/// let panicked = data_parallel_devices::catch_panic(|| [1, 2][data_parallel_devices::cores() + 1]).unwrap_err();
/// assert!(panicked.to_string().starts_with("it panicked: index out of bounds"));
/// ```
pub fn catch_panic<T>(f: impl FnOnce() -> T) -> std::result::Result<T, Panicked> {
    panic::catch_unwind(AssertUnwindSafe(f)).map_err(|panic| Panicked::of(&*panic))
}

/// Runs `f`. If it panics, the panic is the error.
///
/// ```
/// let panics = data_parallel_devices::or_panic(|| -> candle_core::Result<()> { panic!("image 7 is broken") });
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

/// Runs `f` while this thread has `value` there. Afterwards, and after a panic, it has nothing there.
///
/// ```
/// use std::cell::RefCell;
/// thread_local!(static NAME: RefCell<Option<&'static str>> = const { RefCell::new(None) });
/// assert_eq!(data_parallel_devices::with_local(&NAME, "W1", || NAME.take()), Some("W1"));
/// ```
pub fn with_local<T, R>(
    local: &'static LocalKey<RefCell<Option<T>>>,
    value: T,
    f: impl FnOnce() -> R,
) -> R {
    struct Ends<T: 'static>(&'static LocalKey<RefCell<Option<T>>>);
    impl<T> Drop for Ends<T> {
        fn drop(&mut self) {
            self.0.set(None);
        }
    }
    local.set(Some(value));
    let _ends = Ends(local);
    f()
}

/// Number of calls of [`quietly`] in progress. A static, because a process has one panic hook, which is replaced once.
static QUIET: OnceLock<AtomicUsize> = OnceLock::new();

/// Like [`catch_panic`], but panics meanwhile, in whatever thread, are not shown: the caller reports them.
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
