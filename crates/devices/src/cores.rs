//! How the cores are shared among the replicas.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit of [`limit_cores`]; 0 is no limit. A static, because the cores belong to the process.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// The number of cores that this process may use: all of the machine, or fewer after [`limit_cores`].
pub fn cores() -> usize {
    match LIMIT.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        limit => limit,
    }
}

/// Limits the cores of this process; `None` takes the limit away. More than the machine has are not used, because
/// threads without a core only wait for each other.
///
/// ```
/// devices::limit_cores(Some(1));
/// assert_eq!(devices::cores(), 1);
/// devices::limit_cores(None);
/// ```
pub fn limit_cores(limit: Option<usize>) {
    LIMIT.store(0, Ordering::Relaxed);
    LIMIT.store(limit.map_or(0, |n| n.min(cores())), Ordering::Relaxed);
}

/// The share of the [`cores`] that each of `replicas` has: at least one.
///
/// ```
/// assert_eq!(devices::cores_each(1), devices::cores());
/// assert_eq!(devices::cores_each(100_000), 1);
/// ```
pub fn cores_each(replicas: usize) -> usize {
    (cores() / replicas.max(1)).max(1)
}
