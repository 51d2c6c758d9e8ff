//! The product of two blocks: one generic text is compiled for AVX-512, AVX2, NEON and plain scalars.
//!
//! A *block* is planes, one for each Winograd point or for several, of rows of the same width: a *panel* of 64
//! channels, or as many whole vectors as there are channels. `pulp` compiles for the chosen
//! instructions what it can inline, so all of it is `#[inline(always)]`.

use super::lanes::Lanes;
use crate::cpu::vector::VECTOR as LINE;
use pulp::{Simd, WithSimd};

/// The planes of blocks: `points` × `points`, and `weights` × `weights` of weights. Along an axis, points 0 to
/// `weights` − 2 have weights of their own; all later points share the last.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) points: usize,
    pub(super) weights: usize,
}

impl Planes {
    /// The weights of a point, and whether no point before it has them.
    fn weights_of(self, point: usize) -> (usize, bool) {
        let row = point / self.points;
        let column = point % self.points;
        let last = self.weights - 1;
        let weights = row.min(last) * self.weights + column.min(last);
        (weights, row.max(column) <= last)
    }
}

/// Floats of a block. Without the line beyond a plane's rows, the same row of each plane would fall
/// into the same set of the first-level cache.
pub(super) fn block(planes: usize, rows: usize, width: usize) -> usize {
    planes * (rows * width + LINE)
}

/// For each point c (rows × width) = a · b, or += where `accumulate`: a is rows × depth with any
/// strides, b is depth × width, row after row.
pub(super) struct Multiply<'a> {
    pub(super) planes: Planes,
    /// c are gradients of weights: points with the same weights are summed. Otherwise b are weights.
    pub(super) gradient: bool,
    pub(super) rows: usize,
    pub(super) depth: usize,
    /// Whole vectors.
    pub(super) width: usize,
    pub(super) a: &'a [f32],
    /// Floats from row to row of a.
    pub(super) a_row_stride: usize,
    /// Floats from column to column of a.
    pub(super) a_column_stride: usize,
    pub(super) b: &'a [f32],
    pub(super) c: &'a mut [f32],
    pub(super) accumulate: bool,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let points = self.planes.points.pow(2);
        let weights = self.planes.weights.pow(2);
        // of b and c one are the weights or their gradients, and the other has a plane for each point
        let (b_planes, c_planes) = if self.gradient {
            (points, weights)
        } else {
            (weights, points)
        };
        let a_plane = self.a.len() / points;
        let b_plane = self.b.len() / b_planes;
        let c_plane = self.c.len() / c_planes;
        for point in 0..points {
            let (weights, is_first) = self.planes.weights_of(point);
            let (in_b, in_c) = if self.gradient {
                (point, weights)
            } else {
                (weights, point)
            };
            let a = &self.a[point * a_plane..][..a_plane];
            let b = &self.b[in_b * b_plane..][..b_plane];
            let c = &mut self.c[in_c * c_plane..][..c_plane];
            let last_row = (self.rows - 1) * self.a_row_stride;
            let last_of_a = last_row + (self.depth - 1) * self.a_column_stride;
            assert!(last_of_a < a.len());
            assert!(self.depth * self.width <= b.len());
            assert!(self.rows * self.width <= c.len());
            assert!(self.width.is_multiple_of(Lanes::<S>::COUNT));
            let tile = Tile {
                depth: self.depth,
                width: self.width,
                a: a.as_ptr(),
                a_row_stride: self.a_row_stride,
                a_column_stride: self.a_column_stride,
                b: b.as_ptr(),
                c: c.as_mut_ptr(),
                accumulate: self.accumulate || (self.gradient && !is_first),
                next: b.as_ptr().wrapping_add(b_plane),
            };
            // Safety: the tiles cover `rows` rows and `width` columns, which the assertions found
            // inside a, b and c.
            unsafe { tile.plane(Lanes(simd), self.rows) }
        }
    }
}

/// Some rows and columns of c, which stay in registers while the depth is summed over.
#[derive(Clone, Copy)]
struct Tile {
    depth: usize,
    width: usize,
    a: *const f32,
    a_row_stride: usize,
    a_column_stride: usize,
    b: *const f32,
    c: *mut f32,
    accumulate: bool,
    /// The address to prefetch for the next plane.
    next: *const f32,
}

impl Tile {
    /// Uses all registers: 6 rows of 4 vectors where there are 32, 6 rows of 2 vectors where there are 16.
    ///
    /// # Safety
    /// `rows` rows of a and c, `depth` rows of b, all from the pointers on.
    #[inline(always)]
    unsafe fn plane<S: Simd>(&self, simd: Lanes<S>, rows: usize) {
        let vectors = self.width / Lanes::<S>::COUNT;
        let most = if Lanes::<S>::COUNT == 8 { 2 } else { 4 };
        for first in (0..vectors).step_by(most) {
            let mut tile = Self {
                b: self.b.wrapping_add(first * Lanes::<S>::COUNT),
                c: self.c.wrapping_add(first * Lanes::<S>::COUNT),
                ..*self
            };
            // Safety: the caller's; these vectors are among those of the width.
            unsafe {
                match most.min(vectors - first) {
                    1 => tile.column::<S, 1>(simd, rows),
                    2 => tile.column::<S, 2>(simd, rows),
                    3 => tile.column::<S, 3>(simd, rows),
                    _ => tile.column::<S, 4>(simd, rows),
                }
            }
        }
    }

    /// # Safety
    /// `rows` rows of a and c, `depth` rows of b, all from the pointers on.
    #[inline(always)]
    unsafe fn column<S: Simd, const N: usize>(&mut self, simd: Lanes<S>, rows: usize) {
        // Safety: each call takes its rows and moves on by them, to `rows` together.
        unsafe {
            for i in 0..rows / 6 {
                // each of these calls brings as many of the next plane's lines as b has rows
                if i < self.width / LINE {
                    self.rows::<S, 6, N, true>(simd);
                } else {
                    self.rows::<S, 6, N, false>(simd);
                }
            }
            match rows % 6 {
                1 => self.rows::<S, 1, N, false>(simd),
                2 => self.rows::<S, 2, N, false>(simd),
                3 => self.rows::<S, 3, N, false>(simd),
                4 => self.rows::<S, 4, N, false>(simd),
                5 => self.rows::<S, 5, N, false>(simd),
                _ => (),
            }
        }
    }

    /// # Safety
    /// `M` rows of a and c, `depth` rows of b, all from the pointers on.
    #[inline(always)]
    unsafe fn rows<S: Simd, const M: usize, const N: usize, const PREFETCH: bool>(
        &mut self,
        lanes: Lanes<S>,
    ) {
        let simd = lanes.0;
        let mut a = self.a;
        let mut b = self.b;
        let mut sums = [[simd.splat_f32s(0.); N]; M];
        // Safety: the caller's; a vector has the alignment of a float.
        unsafe {
            if self.accumulate {
                for (r, sums) in sums.iter_mut().enumerate() {
                    *sums = *self.c.add(r * self.width).cast();
                }
            }
            for _ in 0..self.depth {
                if PREFETCH {
                    lanes.prefetch(self.next);
                    self.next = self.next.wrapping_add(LINE);
                }
                let vectors: [S::f32s; N] = *b.cast();
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = simd.splat_f32s(*a.add(r * self.a_row_stride));
                    for (sum, v) in sums.iter_mut().zip(vectors) {
                        *sum = simd.mul_add_e_f32s(factor, v, *sum);
                    }
                }
                a = a.wrapping_add(self.a_column_stride);
                b = b.wrapping_add(self.width);
            }
            for (r, sums) in sums.iter().enumerate() {
                *self.c.add(r * self.width).cast() = *sums;
            }
        }
        self.a = self.a.wrapping_add(M * self.a_row_stride);
        self.c = self.c.wrapping_add(M * self.width);
    }
}
