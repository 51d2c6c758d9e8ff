//! Matrix products on one thread: the crate `gemm` behind a safe function that checks bounds.
//! It never starts a thread: the caller decides what runs in parallel.

use gemm::Parallelism;

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

    /// Rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        self.shape
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
}

/// `out = a · b`, or `out += a · b` where `accumulate`; `out` is stored row after row.
///
/// # Panics
/// Where the shapes do not match.
pub(crate) fn multiply(out: &mut [f32], accumulate: bool, a: Matrix, b: Matrix) {
    let ((m, k), (k_of_b, n)) = (a.shape, b.shape);
    assert_eq!(k, k_of_b, "columns of a, rows of b");
    assert_eq!(out.len(), m * n, "elements of out, of the product");
    if !accumulate && k == 0 {
        out.fill(0.);
    }
    if out.is_empty() || k == 0 {
        return;
    }
    let stride = |s: usize| s as isize;
    // Safety: `Matrix` can only be built where its last element, and so each, lies in its slice;
    // `out` has m * n elements and is borrowed mutably, so it overlaps neither a nor b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(n),
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
