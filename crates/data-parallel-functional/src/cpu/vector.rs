//! Vectors from slices and back, in bounds whatever the length, and slices that begin with a cache
//! line.

use pulp::{MemMask, Simd};
use std::ops::{Deref, DerefMut};

/// Floats of the longest vector, and of a line of the cache. Rows that vectors run along are padded to
/// a multiple of it.
pub(crate) const VECTOR: usize = 16;

/// `buffer` from its first cache line on: a vector that crosses lines costs two loads.
pub(crate) fn aligned(buffer: &mut [f32]) -> &mut [f32] {
    let start = buffer.as_ptr().align_offset(VECTOR * size_of::<f32>());
    &mut buffer[start.min(VECTOR)..]
}

/// Floats that begin with a cache line.
pub(crate) struct Aligned {
    all: Vec<f32>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn zeros(len: usize) -> Self {
        let mut all = vec![0.; len + VECTOR];
        let start = all.len() - aligned(&mut all).len();
        Self { all, start, len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.all[self.start..][..self.len]
    }
}

/// The first floats of `from`; where they are too few for a vector, zeros behind them.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
    match from.get(..S::F32_LANES) {
        Some(vector) => S::as_simd_f32s(vector).0[0],
        // Safety: the mask selects the floats of `from` and no others
        None => unsafe { simd.mask_load_ptr_f32s(first(simd, from.len()), from.as_ptr()) },
    }
}

/// Stores a vector, or as many of its floats as fit into `to`.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, to: &mut [f32], vector: S::f32s) {
    match to.get_mut(..S::F32_LANES) {
        Some(to) => S::as_mut_simd_f32s(to).0[0] = vector,
        // Safety: the mask selects the floats of `to` and no others
        None => unsafe {
            let mask = first(simd, to.len());
            simd.mask_store_ptr_f32s(mask, to.as_mut_ptr(), vector);
        },
    }
}

/// The first `n` lanes. Rebuilt from its bits: pulp's own `MemMask` carries a function to call.
#[inline(always)]
pub(crate) fn first<S: Simd>(simd: S, n: usize) -> MemMask<S::m32s> {
    MemMask::new(simd.mask_between_m32s(0, n as u32).mask())
}
