//! What an operation of an expression is on a GPU: the twin of [`crate::operation`], on addresses.

use super::memory::{Block, Floats};
use super::stream::Stream;
use candle_core::Result;

pub(crate) trait Operation: Send + Sync {
    /// Writes all of y, whose contents are arbitrary before. Returns what backward wants besides x
    /// and y; nothing is kept unless `keep`.
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, keep: bool) -> Result<Vec<Block>>;

    /// Hands each input that wants it its gradient. `dy` is complete and may be written over.
    fn backward(&self, stream: &Stream, at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()>;
}

/// Where backward happens: the inputs, the result, and what forward kept.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub x: &'a [Floats],
    pub y: Floats,
    pub kept: &'a [Block],
}

/// The gradient of one value, while it is being summed up.
#[derive(Default)]
pub(crate) enum Grad {
    /// Nobody wants it.
    #[default]
    Unwanted,
    /// Wanted, so many elements, and nothing there yet.
    Empty(usize),
    Block(Block),
    /// It belongs there, where a part of it may be already.
    Place {
        to: Floats,
        written: bool,
    },
}

impl Grad {
    pub fn wanted(&self) -> bool {
        !matches!(self, Grad::Unwanted)
    }

    /// Where to write it, and whether to add to what is there.
    ///
    /// # Panics
    /// Where it is unwanted.
    pub fn target(&mut self, stream: &Stream) -> Result<(Floats, bool)> {
        if let Grad::Empty(len) = self {
            let block = Block::new(stream, *len)?;
            let to = block.floats();
            *self = Grad::Block(block);
            return Ok((to, false));
        }
        Ok(match self {
            Grad::Block(block) => (block.floats(), true),
            Grad::Place { to, written } => (*to, std::mem::replace(written, true)),
            _ => panic!("a gradient that nobody wants"),
        })
    }

    /// Adds nothing.
    pub fn zero(&mut self, stream: &Stream) -> Result<()> {
        match self.target(stream)? {
            (_, true) => Ok(()),
            (to, false) => stream.fill(to, 0.),
        }
    }

    /// Adds `part`, or takes it for its own where there is nothing yet.
    pub fn give(&mut self, stream: &Stream, part: Block) -> Result<()> {
        match self {
            Grad::Empty(_) => *self = Grad::Block(part),
            _ => self.add(stream, part.floats())?,
        }
        Ok(())
    }

    /// Adds `part` where it is wanted; who has no use for it afterwards had better give it.
    pub fn add(&mut self, stream: &Stream, part: Floats) -> Result<()> {
        if !self.wanted() {
            return Ok(());
        }
        let (to, add) = self.target(stream)?;
        stream.put(part, to, add)
    }
}
