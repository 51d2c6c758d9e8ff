//! Memory on a GPU that is used again: the twin of [`crate::buffer`]. What a dropped block held stays in
//! it, so a new one has arbitrary contents.

use super::stream::Stream;
use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// `len` floats on a GPU, by their address. It owns nothing: whoever makes one sees to it that the
/// memory is there until the stream has come to its last use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats {
    pub address: u64,
    pub len: usize,
}

impl Floats {
    /// Whether they begin at a multiple of 16 bytes, where four can be read at once.
    pub fn are_aligned(self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// `len` of them from `first` on.
    pub fn at(self, first: usize, len: usize) -> Self {
        assert!(first + len <= self.len, "floats beyond the end");
        let address = self.address + (first * size_of::<f32>()) as u64;
        Self { address, len }
    }
}

/// The free memory of a stream by size.
#[derive(Default)]
pub(crate) struct Free(Mutex<BTreeMap<usize, Vec<Piece>>>);

/// Memory with its address, which is asked for once: to ask is to record events.
struct Piece {
    memory: CudaSlice<f32>,
    address: u64,
}

impl Free {
    /// A piece of `len` floats or up to twice as many.
    fn take(&self, len: usize) -> Option<Piece> {
        let mut free = self.lock();
        let size = *free.range(len..=2 * len).next()?.0;
        let of_size = free.get_mut(&size)?;
        let piece = of_size.pop();
        if of_size.is_empty() {
            free.remove(&size);
        }
        piece
    }

    fn give(&self, size: usize, piece: Piece) {
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

/// Floats on a GPU; dropped, they go back to where they came from. A later block may have the memory at
/// once: the stream keeps the order.
pub(crate) struct Block {
    piece: Option<Piece>,
    size: usize,
    floats: Floats,
    free: Arc<Free>,
}

impl Block {
    /// `len` floats of any value: whoever takes them writes before reading.
    ///
    /// # Errors
    /// Where the GPU has no memory left.
    pub fn new(stream: &Stream, len: usize) -> Result<Self> {
        let size = len.max(1);
        let piece = match stream.free.take(size) {
            Some(piece) => piece,
            None => {
                let memory = stream.alloc(size)?;
                let address = memory.device_ptr(stream.cuda()).0;
                Piece { memory, address }
            }
        };
        Ok(Self {
            size: piece.memory.num_bytes() / size_of::<f32>(),
            floats: Floats {
                address: piece.address,
                len,
            },
            piece: Some(piece),
            free: stream.free.clone(),
        })
    }

    pub fn floats(&self) -> Floats {
        self.floats
    }

    /// The memory itself, which is exactly as long as the block and belongs to the caller now.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn into_slice(mut self, stream: &Stream) -> Result<CudaSlice<f32>> {
        let mut exact = match self.piece.take_if(|_| self.size == self.floats.len) {
            Some(piece) => piece.memory,
            None => {
                let exact = stream.alloc(self.floats.len)?;
                let address = exact.device_ptr(stream.cuda()).0;
                let len = self.floats.len;
                stream.copy(self.floats, Floats { address, len })?;
                exact
            }
        };
        // records that it was written up to here, for who reads it on another stream
        drop(exact.device_ptr_mut(stream.cuda()));
        Ok(exact)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.free.give(self.size, piece);
        }
    }
}
