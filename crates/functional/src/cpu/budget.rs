//! How many threads one operation may use. Cores are for replicas first: the budget starts at 1, and a caller with
//! spare cores raises it.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static DEFAULT: AtomicUsize = AtomicUsize::new(1);

thread_local! {
    static OVERRIDE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Sets the number of threads that one operation may use, for every thread of the process without
/// a budget of its own. It is 1 until set; 0 counts as 1.
///
/// ```
/// functional::threads::set_default(2);
/// assert_eq!(functional::threads::budget(), 2);
/// ```
pub fn set_default(n: usize) {
    DEFAULT.store(n.max(1), Ordering::Relaxed);
}

/// Tells candle to compute its own elementwise operations on the thread that calls them. It would
/// start a thread for each core, which look for work without rest while the replicas need the cores.
///
/// candle reads this once, from the environment variable `CANDLE_NUM_THREADS`. So it has to be
/// called before candle computes, and does nothing where the variable is set already, or where other
/// threads run that could read the environment meanwhile; nor outside Linux, where that cannot be
/// seen.
///
/// ```
/// functional::threads::leave_the_cores_to_us();
/// ```
pub fn leave_the_cores_to_us() {
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if alone && std::env::var_os("CANDLE_NUM_THREADS").is_none() {
        // Safety: there is no other thread that could read the environment meanwhile.
        unsafe { std::env::set_var("CANDLE_NUM_THREADS", "1") };
    }
}

/// The number of threads that an operation called from this thread may use.
///
/// ```
/// assert_eq!(functional::threads::budget(), 1);
/// ```
pub fn budget() -> usize {
    OVERRIDE
        .get()
        .unwrap_or_else(|| DEFAULT.load(Ordering::Relaxed))
}

/// Runs `f` with a budget of `n` threads (0 counts as 1) for each operation called from this
/// thread; the budget before is restored afterwards, even if `f` panics.
///
/// `backward` computes on the thread that calls it, so put it inside as well.
///
/// ```
/// use functional::threads;
/// let inside = threads::with_budget(4, threads::budget);
/// assert_eq!((inside, threads::budget()), (4, 1));
/// ```
pub fn with_budget<R>(n: usize, f: impl FnOnce() -> R) -> R {
    let _restore = Restore(OVERRIDE.replace(Some(n.max(1))));
    f()
}

/// The budget before.
struct Restore(Option<usize>);

impl Drop for Restore {
    fn drop(&mut self) {
        OVERRIDE.set(self.0);
    }
}
