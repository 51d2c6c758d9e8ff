//! Memory for floats that is used again: fresh pages cost more than most operations. What a dropped
//! buffer held stays in it, so a new one has arbitrary contents.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

/// The free memory by size. A step asks for the sizes that the step before gave back.
static FREE: Mutex<BTreeMap<usize, Vec<Vec<f32>>>> = Mutex::new(BTreeMap::new());

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
        // up to twice the size: the smaller batch at the end of an epoch needs no memory of its own
        let mut free = lock();
        let size = free.range(len..=2 * len).next().map(|(size, _)| *size);
        let floats = size.and_then(|size| {
            let of_size = free.get_mut(&size)?;
            let floats = of_size.pop();
            if of_size.is_empty() {
                free.remove(&size);
            }
            floats
        });
        drop(free);
        let mut buffer = Self {
            floats: floats.unwrap_or_else(|| vec![0.; len]),
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
            lock().entry(floats.len()).or_default().push(floats);
        }
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<usize, Vec<Vec<f32>>>> {
    FREE.lock().unwrap_or_else(|e| e.into_inner())
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
        let (again, other) = (Buffer::new(odd - 1000), Buffer::new(odd - 1000));
        assert_eq!(again.as_ptr(), address);
        assert_ne!(other.as_ptr(), address);
        assert_eq!(again.len(), odd - 1000);
    }
}
