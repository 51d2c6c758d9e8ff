//! The arguments of kernels on a GPU, which are addresses; and how a gradient is written or added there.

use super::floats::Floats;
use super::memory::Block;
use super::stream::Stream;
use crate::kernel;
use candle_core::Result;

/// An NVIDIA GPU.
pub(crate) struct Cuda;

pub(crate) type Pass = kernel::Pass<Cuda>;
pub(crate) type At<'v, 'k> = kernel::At<'v, 'k, Cuda>;
pub(crate) type Grad<'a> = kernel::Grad<'a, Cuda>;

impl Grad<'_> {
    /// The memory to write it to, and true if it is added to what is there. None if it is unwanted.
    pub fn target(&mut self, stream: &Stream) -> Result<Option<(Floats, bool)>> {
        Ok(match self {
            Grad::Unwanted => None,
            Grad::Empty(element, len) => {
                let block = Block::of(*element, stream, *len)?;
                let to = block.floats();
                *self = Grad::Sum(block);
                Some((to, false))
            }
            Grad::Sum(block) => Some((block.floats(), true)),
            Grad::View {
                to,
                written,
                touched,
                ..
            } => {
                *touched = true;
                Some((*to, std::mem::replace(written, true)))
            }
        })
    }

    /// Calls `f` with where to write it and whether to add, if it is wanted.
    pub fn write(
        &mut self,
        stream: &Stream,
        f: impl FnOnce(Floats, bool) -> Result<()>,
    ) -> Result<()> {
        self.target(stream)?.map_or(Ok(()), |(to, add)| f(to, add))
    }

    /// Adds `part`, or takes it for its own where there is nothing yet and it is of its type.
    pub fn give(&mut self, stream: &Stream, part: Block) -> Result<()> {
        match self {
            Grad::Empty(element, _) if *element == part.floats().element => {
                *self = Grad::Sum(part);
            }
            _ => self.add(stream, part.floats())?,
        }
        Ok(())
    }

    /// Adds `part` where the gradient is wanted. Where the caller no longer needs `part`,
    /// [`give`](Self::give) saves a copy.
    pub fn add(&mut self, stream: &Stream, part: Floats) -> Result<()> {
        self.write(stream, |to, add| stream.put(part, to, add))
    }
}
