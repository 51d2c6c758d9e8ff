//! How many threads one operation may use. Cores are for replicas first: the budget starts at 1, and a caller with
//! spare cores raises it.

use crate::cpu::thread_pool::Pool;
use candle_core::{Error, Result};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering};

/// For threads that the caller does not start itself, such as rayon's.
static DEFAULT: AtomicUsize = AtomicUsize::new(1);

/// What a thread keeps from one operation to the next.
pub(crate) struct Thread {
    /// None is the default.
    budget: Cell<Option<usize>>,
    /// How many threads run such passes as this one at the same time.
    pub together: Cell<usize>,
    /// The thread itself and its helpers, started when they are first needed.
    pub pool: RefCell<Pool>,
    /// Memory that the tasks of an operation share.
    pub common: Cell<Vec<f32>>,
    /// Memory of one task.
    pub own: Cell<Vec<f32>>,
}

thread_local! {
    pub(crate) static THREAD: Thread = Thread {
        budget: Cell::new(None),
        together: Cell::new(1),
        pool: RefCell::new(Pool::new(1, || ()).expect("it starts no thread")),
        common: Cell::default(),
        own: Cell::default(),
    };
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
    THREAD
        .with(|thread| thread.budget.get())
        .unwrap_or_else(|| DEFAULT.load(Ordering::Relaxed))
}

/// Says that so many threads run backward passes of the same size at the same time, this one among them: all of them
/// must find memory, or none begins. It is 1 until set.
pub fn set_together(n: usize) {
    THREAD.with(|thread| thread.together.set(n));
}

/// Makes `pool` this thread and its helpers, unless it is. A helper that runs a task starts no helpers of its own.
pub(crate) fn fill(pool: &mut Pool) -> Result<()> {
    let alone = || THREAD.with(|thread| thread.budget.set(Some(1)));
    if pool.size() != budget() {
        let failed = |error| Error::Msg(format!("a thread could not be started: {error}"));
        *pool = Pool::new(budget(), alone).map_err(failed)?;
    }
    Ok(())
}

/// Starts the helpers of this thread, unless they are there.
pub(crate) fn start_helpers() -> Result<()> {
    THREAD.with(|thread| match thread.pool.try_borrow_mut() {
        Ok(mut pool) if budget() > 1 => fill(&mut pool),
        _ => Ok(()),
    })
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
    let budget = Some(n.max(1));
    let _restore = Restore(THREAD.with(|thread| thread.budget.replace(budget)));
    f()
}

/// The budget before.
struct Restore(Option<usize>);

impl Drop for Restore {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.budget.set(self.0));
    }
}
