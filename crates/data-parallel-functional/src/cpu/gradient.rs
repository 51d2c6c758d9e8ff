//! The CPU's kernels read and write slices. Here is what they are handed, and how a gradient is written or added.

use crate::cpu::buffer::Buffer;
use crate::cpu::threads::for_each_chunk;
use crate::kernel::{self, Cpu};

/// Elements of a chunk of an elementwise operation.
pub(crate) const CHUNK: usize = 1 << 13;

pub(crate) type Pass = kernel::Pass<Cpu>;
pub(crate) type At<'v, 'k> = kernel::At<'v, 'k, Cpu>;
pub(crate) type Grad<'a> = kernel::Grad<'a, Cpu>;

impl Grad<'_> {
    /// The memory to write it to, and true if it is added to what is there. None if it is unwanted.
    pub(crate) fn target(&mut self) -> Option<(&mut [f32], bool)> {
        let add = match self {
            Grad::Unwanted => return None,
            Grad::Empty((), len) => {
                *self = Grad::Sum(Buffer::new(*len));
                false
            }
            Grad::Sum(_) => true,
            Grad::View {
                written, touched, ..
            } => {
                *touched = true;
                std::mem::replace(written, true)
            }
        };
        match self {
            Grad::Sum(to) => Some((to, add)),
            Grad::View { to, .. } => Some((to, add)),
            _ => unreachable!("it is there now"),
        }
    }

    /// Adds `part`, or takes it for its own where there is nothing yet.
    pub(crate) fn give(&mut self, part: Buffer) {
        match self {
            Grad::Empty(..) => *self = Grad::Sum(part),
            _ => self.add(&part),
        }
    }

    /// Adds `part` where the gradient is wanted. Where the caller no longer needs `part`,
    /// [`give`](Self::give) saves a copy.
    pub(crate) fn add(&mut self, part: &[f32]) {
        if let Some((to, add)) = self.target() {
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
        if let Some((to, add)) = self.target() {
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

/// `to` = the sum of all chunks of its length, or `to` += it; a task takes some elements of all chunks.
pub(crate) fn put_sum_of_chunks(all: &[f32], to: &mut [f32], add: bool) {
    let size = to.len();
    for_each_chunk(
        to,
        CHUNK,
        #[inline(always)]
        |i, to| {
            for (n, chunk) in all.chunks_exact(size).enumerate() {
                put(to, chunk[i * CHUNK..].iter().copied(), add || n > 0);
            }
        },
    );
}
