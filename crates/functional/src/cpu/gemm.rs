//! Matrix products: the crate `gemm` behind safe functions that check bounds. It never starts threads of its own:
//! `multiply` stays on the thread that calls it, and `product` shares out blocks.

use crate::cpu::threads::{Disjoint, for_each};
use gemm::Parallelism;

/// Rows or columns of a block of [`product`].
const BLOCK: usize = 64;

/// A matrix in a slice: element (r, c) is `data[r * strides.0 + c * strides.1]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    shape: (usize, usize),
    strides: (usize, usize),
}

impl<'a> Matrix<'a> {
    /// A matrix stored row after row.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, (rows, columns), (columns, 1))
    }

    /// # Panics
    /// Where an element would lie outside `data`.
    pub(crate) fn strided(data: &'a [f32], shape: (usize, usize), strides: (usize, usize)) -> Self {
        let last = |n: usize, stride: usize| n.saturating_sub(1).saturating_mul(stride);
        let end = last(shape.0, strides.0).saturating_add(last(shape.1, strides.1));
        let empty = shape.0 == 0 || shape.1 == 0;
        assert!(
            empty || end < data.len(),
            "a matrix {shape:?} with strides {strides:?} does not fit {} elements",
            data.len()
        );
        Self {
            data,
            shape,
            strides,
        }
    }

    /// The transposed view.
    pub(crate) fn t(self) -> Self {
        Self {
            data: self.data,
            shape: (self.shape.1, self.shape.0),
            strides: (self.strides.1, self.strides.0),
        }
    }

    /// The first `count` rows from `first`.
    ///
    /// # Panics
    /// Where the matrix has fewer rows.
    pub(crate) fn rows(self, first: usize, count: usize) -> Self {
        assert!(first + count <= self.shape.0, "rows out of range");
        let start = (first * self.strides.0).min(self.data.len());
        Self::strided(&self.data[start..], (count, self.shape.1), self.strides)
    }

    /// The first `count` columns from `first`.
    fn columns(self, first: usize, count: usize) -> Self {
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
        a.shape.0 * b.shape.1,
        "elements of out, of the product"
    );
    // Safety: `out` has a row of n elements for each of a, and is borrowed mutably.
    unsafe { multiply_at(out.as_mut_ptr(), b.shape.1, accumulate, a, b) }
}

/// As [`multiply`], on as many threads as the budget says: in blocks of rows, or of columns where that packs less.
pub(crate) fn product(out: &mut [f32], accumulate: bool, a: Matrix, b: Matrix) {
    let (m, n) = (a.shape.0, b.shape.1);
    assert_eq!(out.len(), m * n, "elements of out, of the product");
    // a matrix whose rows are not contiguous is packed for each block of rows
    let by_rows = b.strides.1 == 1 || m >= n;
    let all = if by_rows { m } else { n };
    let out = Disjoint::new(out);
    for_each(all.div_ceil(BLOCK), |i| {
        let (first, count) = (i * BLOCK, BLOCK.min(all - i * BLOCK));
        let (at, a, b) = match by_rows {
            true => (first * n, a.rows(first, count), b),
            false => (first, a, b.columns(first, count)),
        };
        // Safety: no other task has these rows or these columns of `out`.
        unsafe { multiply_at(out.address(at).cast_mut(), n, accumulate, a, b) }
    });
}

/// # Safety
/// For each row r of a: the elements of `out` from r · `row` on, as many as b has columns, are valid, and no one else uses
/// them.
unsafe fn multiply_at(out: *mut f32, row: usize, accumulate: bool, a: Matrix, b: Matrix) {
    let ((m, k), (k_of_b, n)) = (a.shape, b.shape);
    assert_eq!(k, k_of_b, "columns of a, rows of b");
    if m == 0 || n == 0 || (accumulate && k == 0) {
        return;
    }
    let stride = |s: usize| s as isize;
    // Safety: `Matrix` can only be built where its last element, and so each, lies in its slice. The caller answers for
    // `out`, which overlaps neither a nor b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out,
            1,
            stride(row),
            accumulate,
            a.data.as_ptr(),
            stride(a.strides.1),
            stride(a.strides.0),
            b.data.as_ptr(),
            stride(b.strides.1),
            stride(b.strides.0),
            1f32,
            1f32,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_inner_dimension_gives_zeros() {
        let (a, b) = (Matrix::new(&[], 2, 0), Matrix::new(&[], 0, 2));
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
