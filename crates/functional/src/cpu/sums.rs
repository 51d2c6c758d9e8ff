//! Sums of rows, always in the same order.

/// Adds the chunks of `size` elements, in order.
#[inline(always)]
pub(crate) fn sum_of_chunks(all: &[f32], size: usize) -> Vec<f32> {
    let mut sum = vec![0.; size];
    for chunk in all.chunks_exact(size) {
        for (sum, v) in sum.iter_mut().zip(chunk) {
            *sum += v;
        }
    }
    sum
}

/// Adds the sum of each column of a matrix to `sums`; the matrix first, which keeps the sum exact
/// to a few bits however many matrices follow each other.
#[inline(always)]
pub(crate) fn add_column_sums(matrix: &[f32], sums: &mut [f32]) {
    let columns = sum_of_chunks(matrix, sums.len());
    for (sum, column) in sums.iter_mut().zip(columns) {
        *sum += column;
    }
}
