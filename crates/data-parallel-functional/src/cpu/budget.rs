//! The threads of an operation: those of `devices::threads`, and what each thread keeps from one operation to the next.

use crate::cpu::thread_pool::Pool;
use candle_core::{Error, Result};
use std::cell::{Cell, RefCell};

pub use devices::threads::*;

/// The state of a thread from one operation to the next.
pub(crate) struct Thread {
    /// The thread itself and its helpers, started when they are first needed.
    pub pool: RefCell<Pool>,
    /// Memory that the tasks of an operation share.
    pub common: Cell<Vec<f32>>,
    /// Memory of one task.
    pub own: Cell<Vec<f32>>,
}

thread_local! {
    pub(crate) static THREAD: Thread = Thread {
        pool: RefCell::new(Pool::new(1, || ()).expect("it starts no thread")),
        common: Cell::default(),
        own: Cell::default(),
    };
}

/// Tells candle to compute its own elementwise operations on the thread that calls them. It would
/// start a thread for each core, which look for work without rest while the replicas need the cores.
///
/// candle reads this once, from the environment variable `CANDLE_NUM_THREADS`. So it has to be
/// called before candle computes, and does nothing where the variable is set already, or where other
/// threads run that could read the environment meanwhile; nor outside Linux, where that cannot be
/// seen. Returns whether the variable is set now.
///
/// ```
/// data_parallel_functional::threads::leave_the_cores_to_us();
/// ```
pub fn leave_the_cores_to_us() -> bool {
    let is_set = std::env::var_os(CANDLE_THREADS).is_some();
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    if alone && !is_set {
        // Safety: there is no other thread that could read the environment meanwhile.
        unsafe { std::env::set_var(CANDLE_THREADS, "1") };
    }
    is_set || alone
}

const CANDLE_THREADS: &str = "CANDLE_NUM_THREADS";

/// Makes `pool` this thread and its helpers, unless it is. A helper that runs a task starts no helpers of its own.
pub(crate) fn fill(pool: &mut Pool) -> Result<()> {
    if pool.size() != budget() {
        let failed = |error| Error::Msg(format!("a thread could not be started: {error}"));
        *pool = Pool::new(budget(), || set_budget(1)).map_err(failed)?;
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
