//! Memory on a GPU that is used again: as [`crate::cpu::buffer`] on the CPU. What a dropped block held stays in
//! it, so a new one has arbitrary contents.

use super::alloc::{Piece, Pool, alloc};
use super::floats::{Element, Floats};
use super::stream::Stream;
use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};

/// Floats on a GPU; dropped, they go back to where they came from. A later block may have the memory at
/// once: the stream keeps the order.
pub(crate) struct Block {
    piece: Option<Piece>,
    floats: Floats,
    free: Pool,
}

impl Block {
    /// `len` f32 of any value: the caller writes them before it reads them.
    ///
    /// # Errors
    /// Where the GPU has no memory left.
    pub fn new(stream: &Stream, len: usize) -> Result<Self> {
        Self::of(Element::F32, stream, len)
    }

    /// Like [`new`](Self::new), of any type; the memory is that of f32.
    pub fn of(element: Element, stream: &Stream, len: usize) -> Result<Self> {
        let size = (len * element.bytes()).div_ceil(size_of::<f32>()).max(1);
        let piece = match stream.free.take(size) {
            Some(piece) => piece,
            None => {
                let memory = alloc::<f32>(stream.cuda(), size)?;
                let address = memory.device_ptr(stream.cuda()).0;
                Piece { memory, address }
            }
        };
        Ok(Self {
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
        let Floats { len, element, .. } = self.floats;
        let is_exact = |piece: &mut Piece| piece.memory.len() == len && element == Element::F32;
        match self.piece.take_if(is_exact) {
            Some(piece) => Ok(piece.memory),
            None => {
                let exact = alloc::<f32>(stream.cuda(), len)?;
                let address = exact.device_ptr(stream.cuda()).0;
                stream.copy(self.floats, Floats::new(address, len))?;
                Ok(exact)
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.free.give(piece.memory.len(), piece);
        }
    }
}
