//! What an operation of an expression is: a value and gradients on slices. It knows no tensor and no
//! graph; [`crate::tape`] hands it everything.

use crate::buffer::Buffer;
use crate::places::Place;
use crate::threads::for_each_chunk;
use candle_core::Result;

/// Elements of a chunk of an elementwise operation.
pub(crate) const CHUNK: usize = 1 << 14;

pub(crate) trait Operation: Send + Sync {
    /// Writes all of y, which has arbitrary contents before. Returns what backward needs besides x and
    /// y; without `keep`, backward does not run and needs nothing.
    fn forward(&self, x: &[&[f32]], y: &mut [f32], keep: bool) -> Result<Vec<Buffer>>;

    /// Hands each input that wants it its gradient. `dy` is complete and may be written over.
    fn backward(&self, at: At<'_>, dy: Buffer, dx: &mut [Grad<'_>]) -> Result<()>;
}

/// Where backward happens: the inputs, the result, and what forward kept.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub x: &'a [&'a [f32]],
    pub y: &'a [f32],
    pub kept: &'a [Buffer],
}

/// The gradient of one value, while it is being summed up.
#[derive(Default)]
pub(crate) enum Grad<'a> {
    /// It is not wanted.
    #[default]
    Unwanted,
    /// Wanted, so many elements, and nothing there yet.
    Empty(usize),
    Buffer(Buffer),
    /// Wanted, so many elements, in the place of a parameter, of which a step that writes is lent the slice.
    Placed(Place, usize),
    /// It belongs into this slice, which holds a part of it already where `written`.
    Slice {
        to: &'a mut [f32],
        written: &'a mut bool,
    },
}

impl Grad<'_> {
    pub(crate) fn wanted(&self) -> bool {
        !matches!(self, Grad::Unwanted)
    }

    /// What a step gets of it: all, except that the name of a place stays here as well.
    pub(crate) fn take(&mut self) -> Self {
        match self {
            Grad::Placed(place, len) => Grad::Placed(*place, *len),
            other => std::mem::take(other),
        }
    }

    /// The place that it belongs into, unless that is lent.
    pub(crate) fn place(&self) -> Option<Place> {
        match self {
            Grad::Placed(place, _) => Some(*place),
            _ => None,
        }
    }

    /// Another part of the same gradient, to be added later.
    pub(crate) fn part(&self) -> Self {
        match self {
            Grad::Unwanted => Grad::Unwanted,
            Grad::Empty(len) | Grad::Placed(_, len) => Grad::Empty(*len),
            Grad::Buffer(buffer) => Grad::Empty(buffer.len()),
            Grad::Slice { to, .. } => Grad::Empty(to.len()),
        }
    }

    /// Where to write it, and whether to add to what is there.
    ///
    /// # Panics
    /// Where it is unwanted, or its place is not lent.
    pub(crate) fn target(&mut self) -> (&mut [f32], bool) {
        let add = match self {
            Grad::Unwanted => panic!("a gradient that is not requested"),
            Grad::Placed(..) => panic!("a place that is not lent"),
            Grad::Empty(len) => {
                *self = Grad::Buffer(Buffer::new(*len));
                false
            }
            Grad::Buffer(_) => true,
            Grad::Slice { written, .. } => std::mem::replace(*written, true),
        };
        match self {
            Grad::Buffer(to) => (to, add),
            Grad::Slice { to, .. } => (to, add),
            _ => unreachable!("it is there now"),
        }
    }

    /// Adds `part`, or takes it for its own where there is nothing yet.
    pub(crate) fn give(&mut self, part: Buffer) {
        match self {
            Grad::Empty(_) => *self = Grad::Buffer(part),
            _ => self.add(&part),
        }
    }

    /// Adds `part` where the gradient is wanted. Where the caller no longer needs `part`,
    /// [`give`](Self::give) saves a copy.
    pub(crate) fn add(&mut self, part: &[f32]) {
        if self.wanted() {
            let (to, add) = self.target();
            assert_eq!(to.len(), part.len(), "elements of two parts of a gradient");
            for_each_chunk(
                to,
                CHUNK,
                #[inline(always)]
                |i, to| put(to, part[i * CHUNK..].iter().copied(), add),
            );
        }
    }

    /// Writes or adds values one by one; for small gradients.
    pub(crate) fn put(&mut self, values: impl Iterator<Item = f32>) {
        if self.wanted() {
            let (to, add) = self.target();
            put(to, values, add);
        }
    }
}

/// `to = values`, or `to += values`.
#[inline(always)]
pub(crate) fn put(to: &mut [f32], values: impl Iterator<Item = f32>, add: bool) {
    for (to, v) in to.iter_mut().zip(values) {
        *to = if add { *to + v } else { v };
    }
}
