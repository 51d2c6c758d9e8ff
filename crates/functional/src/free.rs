//! Free memory that is used again: fresh pages cost more than most operations.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The free memory by size. A step asks for the sizes that the step before gave back. What was in the memory
/// stays in it.
pub(crate) struct Free<T>(Mutex<BTreeMap<usize, Vec<T>>>);

impl<T> Free<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// A memory of `len` numbers, or up to twice as many: the smaller batch at the end of an epoch needs no
    /// memory of its own.
    pub fn take(&self, len: usize) -> Option<T> {
        let mut free = self.lock();
        let size = *free.range(len..=2 * len).next()?.0;
        let of_size = free.get_mut(&size)?;
        let memory = of_size.pop();
        if of_size.is_empty() {
            free.remove(&size);
        }
        memory
    }

    pub fn give(&self, size: usize, memory: T) {
        self.lock().entry(size).or_default().push(memory);
    }

    /// Drops all of it.
    #[cfg(feature = "cuda")]
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
