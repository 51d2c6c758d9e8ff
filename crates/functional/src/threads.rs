//! How many threads one operation may use, and the one loop that uses them.
//!
//! The work of an operation is cut into chunks that depend on shapes only; threads share out the
//! chunks and never cut them differently. So the budget changes the time and never a bit of the
//! result. Replicas come first: the budget starts at 1, and whoever has cores to spare raises it.

use crate::scoped;
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
    scoped::with(&OVERRIDE, Some(n.max(1)), f)
}

/// Calls `work(i, chunk)` for the i-th chunk of `chunk` elements of `out` (the last may be
/// shorter), on at most [`budget`] threads, each with a contiguous range of chunks.
///
/// With a budget of 1 everything runs on the calling thread: replicas on threads of their own must
/// not meet in rayon's pool.
pub(crate) fn for_each_chunk(
    out: &mut [f32],
    chunk: usize,
    work: impl Fn(usize, &mut [f32]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let chunks = out.len().div_ceil(chunk);
    let per_task = chunks.div_ceil(budget());
    if per_task == chunks {
        return run(out, chunk, 0, &work);
    }
    let work = &work;
    rayon::scope(|scope| {
        for (task, part) in out.chunks_mut(per_task * chunk).enumerate() {
            scope.spawn(move |_| run(part, chunk, task * per_task, work));
        }
    });
}

fn run(part: &mut [f32], chunk: usize, first: usize, work: &impl Fn(usize, &mut [f32])) {
    for (i, chunk) in part.chunks_mut(chunk).enumerate() {
        work(first + i, chunk);
    }
}
