//! The thread budget: the number of threads that one operation may use. Cores are for replicas first: the budget starts
//! at 1, and a caller with spare cores raises it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest budget: more threads are a mistake, and would be started.
const MOST_THREADS: usize = 1024;

/// For threads that the caller does not start itself, such as rayon's.
static DEFAULT: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    /// Of this thread; without one, the default counts.
    static BUDGET: Cell<Option<usize>> = const { Cell::new(None) };
    static PASSES_AT_ONCE: Cell<usize> = const { Cell::new(1) };
}

/// Sets the number of threads that one operation may use, for every thread of the process without
/// a budget of its own. It is 1 until set; 0 counts as 1, and more than 1024 as 1024.
///
/// ```
/// data_parallel_devices::threads::set_default(2);
/// assert_eq!(data_parallel_devices::threads::budget(), 2);
/// ```
pub fn set_default(n: usize) {
    DEFAULT.store(n.clamp(1, MOST_THREADS), Ordering::Relaxed);
}

/// The number of threads that an operation called from this thread may use.
///
/// ```
/// assert_eq!(data_parallel_devices::threads::budget(), 1);
/// ```
pub fn budget() -> usize {
    BUDGET
        .get()
        .unwrap_or_else(|| DEFAULT.load(Ordering::Relaxed))
}

/// Sets the budget of this thread for as long as it lives; 0 counts as 1, and more than 1024 as 1024.
///
/// ```
/// data_parallel_devices::threads::set_budget(3);
/// assert_eq!(data_parallel_devices::threads::budget(), 3);
/// ```
pub fn set_budget(n: usize) {
    BUDGET.set(Some(n.clamp(1, MOST_THREADS)));
}

/// Runs `f` with a budget of `n` threads (0 counts as 1, and more than 1024 as 1024) for each operation called from this
/// thread; the budget before is restored afterwards, even if `f` panics.
///
/// `backward` computes on the thread that calls it, so put it inside as well.
///
/// ```
/// use data_parallel_devices::threads;
/// let inside = threads::with_budget(4, threads::budget);
/// assert_eq!((inside, threads::budget()), (4, 1));
/// assert_eq!(threads::with_budget(usize::MAX, threads::budget), 1024);
/// ```
pub fn with_budget<R>(n: usize, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(BUDGET.replace(Some(n.clamp(1, MOST_THREADS))));
    f()
}

/// The budget before.
struct Restore(Option<usize>);

impl Drop for Restore {
    fn drop(&mut self) {
        BUDGET.set(self.0);
    }
}

/// Tells this thread that `n` threads, this one among them, run backward passes of the same size at the same time. Then
/// a check of memory counts the memory of all of them. It is 1 until set.
pub fn set_passes_at_once(n: usize) {
    PASSES_AT_ONCE.set(n);
}

/// The number that [`set_passes_at_once`] set.
pub fn passes_at_once() -> usize {
    PASSES_AT_ONCE.get()
}
