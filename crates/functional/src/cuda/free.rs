//! The free memory of a stream. What was in it stays in it.

use candle_core::cuda_backend::cudarc::driver::CudaSlice;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The free memory of a stream by size.
#[derive(Default)]
pub(crate) struct Free(Mutex<BTreeMap<usize, Vec<Piece>>>);

/// Memory with its address, which is asked for once: to ask is to record events.
pub(crate) struct Piece {
    pub memory: CudaSlice<f32>,
    pub address: u64,
}

impl Free {
    /// A piece of `len` f32 or up to twice as many.
    pub fn take(&self, len: usize) -> Option<Piece> {
        let mut free = self.lock();
        let size = *free.range(len..=2 * len).next()?.0;
        let of_size = free.get_mut(&size)?;
        let piece = of_size.pop();
        if of_size.is_empty() {
            free.remove(&size);
        }
        piece
    }

    pub fn give(&self, size: usize, piece: Piece) {
        self.lock().entry(size).or_default().push(piece);
    }

    /// Gives all of it back to the driver.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Piece>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
