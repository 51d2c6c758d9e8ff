//! How the cores are shared among the replicas.

use std::sync::atomic::{AtomicUsize, Ordering};

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
/// replica use that many threads. `threads` limits the cores of the whole run.
///
/// A process starts the threads on which `scratch` runs its replicas only once. A process that trains
/// several times calls this with the largest number of replicas first; otherwise the replicas of a
/// later run share too few threads.
///
/// ```
/// assert_eq!(d2l::share_cores(Some(4), 2), 2);
/// assert_eq!(d2l::share_cores(Some(2), 3), 1);
/// assert_eq!(d2l::cores(), 2);
/// ```
pub fn share_cores(threads: Option<usize>, replicas: usize) -> usize {
    functional::threads::leave_the_cores_to_us();
    CORES.store(threads.unwrap_or(0), Ordering::Relaxed);
    let share = cores_each(replicas);
    functional::threads::set_default(share);
    // a thread for each replica, as more would cost a tenth of LeNet's step; the threads within one
    // are `functional`'s
    let pool = rayon::ThreadPoolBuilder::new().num_threads(replicas.min(cores()));
    let pool = pool.thread_name(|i| format!("worker {i}"));
    let _ = pool.build_global();
    share
}
