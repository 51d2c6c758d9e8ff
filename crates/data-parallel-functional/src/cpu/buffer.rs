//! Memory for floats that is used again. What a dropped buffer held stays in it, so a new one has arbitrary
//! contents.

use crate::memory::free::Free;
use crate::memory::limits::check;
use candle_core::Result;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of all threads together: a buffer may be dropped on another thread than the one that asked for it.
static FREE: Free<Vec<f32>> = Free::new();

/// Of all threads together: the floats of all buffers, free or not; and the most that were needed so far, for which
/// there was room.
static FLOATS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// An error if the machine has no room for a pass that needs `floats` floats, and for those of other threads at the
/// same time. It is asked only where more is needed than ever before.
pub(crate) fn check_room(floats: usize) -> Result<()> {
    let [all, most] = &FLOATS;
    let needed = floats * devices::threads::passes_at_once();
    if needed > most.load(Relaxed) {
        check("a step", needed, || all.load(Relaxed))?;
        most.fetch_max(needed, Relaxed);
    }
    Ok(())
}

/// Frees the memory of the CPU that is kept for the next pass, as PyTorch's `torch.cuda.empty_cache` does on a GPU. A GPU
/// here gives such memory back by itself when it has no other left. Call it while no forward or backward pass runs.
///
/// ```
/// data_parallel_functional::empty_cache();
/// ```
pub fn empty_cache() {
    FLOATS[0].fetch_sub(FREE.clear(), Relaxed);
    FLOATS[1].store(0, Relaxed); // another program may take the memory: ask again
}

/// `len` floats; dropped, they go back to where they came from.
#[derive(Default)]
pub(crate) struct Buffer {
    floats: Vec<f32>,
    len: usize,
}

impl Buffer {
    /// `len` floats of any value: the caller writes them before it reads them.
    pub(crate) fn new(len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let floats = FREE.take(len);
        let mut buffer = Self {
            floats: floats.unwrap_or_else(|| {
                FLOATS[0].fetch_add(len, Relaxed);
                vec![0.; len]
            }),
            len,
        };
        if cfg!(test) {
            buffer.fill(f32::NAN); // a read before the first write gives NaN
        }
        buffer
    }

    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let mut buffer = Self::new(len);
        buffer.fill(0.);
        buffer
    }

    /// The floats themselves, which do not come back.
    pub(crate) fn into_vec(mut self) -> Vec<f32> {
        let mut floats = std::mem::take(&mut self.floats);
        FLOATS[0].fetch_sub(floats.len(), Relaxed);
        floats.truncate(self.len);
        floats
    }

    /// A copy of `floats`.
    pub(crate) fn copy_of(floats: &[f32]) -> Self {
        let mut buffer = Self::new(floats.len());
        buffer.copy_from_slice(floats);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.floats[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let floats = std::mem::take(&mut self.floats);
        if !floats.is_empty() {
            FREE.give(floats.len(), floats);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_is_used_again_and_never_twice() {
        let odd = 1_234_567; // no other test asks for it
        let first = Buffer::new(odd);
        let address = first.as_ptr();
        drop(first);
        let again = Buffer::new(odd - 1000);
        let other = Buffer::new(odd - 1000);
        assert_eq!(again.as_ptr(), address);
        assert_ne!(other.as_ptr(), address);
        assert_eq!(again.len(), odd - 1000);
    }
}
