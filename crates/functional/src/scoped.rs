//! A thread-local value that holds while a closure runs. It is restored even if the closure panics.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `f` with the thread-local `key` set to `value`.
pub(crate) fn with<T, R>(key: &'static LocalKey<Cell<T>>, value: T, f: impl FnOnce() -> R) -> R
where
    T: Default + 'static,
{
    let _restore = Restore {
        key,
        before: key.replace(value),
    };
    f()
}

struct Restore<T: Default + 'static> {
    key: &'static LocalKey<Cell<T>>,
    before: T,
}

impl<T: Default + 'static> Drop for Restore<T> {
    fn drop(&mut self) {
        self.key.set(std::mem::take(&mut self.before));
    }
}
