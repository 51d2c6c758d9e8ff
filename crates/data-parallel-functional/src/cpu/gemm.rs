//! Matrix products: the crate `gemm` behind safe functions that check bounds. It never starts threads of its own:
//! `multiply` stays on the thread that calls it, and `product` shares out blocks.
//!
//! With a fused multiply-add, all instruction sets give the same bits. `gemm` alone would not: it cuts long sums by
//! the size of the cache, and has other sums for vectors. So sums are cut here, at 512 terms, and products with
//! vectors and narrow products are computed here. The rest calls `gemm`'s loops and its kernels of one instruction
//! set, and not the function that chooses.

use crate::cpu::buffer::Buffer;
use crate::cpu::gradient::{put, put_sum_of_chunks};
use crate::cpu::threads::{Disjoint, for_each};
use crate::cpu::vector::{load, store};
use devices::{InstructionSet, dispatch, instruction_set};
use gemm_common::Parallelism;
use gemm_common::gemm::gemm_basic_generic;
use gemm_common::simd::MixedSimd;
use pulp::{Simd, WithSimd};

/// The most blocks of a [`product`] whose rows could be more.
const MOST_BLOCKS: usize = 64;

/// With fewer blocks a [`product`] also has partial sums.
const ENOUGH_BLOCKS: usize = 16;

/// The fewest multiply-adds for which a task pays: some microseconds.
const FEWEST_MULTIPLY_ADDS: usize = 1 << 18;

/// The shortest partial sum.
const FEWEST_COLUMNS: usize = 128;

/// A matrix in a slice: element (r, c) is `data[r * row_stride + c * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix stored row after row.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, (rows, columns), (columns, 1))
    }

    /// A matrix of `shape` (rows, columns), with `strides` from row to row and from column to column.
    ///
    /// # Panics
    /// Where an element would lie outside `data`.
    pub(crate) fn strided(data: &'a [f32], shape: (usize, usize), strides: (usize, usize)) -> Self {
        let (rows, columns) = shape;
        let (row_stride, column_stride) = strides;
        let last = |n: usize, stride: usize| n.saturating_sub(1).saturating_mul(stride);
        let end = last(rows, row_stride).saturating_add(last(columns, column_stride));
        let empty = rows == 0 || columns == 0;
        assert!(
            empty || end < data.len(),
            "a matrix {shape:?} with strides {strides:?} does not fit {} elements",
            data.len()
        );
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    /// The transposed view.
    pub(crate) fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// The first `count` rows from `first`.
    ///
    /// # Panics
    /// Where the matrix has fewer rows.
    pub(crate) fn rows(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.rows, "rows out of range");
        let start = (first * self.row_stride).min(self.data.len());
        let strides = (self.row_stride, self.column_stride);
        Self::strided(&self.data[start..], (count, self.columns), strides)
    }

    /// The first `count` columns from `first`.
    pub(crate) fn columns(self, first: usize, count: usize) -> Self {
        self.t().rows(first, count).t()
    }
}

/// `out = a · b`, or `out += a · b` where `accumulate`; `out` is stored row after row.
///
/// # Panics
/// Where the shapes do not match.
pub(crate) fn multiply(out: &mut [f32], accumulate: bool, a: Matrix, b: Matrix) {
    assert_eq!(
        out.len(),
        a.rows * b.columns,
        "elements of out, of the product"
    );
    // Safety: `out` has a row of n elements for each of a, and is borrowed mutably.
    unsafe { multiply_at(out.as_mut_ptr(), b.columns, accumulate, a, b) }
}

/// Like [`multiply`], on as many threads as the budget says: in blocks, and where these are few and the sums are long,
/// in partial sums that are added in order.
pub(crate) fn product(out: &mut [f32], accumulate: bool, a: Matrix, b: Matrix) {
    let m = a.rows;
    let n = b.columns;
    assert_eq!(out.len(), m * n, "elements of out, of the product");
    let cut = Cut::of(a, b);
    if cut.sums == 1 {
        return by_blocks(out, accumulate, a, b, &cut);
    }
    let mut partial = Buffer::new(cut.sums * m * n);
    by_blocks(&mut partial, false, a, b, &cut);
    put_sum_of_chunks(&partial, out, accumulate);
}

/// The tasks of a product, by its shape alone.
struct Cut {
    /// Rows of a block.
    rows: usize,
    /// Columns of a block.
    columns: usize,
    /// Number of partial sums, each over `depth` columns of a.
    sums: usize,
    depth: usize,
}

impl Cut {
    fn of(a: Matrix, b: Matrix) -> Self {
        let m = a.rows;
        let k = a.columns;
        let n = b.columns;
        let multiply_adds = m * n * k;
        // b is packed again for each block of rows: so these are large, and of few columns
        let is_packed = b.column_stride != 1;
        let columns = n.clamp(1, if is_packed { 64 } else { 256 });
        let blocks = |rows: usize| m.div_ceil(rows) * n.div_ceil(columns);
        let most = (multiply_adds / FEWEST_MULTIPLY_ADDS).clamp(1, MOST_BLOCKS);
        let fewer = [16, 32, 64].into_iter().find(|&rows| blocks(rows) <= most);
        let rows = if is_packed { 128 } else { fewer.unwrap_or(128) };
        let wanted = ENOUGH_BLOCKS.min(most).div_ceil(blocks(rows).max(1));
        let sums = wanted.min(k / FEWEST_COLUMNS).max(1);
        let depth = k.div_ceil(sums).max(1);
        Self {
            rows,
            columns,
            sums: k.div_ceil(depth).max(1),
            depth,
        }
    }
}

fn by_blocks(out: &mut [f32], accumulate: bool, a: Matrix, b: Matrix, cut: &Cut) {
    let m = a.rows;
    let k = a.columns;
    let n = b.columns;
    let down = m.div_ceil(cut.rows);
    let across = n.div_ceil(cut.columns);
    let out = Disjoint::new(out);
    for_each(cut.sums * down * across, |i| {
        let sum = i / across / down;
        let row = i / across % down;
        let column = i % across;
        let first_row = row * cut.rows;
        let first_column = column * cut.columns;
        let first = sum * cut.depth;
        // the last ones are smaller
        let rows = cut.rows.min(m - first_row);
        let columns = cut.columns.min(n - first_column);
        let depth = cut.depth.min(k - first);
        let a = a.rows(first_row, rows).columns(first, depth);
        let b = b.rows(first, depth).columns(first_column, columns);
        let at = (sum * m + first_row) * n + first_column;
        // Safety: no other task has this block of this sum.
        unsafe { multiply_at(out.address(at).cast_mut(), n, accumulate, a, b) }
    });
}

/// # Safety
/// For each row r of a: the elements of `out` from r · `row` on, as many as b has columns, are valid, and no one else uses
/// them.
unsafe fn multiply_at(out: *mut f32, row: usize, accumulate: bool, a: Matrix, b: Matrix) {
    let m = a.rows;
    let k = a.columns;
    let n = b.columns;
    assert_eq!(k, b.rows, "columns of a, rows of b");
    if m == 0 || n == 0 || (accumulate && k == 0) {
        return;
    }
    let is_vector = m == 1 || n == 1;
    if a.column_stride == 1 && b.row_stride == 1 && k > 0 && (is_vector || m * n <= 256) {
        return dispatch(Dots {
            out,
            row,
            accumulate,
            a,
            b,
        });
    }
    if is_vector && k > DEPTH {
        // Safety: the caller's.
        return unsafe { multiply_in_parts(out, row, accumulate, a, b) };
    }
    if m == 1 && b.column_stride == 1 {
        // Safety: the caller's, for the only row.
        let out = unsafe { std::slice::from_raw_parts_mut(out, n) };
        return dispatch(Combination {
            out,
            accumulate,
            factors: a.t(),
            rows: b,
        });
    }
    if n == 1 && row == 1 && a.row_stride == 1 {
        // Safety: the caller's; the only column is contiguous.
        let out = unsafe { std::slice::from_raw_parts_mut(out, m) };
        return dispatch(Combination {
            out,
            accumulate,
            factors: b,
            rows: a.t(),
        });
    }
    let depth = depth(m, n, k);
    for first in (0..k.max(1)).step_by(depth) {
        let depth = depth.min(k - first);
        let a = a.columns(first, depth);
        let b = b.rows(first, depth);
        // Safety: the caller's.
        unsafe { multiply_by_gemm(out, row, accumulate || first > 0, a, b) };
    }
}

/// The number of columns of a that are multiplied at a time. `gemm` would cut them in the same way if a processor's first-level
/// cache has 32 KiB, and otherwise in larger parts on some.
fn depth(m: usize, n: usize, k: usize) -> usize {
    const MOST_COLUMNS: usize = 512;
    if m <= 64 && n <= 64 {
        MOST_COLUMNS
    } else {
        k.div_ceil(k.div_ceil(MOST_COLUMNS).max(1)).max(1)
    }
}

/// Like [`multiply_at`], by `gemm` with the instructions of this process.
///
/// # Safety
/// As there.
unsafe fn multiply_by_gemm(out: *mut f32, row: usize, accumulate: bool, a: Matrix, b: Matrix) {
    let stride = |s: usize| s as isize;
    // `gemm`'s kernels write columns: it computes the transposed product
    let (a, b) = (b.t(), a.t());
    macro_rules! multiply_with {
        ($simd:ident, $kernels:ident, $lanes:literal) => {{
            use gemm_common::simd::$simd;
            use gemm_f32::microkernel::$kernels::f32::{MR_DIV_N, NR, UKR};
            let simd = <$simd as MixedSimd<f32, f32, f32, f32>>::try_new()
                .expect("the instructions were chosen because they are there");
            // Safety: `Matrix` can only be built where its last element, and so each, lies in its slice. The caller
            // answers for `out`, which overlaps neither a nor b. The processor has the instructions of the kernels.
            unsafe {
                gemm_basic_generic::<_, f32, $lanes, { MR_DIV_N * $lanes }, NR, MR_DIV_N, 0, 0>(
                    simd,
                    a.rows,
                    b.columns,
                    a.columns,
                    out,
                    stride(row),
                    1,
                    accumulate,
                    a.data.as_ptr(),
                    stride(a.column_stride),
                    stride(a.row_stride),
                    b.data.as_ptr(),
                    stride(b.column_stride),
                    stride(b.row_stride),
                    1.,
                    1.,
                    false,
                    false,
                    false,
                    |a, b, c| a * b + c,
                    &UKR,
                    &[],
                    false,
                    Parallelism::None,
                )
            }
        }};
    }
    match instruction_set() {
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => multiply_with!(V4, avx512f, 16),
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => multiply_with!(V3, fma, 8),
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Neon => multiply_with!(Scalar, neon, 4),
        _ => multiply_with!(Scalar, scalar, 1),
    }
}

/// Like [`multiply_at`] for a vector and a matrix, where all products would be added one after the other: parts of them
/// are added to each other.
///
/// # Safety
/// As there.
unsafe fn multiply_in_parts(out: *mut f32, row: usize, accumulate: bool, a: Matrix, b: Matrix) {
    let m = a.rows;
    let k = a.columns;
    let n = b.columns;
    for first in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - first);
        let mut part = vec![0.; m * n];
        multiply(
            &mut part,
            false,
            a.columns(first, depth),
            b.rows(first, depth),
        );
        for (r, part) in part.chunks_exact(n).enumerate() {
            // Safety: the caller's.
            let out = unsafe { std::slice::from_raw_parts_mut(out.add(r * row), n) };
            put(out, part.iter().copied(), accumulate || first > 0);
        }
    }
}

/// Rows of a matrix that are added in one pass over `out`.
const ROWS: usize = 4;

/// `out` is the sum of contiguous rows, each times its factor, from the first row to the last: the product of a vector
/// with a matrix.
struct Combination<'a> {
    out: &'a mut [f32],
    accumulate: bool,
    /// One column.
    factors: Matrix<'a>,
    rows: Matrix<'a>,
}

impl WithSimd for Combination<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        if !self.accumulate {
            self.out.fill(0.);
        }
        let count = self.rows.rows;
        let fours = count / ROWS * ROWS;
        for first in (0..fours).step_by(ROWS) {
            self.add_rows::<S, ROWS>(simd, first);
        }
        for row in fours..count {
            self.add_rows::<S, 1>(simd, row);
        }
    }
}

impl Combination<'_> {
    #[inline(always)]
    fn add_rows<S: Simd, const N: usize>(&mut self, simd: S, first: usize) {
        let rows = self.rows;
        let factors = self.factors;
        let mut terms = [(simd.splat_f32s(0.), rows.data); N];
        for (i, (factor, row)) in terms.iter_mut().enumerate() {
            *factor = simd.splat_f32s(factors.data[(first + i) * factors.row_stride]);
            *row = &rows.data[(first + i) * rows.row_stride..][..self.out.len()];
        }
        for (i, out) in self.out.chunks_mut(S::F32_LANES).enumerate() {
            let mut sum = load(simd, out);
            for (factor, row) in terms {
                let part = &row[i * S::F32_LANES..][..out.len()];
                sum = simd.mul_add_e_f32s(factor, load(simd, part), sum);
            }
            store(simd, out, sum);
        }
    }
}

/// The number of partial sums of a dot product, on any processor: the elements of a vector of AVX-512.
const LANES: usize = 16;
/// Number of elements after which partial sums are joined.
const DEPTH: usize = 1024;
/// Columns that are multiplied with a row at a time.
const COLUMNS: usize = 4;

/// Like [`multiply_at`], where rows of a and columns of b are contiguous.
struct Dots<'a> {
    out: *mut f32,
    row: usize,
    accumulate: bool,
    a: Matrix<'a>,
    b: Matrix<'a>,
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let m = self.a.rows;
        let k = self.a.columns;
        for r in 0..m {
            for start in (0..k).step_by(DEPTH) {
                self.add_part(simd, r, start, DEPTH.min(k - start));
            }
        }
    }
}

impl Dots<'_> {
    /// Puts or adds to row r of `out` the products over `len` columns of a, from column `start` on.
    #[inline(always)]
    fn add_part<S: Simd>(&self, simd: S, r: usize, start: usize, len: usize) {
        let a = self.a;
        let b = self.b;
        let n = b.columns;
        let x = &a.data[r * a.row_stride + start..][..len];
        for first in (0..n).step_by(COLUMNS) {
            let mut columns = [x; COLUMNS];
            for (i, column) in columns.iter_mut().enumerate() {
                // past the last column the last one is taken again, for sums that nothing reads
                let c = (first + i).min(n - 1);
                *column = &b.data[c * b.column_stride + start..][..len];
            }
            let sums = match LANES / S::F32_LANES {
                1 => dot::<S, 1>(simd, x, columns),
                2 => dot::<S, 2>(simd, x, columns),
                4 => dot::<S, 4>(simd, x, columns),
                _ => dot::<S, LANES>(simd, x, columns),
            };
            for (i, sum) in sums.into_iter().enumerate().take(n - first) {
                // Safety: row r of a and column `first` + i of b exist; the rest is as in `multiply_at`.
                let to = unsafe { &mut *self.out.add(r * self.row + first + i) };
                let add = self.accumulate || start > 0;
                *to = if add { *to + sum } else { sum };
            }
        }
    }
}

/// The dot products of `x` with columns of the same length. The lanes are PARTS vectors.
#[inline(always)]
fn dot<S: Simd, const PARTS: usize>(
    simd: S,
    x: &[f32],
    columns: [&[f32]; COLUMNS],
) -> [f32; COLUMNS] {
    let mut sums = [[simd.splat_f32s(0.0); PARTS]; COLUMNS];
    let step = S::F32_LANES;
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut parts = [vectors; COLUMNS];
    for c in 0..COLUMNS {
        parts[c] = &columns[c].as_chunks().0[..vectors.len()];
    }
    for (i, vector) in vectors.iter().enumerate() {
        let (vector, _) = S::as_simd_f32s(vector);
        for c in 0..COLUMNS {
            let (other, _) = S::as_simd_f32s(&parts[c][i]);
            for part in 0..PARTS {
                sums[c][part] = simd.mul_add_e_f32s(vector[part], other[part], sums[c][part]);
            }
        }
    }
    for (part, vector) in rest.chunks(step).enumerate() {
        for c in 0..COLUMNS {
            let other = &columns[c][x.len() - rest.len() + part * step..];
            sums[c][part] =
                simd.mul_add_e_f32s(load(simd, vector), load(simd, other), sums[c][part]);
        }
    }
    let mut totals = [0.0; COLUMNS];
    for c in 0..COLUMNS {
        let mut all = [0f32; LANES];
        for part in 0..PARTS {
            store(simd, &mut all[part * step..], sums[c][part]);
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                all[i] += all[i + half];
            }
        }
        totals[c] = all[0];
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_inner_dimension_gives_zeros() {
        let a = Matrix::new(&[], 2, 0);
        let b = Matrix::new(&[], 0, 2);
        let mut out = [1f32; 4];
        multiply(&mut out, true, a, b);
        assert_eq!(out, [1.; 4]);
        multiply(&mut out, false, a, b);
        assert_eq!(out, [0.; 4]);
    }

    #[test]
    #[should_panic(expected = "does not fit 5 elements")]
    fn a_matrix_past_its_slice_is_refused() {
        Matrix::new(&[0.; 5], 2, 3);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn strides_that_overflow_are_refused() {
        Matrix::strided(&[0.; 5], (3, 2), (usize::MAX, 1));
    }
}
