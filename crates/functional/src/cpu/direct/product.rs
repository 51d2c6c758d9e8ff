//! The one matrix product of the direct convolution: rows that begin anywhere, sums that run over
//! segments, and results in registers until they are complete.

use crate::cpu::vector::{load, store};
use pulp::{Simd, WithSimd};

/// out\[r\]\[c\] = start\[c\] + Σ a\[r\]\[t\] · b\[t\]\[c\], where the terms t are `segments` times `length`.
///
/// Rows of `a` may overlap, as the pixels of a convolution do.
pub(crate) struct Product<'a> {
    pub(crate) a: &'a [f32],
    /// Where in `a` each row begins.
    pub(crate) rows: &'a [usize],
    pub(crate) b: &'a [f32],
    /// Floats of a row of `out`; a row of `b` may be read up to the next whole vector.
    pub(crate) columns: usize,
    pub(crate) segments: usize,
    pub(crate) length: usize,
    /// From segment to segment and from term to term, in `a` and in `b`.
    pub(crate) a_steps: (usize, usize),
    pub(crate) b_steps: (usize, usize),
    /// What the sums start with; none: what is in `out`.
    pub(crate) start: Option<&'a [f32]>,
    /// From row to row of `out`.
    pub(crate) out_step: usize,
}

/// A call of its own, so that every caller shares one copy of the tiles.
struct Tiles<'a> {
    product: &'a Product<'a>,
    out: &'a mut [f32],
}

impl WithSimd for Tiles<'_> {
    type Output = ();

    /// Tiles as large as the registers allow; the first number is rows, the second vectors.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { product, out } = self;
        let vectors = product.columns.div_ceil(S::F32_LANES);
        let few = product.rows.len() < 8;
        let most = match (few, S::REGISTER_COUNT) {
            (true, _) => 4,
            (_, 32..) => 3,
            _ => 2,
        };
        // 7 vectors are 3, 2 and 2, because a single one keeps the multipliers waiting for loads
        let blocks = vectors.div_ceil(most);
        for block in 0..blocks {
            let (first, end) = (vectors * block / blocks, vectors * (block + 1) / blocks);
            let column = first * S::F32_LANES;
            match (most, end - first) {
                (4, 1) => product.tiles::<S, 2, 1>(simd, column, out),
                (4, 2) => product.tiles::<S, 2, 2>(simd, column, out),
                (4, 3) => product.tiles::<S, 2, 3>(simd, column, out),
                (4, _) => product.tiles::<S, 2, 4>(simd, column, out),
                (_, 1) => product.tiles::<S, 8, 1>(simd, column, out),
                (2, _) => product.tiles::<S, 6, 2>(simd, column, out),
                // nine taps, a 3×3 kernel on one channel, are one tile
                (_, 2) if product.rows.len() % 9 == 0 => {
                    product.tiles::<S, 9, 2>(simd, column, out)
                }
                (_, 2) => product.tiles::<S, 8, 2>(simd, column, out),
                _ => product.tiles::<S, 8, 3>(simd, column, out),
            }
        }
    }
}

impl Product<'_> {
    pub(crate) fn run<S: Simd>(&self, simd: S, out: &mut [f32]) {
        if self.rows.is_empty() {
            return;
        }
        self.check(S::F32_LANES, out.len());
        simd.vectorize(Tiles { product: self, out });
    }

    /// # Panics
    /// Where a tile would reach past the end of b, of `start` or of `out`.
    fn check(&self, lanes: usize, out: usize) {
        assert!(self.segments > 0 && self.length > 0 && self.columns > 0);
        let width = self.columns.next_multiple_of(lanes);
        assert!(self.last(self.b_steps) + width <= self.b.len(), "b");
        assert!(self.start.is_none_or(|start| start.len() >= width), "start");
        let rows = (self.rows.len() - 1) * self.out_step;
        assert!(rows + self.columns <= out, "out");
    }

    /// From the first term to the last.
    #[inline(always)]
    fn last(&self, steps: (usize, usize)) -> usize {
        (self.segments - 1) * steps.0 + (self.length - 1) * steps.1
    }

    #[inline(always)]
    fn tiles<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        column: usize,
        out: &mut [f32],
    ) {
        let last = self.last(self.a_steps);
        for first in (0..self.rows.len()).step_by(R) {
            // past the last row, its sums are computed again and not stored
            let mut rows = [self.a.as_ptr(); R];
            for (i, row) in rows.iter_mut().enumerate() {
                let start = self.rows[(first + i).min(self.rows.len() - 1)];
                *row = self.a[start..=start + last].as_ptr();
            }
            let b = self.b[column..].as_ptr();
            // Safety: each row holds its last term, and `check` has found the last term's
            // whole vectors inside b
            let sums = unsafe { self.tile::<S, R, V>(simd, rows, b, column) };
            let rows = R.min(self.rows.len() - first);
            let out = &mut out[first * self.out_step + column..];
            if column + V * S::F32_LANES <= self.columns {
                self.store_whole(simd, &sums, rows, out);
            } else {
                self.store_part(simd, &sums, rows, self.columns - column, out);
            }
        }
    }

    /// The sums of all terms, for rows of `a` and vectors of `b` that begin at these pointers.
    ///
    /// # Safety
    /// Every term must lie in the slices that the pointers point into.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        rows: [*const f32; R],
        b: *const f32,
        column: usize,
    ) -> [[S::f32s; V]; R] {
        let mut sums = [[simd.splat_f32s(0.); V]; R];
        if let Some(start) = self.start {
            let mut vectors = [simd.splat_f32s(0.); V];
            for (j, vector) in vectors.iter_mut().enumerate() {
                *vector = load(simd, &start[column + j * S::F32_LANES..]);
            }
            sums = [vectors; R];
        }
        for segment in 0..self.segments {
            let (mut at_a, mut at_b) = (segment * self.a_steps.0, segment * self.b_steps.0);
            for _ in 0..self.length {
                let mut vectors = [simd.splat_f32s(0.); V];
                for (j, vector) in vectors.iter_mut().enumerate() {
                    // Safety: the caller's promise
                    *vector = unsafe { b.add(at_b).cast::<S::f32s>().add(j).read_unaligned() };
                }
                for (row, sums) in rows.iter().zip(&mut sums) {
                    // Safety: the caller's promise
                    let factor = simd.splat_f32s(unsafe { *row.add(at_a) });
                    for (sum, vector) in sums.iter_mut().zip(&vectors) {
                        *sum = simd.mul_add_e_f32s(factor, *vector, *sum);
                    }
                }
                at_a += self.a_steps.1;
                at_b += self.b_steps.1;
            }
        }
        sums
    }

    /// Stores rows of sums, or adds them to what is there. Both stores are so short that the
    /// compiler unrolls them, and the sums need no memory of their own.
    #[inline(always)]
    fn store_whole<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        sums: &[[S::f32s; V]; R],
        rows: usize,
        out: &mut [f32],
    ) {
        for (i, sums) in sums.iter().enumerate() {
            if i < rows {
                let out = &mut out[i * self.out_step..][..V * S::F32_LANES];
                let out = S::as_mut_simd_f32s(out).0;
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = match self.start {
                        Some(_) => *sum,
                        None => simd.add_f32s(*out, *sum),
                    };
                }
            }
        }
    }

    /// As `store_whole`, where rows of out have only `columns` left.
    #[inline(always)]
    fn store_part<S: Simd, const R: usize, const V: usize>(
        &self,
        simd: S,
        sums: &[[S::f32s; V]; R],
        rows: usize,
        columns: usize,
        out: &mut [f32],
    ) {
        for (i, sums) in sums.iter().enumerate() {
            if i < rows {
                let out = &mut out[i * self.out_step..][..columns];
                for (j, sum) in sums.iter().enumerate() {
                    let out = &mut out[j * S::F32_LANES..];
                    let before = match self.start {
                        Some(_) => simd.splat_f32s(0.),
                        None => load(simd, out),
                    };
                    store(simd, out, simd.add_f32s(before, *sum));
                }
            }
        }
    }
}
