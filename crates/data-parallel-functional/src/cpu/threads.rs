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
        [],
        chunk,
        #[inline(always)]
        |i, part, []| work(i, part),
    );
}

/// Like [`for_each_chunk`], with the same elements of N other slices of its length.
pub(crate) fn for_each_chunk_with<T: Send, const N: usize>(
    out: &mut [T],
    others: [&mut [T]; N],
    chunk: usize,
    work: impl Fn(usize, &mut [T], [&mut [T]; N]) + Sync,
) {
    assert!(others.iter().all(|other| other.len() == out.len()));
    let chunk = chunk.max(1);
    let out = Disjoint::new(out);
    let others = others.map(Disjoint::new);
    for_each(out.len().div_ceil(chunk), |i| {
        let len = chunk.min(out.len() - i * chunk);
        // Safety: task i alone has the elements from i * chunk to (i + 1) * chunk of each slice, and runs once.
        let part = unsafe { out.part(i * chunk, len) };
        // Safety: as above.
        let parts = others
            .each_ref()
            .map(|other| unsafe { other.part(i * chunk, len) });
        vectorized(
            #[inline(always)]
            || work(i, part, parts),
        );
    });
}

/// A slice, of which each task gets one chunk of this many elements; the last one may have fewer.
pub(crate) struct InChunks<'a> {
    pub data: &'a mut [f32],
    pub chunk: usize,
}

/// Like [`for_each_chunk`] over two slices of equally many chunks.
pub(crate) fn for_each_chunk_of_two(
    a: InChunks<'_>,
    b: InChunks<'_>,
    work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let chunk_a = a.chunk.max(1);
    let chunk_b = b.chunk.max(1);
    let chunks = a.data.len().div_ceil(chunk_a);
    let of_b = b.data.len().div_ceil(chunk_b);
    assert_eq!(chunks, of_b, "chunks of two slices");
    let all_of_a = Disjoint::new(a.data);
    let all_of_b = Disjoint::new(b.data);
    for_each(chunks, |i| {
        let len = |all: usize, chunk: usize| chunk.min(all - i * chunk);
        // Safety: as in `for_each_chunk_with`, in each of the two slices.
        let a = unsafe { all_of_a.part(i * chunk_a, len(all_of_a.len(), chunk_a)) };
        // Safety: as above.
        let b = unsafe { all_of_b.part(i * chunk_b, len(all_of_b.len(), chunk_b)) };
        vectorized(
            #[inline(always)]
            || work(i, a, b),
        );
    });
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
