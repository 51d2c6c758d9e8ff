//! The loops of an operation, on as many threads as [`budget`] says.
//!
//! The work of an operation is cut into tasks that depend on shapes only; threads share out the
//! tasks and never cut them differently. So the budget changes the time and never a bit of the
//! result.
//!
//! **How much work is in a task.** An operation should have 16 tasks or more, for as many cores, if each takes some
//! microseconds. So the gradient of a weight has at most 16 partial sums: each of them costs memory and time on any
//! number of cores. A linear layer is cut in rows and columns, and where these blocks are few and its sums long, in
//! partial sums (`gemm`). Winograd's panels become narrower where there are few tasks (`winograd`).

use crate::cpu::budget::{self, THREAD, budget};
use devices::vectorized;
use std::marker::PhantomData;

/// Calls `work(i)` for each `i` below `tasks`, on at most [`budget`] threads.
pub(crate) fn for_each(tasks: usize, work: impl Fn(usize) + Sync) {
    let threads = budget().min(tasks);
    if threads <= 1 {
        return (0..tasks).for_each(work);
    }
    THREAD.with(|thread| match thread.pool.try_borrow_mut() {
        Ok(mut pool) => {
            // where the system starts no more threads, those that are there do it
            let _ = budget::fill(&mut pool);
            pool.run(tasks, &work);
        }
        // a task that has tasks of its own
        Err(_) => (0..tasks).for_each(work),
    });
}

/// Calls `work(i, chunk)` for the i-th chunk of `chunk` elements of `out`; the last may be shorter.
/// Work that is marked `#[inline(always)]` is compiled for the processor's vector instructions.
pub(crate) fn for_each_chunk<T: Send>(
    out: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    for_each_chunk_with(
        out,
        chunk,
        [],
        #[inline(always)]
        |i, part, []| work(i, part),
    );
}

/// Like [`for_each_chunk`], with the i-th chunks of N other slices, each with the length of its chunks. All slices have
/// equally many.
pub(crate) fn for_each_chunk_with<T: Send, const N: usize>(
    out: &mut [T],
    chunk: usize,
    others: [(&mut [T], usize); N],
    work: impl Fn(usize, &mut [T], [&mut [T]; N]) + Sync,
) {
    let out = Chunks::new(out, chunk);
    let others = others.map(|(slice, chunk)| Chunks::new(slice, chunk));
    let tasks = out.count();
    assert!(
        others.iter().all(|other| other.count() == tasks),
        "chunks of all slices"
    );
    for_each(tasks, |i| {
        // Safety: task i alone has chunk i of each slice, and runs once.
        let part = unsafe { out.get(i) };
        // Safety: as above.
        let parts = others.each_ref().map(|other| unsafe { other.get(i) });
        vectorized(
            #[inline(always)]
            || work(i, part, parts),
        );
    });
}

/// A slice in chunks of equal length; the last may be shorter.
struct Chunks<'a, T> {
    all: Disjoint<'a, T>,
    chunk: usize,
}

impl<'a, T> Chunks<'a, T> {
    fn new(slice: &'a mut [T], chunk: usize) -> Self {
        Self {
            all: Disjoint::new(slice),
            chunk: chunk.max(1),
        }
    }

    fn count(&self) -> usize {
        self.all.len.div_ceil(self.chunk)
    }

    /// # Safety
    /// While a chunk lives, no caller may take it again.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for that")]
    unsafe fn get(&self, i: usize) -> &mut [T] {
        let first = i * self.chunk;
        // Safety: chunks do not overlap, and the caller takes each once.
        unsafe { self.all.part(first, self.chunk.min(self.all.len - first)) }
    }
}

/// A slice that several tasks write to, each a part of its own.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// Safety: a shared `Disjoint` gives access to elements only through `part`. Callers of `part` guarantee
// that live parts do not overlap. So only one thread at a time accesses an element, and `T: Send` suffices.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of an element, in or outside the slice.
    #[inline(always)]
    pub(crate) fn address(&self, i: usize) -> *const T {
        self.start.wrapping_add(i)
    }

    /// `len` elements from `first` on.
    ///
    /// # Safety
    /// While the returned part lives, no other live part may overlap it.
    ///
    /// # Panics
    /// Where they are out of range.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for that")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, first: usize, len: usize) -> &mut [T] {
        assert!(first <= self.len && len <= self.len - first);
        // Safety: the part lies in the slice, which is borrowed mutably for 'a. The caller guarantees that
        // no other live part overlaps it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}
