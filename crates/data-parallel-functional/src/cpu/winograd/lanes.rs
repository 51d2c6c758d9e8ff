//! Vectors of floats, whatever their number of lanes.

use crate::cpu::threads::Disjoint;
use crate::cpu::vector::{VECTOR, first};
use pulp::Simd;

/// Arithmetic on vectors of floats.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S>(pub(super) S);

impl<S: Simd> Lanes<S> {
    /// Floats of a vector. Rows are padded to a multiple of it.
    pub(super) const COUNT: usize = {
        assert!(VECTOR.is_multiple_of(S::F32_LANES));
        S::F32_LANES
    };

    /// Begins to bring a line to the cache, where there is an instruction for it. Any address will do.
    #[inline(always)]
    pub(super) fn prefetch(self, line: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // Safety: every x86-64 has the instruction, and it never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// N vectors, `step` floats apart.
    ///
    /// # Panics
    /// Where one would lie outside `from`. This is checked once, and so compiled without loops.
    #[inline(always)]
    pub(super) fn gather<const N: usize>(
        self,
        from: &[f32],
        at: usize,
        step: usize,
    ) -> [S::f32s; N] {
        assert!(fits(from.len(), at, (N - 1) * step, Self::COUNT));
        let mut vectors = [self.zero(); N];
        for (i, v) in vectors.iter_mut().enumerate() {
            // Safety: the last one is inside; a vector has the alignment of a float.
            *v = unsafe { *from.as_ptr().add(at + i * step).cast() };
        }
        vectors
    }

    /// The reverse of [`Self::gather`].
    #[inline(always)]
    pub(super) fn scatter<const N: usize>(
        self,
        to: &mut [f32],
        at: usize,
        step: usize,
        vectors: [S::f32s; N],
    ) {
        // Safety: `to` is borrowed mutably.
        unsafe { self.scatter_shared(&Disjoint::new(to), at, step, vectors) }
    }

    /// Like [`Self::scatter`], to a slice that other tasks write to as well.
    ///
    /// # Safety
    /// No other task uses the elements of these vectors.
    #[inline(always)]
    pub(super) unsafe fn scatter_shared<const N: usize>(
        self,
        to: &Disjoint<'_, f32>,
        at: usize,
        step: usize,
        vectors: [S::f32s; N],
    ) {
        assert!(fits(to.len(), at, (N - 1) * step, Self::COUNT));
        for (i, v) in vectors.into_iter().enumerate() {
            // Safety: the last one is inside; a vector has the alignment of a float.
            unsafe { *to.address(at + i * step).cast_mut().cast() = v }
        }
    }

    /// The rows of N × N vectors, `step` floats apart.
    ///
    /// # Panics
    /// A row does where a vector would lie outside `from`.
    #[inline(always)]
    pub(super) fn square<const N: usize>(
        self,
        from: &[f32],
        at: usize,
        step: usize,
    ) -> impl Fn(usize) -> [S::f32s; N] {
        #[inline(always)]
        move |i| self.gather(from, at + i * N * step, step)
    }

    /// The first `n` lanes of N vectors, `step` floats apart, with zeros behind them.
    ///
    /// # Panics
    /// Where one would lie outside `from`.
    #[inline(always)]
    pub(super) fn gather_part<const N: usize>(
        self,
        from: &[f32],
        at: usize,
        step: usize,
        n: usize,
    ) -> [S::f32s; N] {
        assert!(n <= Self::COUNT && fits(from.len(), at, (N - 1) * step, n));
        let mask = first(self.0, n);
        let mut vectors = [self.zero(); N];
        for (i, v) in vectors.iter_mut().enumerate() {
            // Safety: the mask selects what `from` holds, and no other lane is touched.
            *v = unsafe {
                self.0
                    .mask_load_ptr_f32s(mask, from.as_ptr().add(at + i * step))
            };
        }
        vectors
    }

    #[inline(always)]
    pub(super) fn zero(self) -> S::f32s {
        self.0.splat_f32s(0.)
    }

    #[inline(always)]
    pub(super) fn add(self, x: S::f32s, y: S::f32s) -> S::f32s {
        self.0.add_f32s(x, y)
    }

    #[inline(always)]
    pub(super) fn sub(self, x: S::f32s, y: S::f32s) -> S::f32s {
        self.0.sub_f32s(x, y)
    }

    /// The positive part; NaN stays.
    #[inline(always)]
    pub(super) fn positive(self, x: S::f32s) -> S::f32s {
        let cut = self.0.less_than_or_equal_f32s(x, self.zero());
        self.0.select_f32s(cut, self.zero(), x)
    }

    /// factor · x
    #[inline(always)]
    pub(super) fn mul(self, factor: f32, x: S::f32s) -> S::f32s {
        self.0.mul_f32s(self.0.splat_f32s(factor), x)
    }

    /// factor · x + y
    #[inline(always)]
    pub(super) fn fma(self, factor: f32, x: S::f32s, y: S::f32s) -> S::f32s {
        self.0.mul_add_e_f32s(self.0.splat_f32s(factor), x, y)
    }

    /// The transpose of N vectors of N floats: squares of half the side change places, then squares
    /// of a quarter inside each of them, and so on.
    #[inline(always)]
    pub(super) fn transpose<const N: usize>(self, mut rows: [S::f32s; N]) -> [S::f32s; N] {
        self.exchange::<N, 8>(&mut rows);
        self.exchange::<N, 4>(&mut rows);
        self.exchange::<N, 2>(&mut rows);
        self.exchange::<N, 1>(&mut rows);
        rows
    }

    /// Exchanges the upper right and the lower left of the squares of side 2 · HALF.
    #[inline(always)]
    fn exchange<const N: usize, const HALF: usize>(self, rows: &mut [S::f32s; N]) {
        const NUMBERS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        if HALF >= N {
            return;
        }
        let simd = self.0;
        // lanes whose number has this bit are in the right half of a square
        let numbers = S::as_simd_u32s(&NUMBERS[..N]).0[0];
        let bit = simd.and_u32s(numbers, simd.splat_u32s(HALF as u32));
        let left = simd.equal_u32s(bit, simd.splat_u32s(0));
        for i in 0..N / 2 {
            let r = i / HALF * 2 * HALF + i % HALF;
            let upper = rows[r];
            let lower = rows[r + HALF];
            let from_below = simd.rotate_right_f32s(lower, HALF);
            let from_above = simd.rotate_right_f32s(upper, N - HALF);
            rows[r] = simd.select_f32s(left, upper, from_below);
            rows[r + HALF] = simd.select_f32s(left, from_above, lower);
        }
    }
}

/// True if vectors of `lanes` floats, the last one `steps` floats behind the first one at `at`, lie
/// within `len` floats: their indices are those of slices and their strides, far from overflow.
#[inline(always)]
fn fits(len: usize, at: usize, steps: usize, lanes: usize) -> bool {
    at < len && steps <= len && at + steps + lanes <= len
}
