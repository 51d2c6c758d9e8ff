//! The cores of this process, which replicas take turns to use if there are more replicas than cores.
//!
//! Replicas come first, then operations: a replica has its share of the cores. It gives its core back while it waits
//! for the others, so more replicas than cores can meet.

use std::sync::{Condvar, Mutex, PoisonError};

use devices::lock;

/// The cores of this process: no more replicas run the network or take the step at a time than there
/// are.
pub(crate) struct Cores {
    free: Mutex<usize>,
    freed: Condvar,
    /// The threads that one replica may use.
    pub share: usize,
}

/// A core that a replica has; dropped, it is free again.
struct Core<'a>(&'a Cores);

impl Cores {
    pub fn new(replicas: usize) -> Self {
        Self {
            free: Mutex::new(devices::cores()),
            freed: Condvar::new(),
            share: devices::cores_each(replicas),
        }
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free.
    pub fn compute<T>(&self, f: impl FnOnce() -> T) -> T {
        self.take();
        let _core = Core(self);
        devices::threads::with_budget(self.share, f)
    }

    /// Runs `wait`, which waits for other replicas, within [`compute`](Self::compute): they may need
    /// the core.
    pub fn without<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.give();
        let _again = Again(self);
        wait()
    }

    fn take(&self) {
        let wait = self.freed.wait_while(lock(&self.free), |free| *free == 0);
        *wait.unwrap_or_else(PoisonError::into_inner) -= 1;
    }

    fn give(&self) {
        *lock(&self.free) += 1;
        self.freed.notify_one();
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        self.0.give();
    }
}

/// Waits for a core when it is dropped, also after a panic: the core that was given back is given back once.
struct Again<'a>(&'a Cores);

impl Drop for Again<'_> {
    fn drop(&mut self) {
        self.0.take();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_core_is_free_once_after_a_panic() {
        let cores = Cores::new(1);
        let free = *lock(&cores.free);
        let panics = || cores.compute(|| cores.without(|| panic!("on purpose")));
        catch_unwind(AssertUnwindSafe(panics)).expect_err("a panic");
        assert_eq!(*lock(&cores.free), free);
    }
}
