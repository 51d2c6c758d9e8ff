//! Products of matrices in row-major order, by cuBLAS.

use super::floats::{Element, Floats};
use super::stream::Stream;
use candle_core::cuda_backend::cudarc::cublas::result;
use candle_core::cuda_backend::cudarc::cublas::sys::cublasOperation_t::{
    self, CUBLAS_OP_N, CUBLAS_OP_T,
};
use candle_core::{Error, Result};

/// A matrix of `rows` × `columns`, or the transposed of one that lies in memory.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    floats: Floats,
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl Matrix {
    pub fn new(floats: Floats, rows: usize, columns: usize) -> Self {
        assert_eq!(floats.len, rows * columns, "elements of a matrix");
        assert_eq!(floats.element, Element::F32, "matrix products are f32");
        Self {
            floats,
            rows,
            columns,
            transposed: false,
        }
    }

    pub fn t(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            transposed: !self.transposed,
            ..self
        }
    }

    /// The operation with which cuBLAS, which counts by columns, takes it, and the length of a column for cuBLAS.
    fn operation(self) -> (cublasOperation_t, i32) {
        if self.transposed {
            (CUBLAS_OP_T, self.rows as i32)
        } else {
            (CUBLAS_OP_N, self.columns as i32)
        }
    }
}

/// `to = a · b`, or `to += a · b`.
pub(crate) fn multiply(stream: &Stream, to: Floats, add: bool, a: Matrix, b: Matrix) -> Result<()> {
    let m = a.rows;
    let k = a.columns;
    let n = b.columns;
    assert_eq!(
        (b.rows, to.len),
        (k, m * n),
        "shapes of a product of matrices"
    );
    if to.len == 0 {
        return Ok(());
    }
    if k == 0 {
        return if add { Ok(()) } else { stream.fill(to, 0.) };
    }
    let (op_a, lda) = a.operation();
    let (op_b, ldb) = b.operation();
    let alpha = 1f32;
    let beta = f32::from(u8::from(add));
    let handle = stream.device().cublas_handle();
    // Safety: the handle belongs to this stream; the three matrices have the sizes that are given here,
    // and read by columns the product is that of the transposed ones in the other order.
    let done = unsafe {
        result::sgemm(
            *handle.handle(),
            op_b,
            op_a,
            n as i32,
            m as i32,
            k as i32,
            &alpha,
            b.floats.address as *const f32,
            ldb,
            a.floats.address as *const f32,
            lda,
            &beta,
            to.address as *mut f32,
            n as i32,
        )
    };
    done.map_err(Error::wrap)
}
