//! Memory on a GPU that is used again: as [`crate::cpu::buffer`] on the CPU. What a dropped block held stays in
//! it, so a new one has arbitrary contents.

use super::stream::Stream;
use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What the numbers in a GPU's memory are; all are computed with in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Element {
    #[default]
    F32,
    Bf16,
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Element::F32 => size_of::<f32>(),
            Element::Bf16 => size_of::<u16>(),
        }
    }

    /// The kernel of that name for such numbers.
    pub fn kernel(self, name: &'static str) -> Kernel {
        Kernel(self, name)
    }
}

/// A kernel's name, and what it calls `real`.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(pub Element, pub &'static str);

/// A kernel that takes nothing but f32.
impl From<&'static str> for Kernel {
    fn from(name: &'static str) -> Self {
        Kernel(Element::F32, name)
    }
}

/// `len` floating-point numbers at an address on a GPU. It owns no memory: the code that makes one keeps the
/// memory valid until the stream has finished its last use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats {
    pub address: u64,
    pub len: usize,
    pub element: Element,
}

impl Floats {
    /// Of f32, as all tensors are.
    pub fn new(address: u64, len: usize) -> Self {
        let element = Element::F32;
        Self {
            address,
            len,
            element,
        }
    }

    /// Whether they begin at a multiple of 16 bytes, where four can be read at once.
    pub fn are_aligned(self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// `len` of them from `first` on.
    pub fn at(self, first: usize, len: usize) -> Self {
        assert!(first + len <= self.len, "floats beyond the end");
        let address = self.address + (first * self.element.bytes()) as u64;
        Self {
            address,
            len,
            ..self
        }
    }

    /// The kernel of that name for these.
    pub fn kernel(self, name: &'static str) -> Kernel {
        self.element.kernel(name)
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
    /// A piece of `len` f32 or up to twice as many.
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
    /// `len` f32 of any value: the caller writes them before it reads them.
    ///
    /// # Errors
    /// Where the GPU has no memory left.
    pub fn new(stream: &Stream, len: usize) -> Result<Self> {
        Self::of(Element::F32, stream, len)
    }

    /// As [`new`](Self::new), of any type; the memory is that of f32.
    pub fn of(element: Element, stream: &Stream, len: usize) -> Result<Self> {
        let size = (len * element.bytes()).div_ceil(size_of::<f32>()).max(1);
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
                element,
            },
            piece: Some(piece),
            free: stream.free.clone(),
        })
    }

    pub fn floats(&self) -> Floats {
        self.floats
    }

    /// The same as f32: a copy only where it was not.
    pub fn widened(self, stream: &Stream) -> Result<Self> {
        if self.floats.element == Element::F32 {
            return Ok(self);
        }
        let wide = Self::new(stream, self.floats.len)?;
        stream.copy(self.floats, wide.floats)?;
        Ok(wide)
    }

    /// The memory itself, f32, which is exactly as long as the block and belongs to the caller now.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn into_slice(mut self, stream: &Stream) -> Result<CudaSlice<f32>> {
        let is_exact = self.size == self.floats.len && self.floats.element == Element::F32;
        let mut exact = match self.piece.take_if(|_| is_exact) {
            Some(piece) => piece.memory,
            None => {
                let exact = stream.alloc(self.floats.len)?;
                let address = exact.device_ptr(stream.cuda()).0;
                stream.copy(self.floats, Floats::new(address, self.floats.len))?;
                exact
            }
        };
        // records the writes so far as an event: a reader on another stream waits for it
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
