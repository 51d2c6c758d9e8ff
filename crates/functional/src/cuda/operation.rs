//! What an operation of an expression is on a GPU: the twin of [`crate::operation`], on addresses.

use super::memory::{Block, Element, Floats};
use super::stream::Stream;
use crate::places::Place;
use candle_core::Result;

pub(crate) trait Operation: Send + Sync {
    /// Writes all of y, which has arbitrary contents before. Returns what backward needs besides x and
    /// y; without `keep`, backward does not run and needs nothing.
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, keep: bool) -> Result<Vec<Block>>;

    /// Hands each input that wants it its gradient. `dy` is complete and may be written over.
    fn backward(&self, stream: &Stream, at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()>;

    /// Of what type the result is, and its gradient.
    fn element(&self) -> Element {
        Element::F32
    }

    /// Whether it computes a result of bf16 where a tape holds that.
    fn narrows(&self) -> bool {
        true
    }

    /// Whether input `n` is of the result's type then, or f32 as always.
    fn narrows_input(&self, _n: usize) -> bool {
        self.narrows()
    }
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
pub(crate) enum Grad<'a> {
    /// It is not wanted.
    #[default]
    Unwanted,
    /// Wanted, so many elements, and nothing there yet.
    Empty(Element, usize),
    Block(Block),
    /// Wanted, so many f32, in the place of a parameter, which is lent to a step that writes.
    Placed(Place, usize),
    /// It belongs there, where a part of it is already where `written`.
    Place {
        to: Floats,
        written: &'a mut bool,
    },
}

impl Grad<'_> {
    pub fn wanted(&self) -> bool {
        !matches!(self, Grad::Unwanted)
    }

    /// What a step gets of it: all, except that the name of a place stays here as well.
    pub fn take(&mut self) -> Self {
        match self {
            Grad::Placed(place, len) => Grad::Placed(*place, *len),
            other => std::mem::take(other),
        }
    }

    /// The place that it belongs into, unless that is lent.
    pub fn place(&self) -> Option<Place> {
        match self {
            Grad::Placed(place, _) => Some(*place),
            _ => None,
        }
    }

    /// Another part of the same gradient, to be added later.
    pub fn part(&self) -> Self {
        match self {
            Grad::Unwanted => Grad::Unwanted,
            Grad::Empty(element, len) => Grad::Empty(*element, *len),
            Grad::Placed(_, len) => Grad::Empty(Element::F32, *len),
            Grad::Block(block) => Grad::Empty(block.floats().element, block.floats().len),
            Grad::Place { to, .. } => Grad::Empty(to.element, to.len),
        }
    }

    /// Where to write it, and whether to add to what is there.
    ///
    /// # Panics
    /// Where it is unwanted, or its place is not lent.
    pub fn target(&mut self, stream: &Stream) -> Result<(Floats, bool)> {
        if let Grad::Empty(element, len) = self {
            let block = Block::of(*element, stream, *len)?;
            let to = block.floats();
            *self = Grad::Block(block);
            return Ok((to, false));
        }
        Ok(match self {
            Grad::Block(block) => (block.floats(), true),
            Grad::Place { to, written } => (*to, std::mem::replace(*written, true)),
            _ => panic!("a gradient that is not requested, or a place that is not lent"),
        })
    }

    /// Adds nothing.
    pub fn zero(&mut self, stream: &Stream) -> Result<()> {
        match self.target(stream)? {
            (_, true) => Ok(()),
            (to, false) => stream.fill(to, 0.),
        }
    }

    /// Adds `part`, or takes it for its own where there is nothing yet and it is of its type.
    pub fn give(&mut self, stream: &Stream, part: Block) -> Result<()> {
        match self {
            Grad::Empty(element, _) if *element == part.floats().element => {
                *self = Grad::Block(part);
            }
            _ => self.add(stream, part.floats())?,
        }
        Ok(())
    }

    /// Adds `part` where the gradient is wanted. Where the caller no longer needs `part`,
    /// [`give`](Self::give) saves a copy.
    pub fn add(&mut self, stream: &Stream, part: Floats) -> Result<()> {
        if !self.wanted() {
            return Ok(());
        }
        let (to, add) = self.target(stream)?;
        stream.put(part, to, add)
    }
}
