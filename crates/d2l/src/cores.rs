//! How the cores are shared among the replicas.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Result, bail};

/// What [`share_cores`] was told; 0 is all. A static, because the cores are the process's, and so are rayon's threads.
static CORES: AtomicUsize = AtomicUsize::new(0);

/// How many cores the run may use: what [`share_cores`] was told, or all that there are.
pub fn cores() -> usize {
    match CORES.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        cores => cores,
    }
}

/// The share of the [`cores`] that each of `replicas` has: at least one.
///
/// ```
/// assert_eq!(d2l::cores_each(1), d2l::cores());
/// assert_eq!(d2l::cores_each(100_000), 1);
/// ```
pub fn cores_each(replicas: usize) -> usize {
    (cores() / replicas.max(1)).max(1)
}

/// Gives each of `replicas` its share of the cores, and returns it: the operations of one
/// replica use that many threads. `threads` limits the cores of the whole run; more than there are only wait for each
/// other, and are not used.
///
/// A process starts the threads on which `scratch` runs its replicas only once. A process that trains
/// several times calls this with the largest number of replicas first; otherwise the replicas of a
/// later run share too few threads.
///
/// ```
/// assert_eq!(d2l::share_cores(None, 1), d2l::cores());
/// assert_eq!(d2l::share_cores(Some(1), 3), 1);
/// assert_eq!(d2l::cores(), 1);
/// ```
///
/// # Panics
/// Where [`try_share_cores`] is an error.
pub fn share_cores(threads: Option<usize>, replicas: usize) -> usize {
    try_share_cores(threads, replicas).expect("threads can be started")
}

/// As [`share_cores`].
///
/// # Errors
/// If the system starts no more threads.
pub fn try_share_cores(threads: Option<usize>, replicas: usize) -> Result<usize> {
    functional::threads::leave_the_cores_to_us();
    CORES.store(0, Ordering::Relaxed);
    CORES.store(threads.map_or(0, |n| n.min(cores())), Ordering::Relaxed);
    let share = cores_each(replicas);
    functional::threads::set_default(share);
    // a thread for each replica, as more would cost a tenth of LeNet's step; the threads within one
    // are `functional`'s
    let pool = rayon::ThreadPoolBuilder::new().num_threads(replicas.min(cores()));
    let pool = pool.thread_name(|i| format!("worker {i}"));
    match pool.build_global() {
        // without a cause it says only that the threads are there already
        Err(error) if error.source().is_some() => bail!("a thread could not be started: {error}"),
        _ => Ok(share),
    }
}
