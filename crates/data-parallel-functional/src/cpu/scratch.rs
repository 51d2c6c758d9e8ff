//! Memory of each thread that one call leaves to the next.

use crate::cpu::budget::THREAD;
use crate::cpu::vector::{VECTOR as LINE, aligned};
use std::cell::Cell;

/// Calls `f` with buffers of these lengths for all tasks: floats of any value.
pub(crate) fn common<const N: usize>(lengths: [usize; N], f: impl FnOnce([&mut [f32]; N])) {
    THREAD.with(|thread| with(&thread.common, lengths, f))
}

/// Calls `f` with buffers of these lengths for one task: floats of any value.
pub(crate) fn own<const N: usize>(lengths: [usize; N], f: impl FnOnce([&mut [f32]; N])) {
    THREAD.with(|thread| with(&thread.own, lengths, f))
}

/// Each buffer begins with a line of the cache: half of the vectors would lie across two otherwise.
fn with<const N: usize>(
    cell: &Cell<Vec<f32>>,
    lengths: [usize; N],
    f: impl FnOnce([&mut [f32]; N]),
) {
    let lengths = lengths.map(|n| n.next_multiple_of(LINE));
    let total = lengths.iter().sum::<usize>() + LINE;
    // taken, not borrowed: a call inside `f` gets a new vector
    let mut memory = cell.take();
    if memory.len() < total {
        // the old one is worth nothing, so it is not copied
        memory = Vec::new();
        memory.resize(total, 0.);
    }
    let mut rest = aligned(&mut memory);
    f(lengths.map(|n| rest.split_off_mut(..n).expect("as long as the sum")));
    cell.set(memory);
}
