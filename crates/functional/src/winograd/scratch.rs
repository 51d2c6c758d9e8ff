//! Memory of a thread's that one call leaves to the next, and an output that threads share.

use super::kernel::LINE;
use std::cell::Cell;
use std::marker::PhantomData;
use std::thread::LocalKey;

thread_local! {
    /// What the tasks of a call share, on the thread that makes the call.
    static COMMON: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// What one task needs for itself.
    static OWN: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with buffers of these lengths for all tasks: floats of any value.
pub(super) fn common<const N: usize, R>(
    lengths: [usize; N],
    f: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    with(&COMMON, lengths, f)
}

/// Calls `f` with buffers of these lengths for one task: floats of any value.
pub(super) fn own<const N: usize, R>(
    lengths: [usize; N],
    f: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    with(&OWN, lengths, f)
}

/// Each buffer begins with a line of the cache: half of the vectors would lie across two otherwise.
fn with<const N: usize, R>(
    key: &'static LocalKey<Cell<Vec<f32>>>,
    lengths: [usize; N],
    f: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    let lengths = lengths.map(|n| n.next_multiple_of(LINE));
    let total = lengths.iter().sum::<usize>() + LINE;
    // taken, not borrowed: whoever asks again meanwhile gets a new one
    let mut memory = key.take();
    if memory.len() < total {
        // the old one is worth nothing, so it is not copied
        memory = Vec::new();
        memory.resize(total, 0.);
    }
    let offset = memory.as_ptr().align_offset(64).min(LINE);
    let mut rest = &mut memory[offset..];
    let buffers = lengths.map(|n| rest.split_off_mut(..n).expect("as long as the sum"));
    let result = f(buffers);
    key.set(memory);
    result
}

/// A slice that several threads write, each elsewhere.
pub(super) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// Safety: it hands out parts only to callers that promise not to share them.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(super) fn new(slice: &'a mut [f32]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// Where an element would be, in or outside the slice.
    #[inline(always)]
    pub(super) fn address(&self, i: usize) -> *const f32 {
        self.start.wrapping_add(i)
    }

    /// # Safety
    /// While the part lives, nobody else may have a part with any of its elements.
    ///
    /// # Panics
    /// Where it would reach beyond the slice.
    #[expect(clippy::mut_from_ref, reason = "the caller answers for that")]
    #[inline(always)]
    pub(super) unsafe fn part(&self, first: usize, len: usize) -> &mut [f32] {
        assert!(first <= self.len && len <= self.len - first);
        // Safety: in the slice, which is borrowed mutably for 'a, and the caller's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}
