//! Free memory that is used again: fresh pages cost more than most operations.

use devices::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The free memory by size. A step asks for the sizes that the step before gave back. The memory keeps its contents.
pub(crate) struct Free<T>(Mutex<State<T>>);

struct State<T> {
    /// Each memory with the pass in which it was given back.
    by_size: BTreeMap<usize, Vec<(usize, T)>>,
    pass: usize,
}

/// Memory that was not used during this many passes is dropped.
#[cfg(feature = "cuda")]
const PASSES: usize = 64;

impl<T> Free<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(State {
            by_size: BTreeMap::new(),
            pass: 0,
        }))
    }

    /// A memory of `len` numbers, or up to twice as many: the smaller batch at the end of an epoch needs no
    /// memory of its own.
    pub fn take(&self, len: usize) -> Option<T> {
        let free = &mut lock(&self.0).by_size;
        let size = *free.range(len..=2 * len).next()?.0;
        let of_size = free.get_mut(&size)?;
        let memory = of_size.pop();
        if of_size.is_empty() {
            free.remove(&size);
        }
        memory.map(|(_, memory)| memory)
    }

    pub fn give(&self, size: usize, memory: T) {
        let mut state = lock(&self.0);
        let pass = state.pass;
        state.by_size.entry(size).or_default().push((pass, memory));
    }

    /// Begins a pass, and drops the memory that the last passes did not use.
    #[cfg(feature = "cuda")]
    pub fn begin_pass(&self) {
        let mut state = lock(&self.0);
        state.pass += 1;
        if state.pass.is_multiple_of(PASSES) {
            let first = state.pass - PASSES;
            let used = |(pass, _): &(usize, T)| *pass >= first;
            state.by_size.values_mut().for_each(|all| all.retain(used));
            state.by_size.retain(|_, all| !all.is_empty());
        }
    }

    /// Drops all of it, and returns its number of elements.
    pub fn clear(&self) -> usize {
        let free = std::mem::take(&mut lock(&self.0).by_size);
        free.iter().map(|(size, all)| size * all.len()).sum()
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    /// Two pieces of a size, of which each pass uses one.
    #[test]
    fn what_passes_do_not_use_is_dropped() {
        let free = Free::new();
        free.give(10, "unused");
        free.give(10, "used");
        for _ in 0..2 * PASSES {
            free.begin_pass();
            assert_eq!(free.take(10), Some("used"));
            free.give(10, "used");
        }
        assert_eq!(free.take(10), Some("used"));
        assert_eq!(free.take(10), None);
    }
}
