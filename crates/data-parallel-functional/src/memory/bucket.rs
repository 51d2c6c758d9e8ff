//! Buckets: the gradients of parameters in memories of their own, which can go where they are wanted.
//! It says what a bucket is and which parameters share one; it computes no gradient.

use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;

use crate::memory::tensors::with_slice_mut;

/// The gradients of some parameters that follow each other, one after the other in one memory.
/// [`Gradients`](crate::Gradients) hands it out by value and takes it back.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use data_parallel_functional::{Gradients, Value, BucketMemory};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
/// gradients.backward(&Value::new(&x)?.linear(&w, None)?.sum()?)?;
///
/// let mut buckets = Vec::new();
/// gradients.give(&mut |bucket| Ok(buckets.push(bucket)))?;
/// let bucket = buckets.remove(0);
/// assert_eq!((bucket.index, bucket.parts[0].parameter), (0, 0));
/// assert_eq!(bucket.parts[0].range, 0..2);
/// assert!(matches!(&bucket.values, BucketMemory::Floats(floats) if *floats == [10., 20.]));
/// gradients.put_back(bucket)?;
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Bucket {
    /// Its number among the buckets; 0 is the one with the last parameters.
    pub index: usize,
    /// Which parameters it holds, and where, in the order of the parameters.
    pub parts: Arc<[Part]>,
    /// The gradients themselves.
    pub values: BucketMemory,
}

/// The place of the gradient of one parameter in its bucket.
///
/// ```
/// let w = candle_core::Var::new(&[1f32, 2.], &candle_core::Device::Cpu)?;
/// let gradients = data_parallel_functional::Gradients::new([("w", &w)], usize::MAX)?;
/// for part in gradients.layout().flat_map(|parts| parts.iter()) {
///     assert_eq!((part.parameter, part.range.len()), (0, 2));
/// }
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The number of the parameter, in the order in which [`Gradients`](crate::Gradients) was given them.
    pub parameter: usize,
    /// Its elements.
    pub range: Range<usize>,
}

/// The memory of a bucket.
///
/// ```
/// let values = data_parallel_functional::BucketMemory::Floats(vec![1., 2.]);
/// assert_eq!(values.elem_count(), 2);
/// ```
pub enum BucketMemory {
    /// Of parameters on the CPU.
    Floats(Vec<f32>),
    /// Of parameters on a GPU; it has one dimension.
    Tensor(Tensor),
}

impl BucketMemory {
    /// Number of elements.
    pub fn elem_count(&self) -> usize {
        match self {
            BucketMemory::Floats(floats) => floats.len(),
            BucketMemory::Tensor(tensor) => tensor.elem_count(),
        }
    }

    /// A copy of some of the elements.
    ///
    /// ```
    /// let values = data_parallel_functional::BucketMemory::Floats(vec![1., 2., 3.]);
    /// assert_eq!(values.get(1..3)?.to_vec1::<f32>()?, [2., 3.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a GPU fails.
    ///
    /// # Panics
    /// Where there are no such elements.
    pub fn get(&self, range: Range<usize>) -> Result<Tensor> {
        match self {
            BucketMemory::Floats(floats) => Tensor::new(&floats[range], &Device::Cpu),
            // not `copy`, which takes all of the memory along that the part lies in
            BucketMemory::Tensor(tensor) => tensor
                .narrow(0, range.start, range.len())?
                .force_contiguous(),
        }
    }

    /// Writes zeros.
    pub(crate) fn zero(&mut self, range: Range<usize>) -> Result<()> {
        let zero = |floats: &mut [f32]| {
            floats[range.clone()].fill(0.);
            Ok(())
        };
        match self {
            BucketMemory::Floats(floats) => zero(floats),
            BucketMemory::Tensor(tensor) if tensor.device().is_cpu() => {
                with_slice_mut(tensor, zero)
            }
            BucketMemory::Tensor(tensor) => {
                let zeros = Tensor::zeros(range.len(), tensor.dtype(), tensor.device())?;
                tensor.flatten_all()?.slice_set(&zeros, 0, range.start)
            }
        }
    }
}

/// The elements of each bucket of [`Gradients`](crate::Gradients), given those of its parameters and `bucket_len`.
///
/// ```
/// assert_eq!(data_parallel_functional::bucket_sizes(&[3, 2, 1, 4, 1], 5), [5, 3, 3]);
/// ```
pub fn bucket_sizes(lens: &[usize], bucket_len: usize) -> Vec<usize> {
    share_out(lens, bucket_len)
        .into_iter()
        .map(|numbers| lens[numbers].iter().sum())
        .collect()
}

/// The parameters of each bucket, given their lengths: at most `bucket_len` elements, unless one parameter
/// alone has more. They are filled from the last parameter on, because backward comes to it first.
pub(crate) fn share_out(lens: &[usize], bucket_len: usize) -> Vec<Range<usize>> {
    let mut buckets = Vec::new();
    let mut end = lens.len();
    let mut filled = 0;
    for (i, len) in lens.iter().enumerate().rev() {
        if i + 1 < end && *len > bucket_len.saturating_sub(filled) {
            buckets.push(i + 1..end);
            (end, filled) = (i + 1, 0);
        }
        filled += len;
    }
    if end > 0 {
        buckets.push(0..end);
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::share_out;

    #[test]
    fn buckets_are_filled_from_the_last_parameter_and_cut_none() {
        assert_eq!(share_out(&[3, 2, 1, 4, 1], 5), [3..5, 1..3, 0..1]);
        let one = &share_out(&[3, 2, 1, 4, 1], usize::MAX)[..];
        assert!(matches!(one, [all] if *all == (0..5)));
        assert_eq!(share_out(&[1, 1, 9, 1, 1], 2), [3..5, 2..3, 0..2]); // larger than a bucket
        assert_eq!(share_out(&[9, 1], 2), [1..2, 0..1]);
        assert_eq!(share_out(&[2, 2], 0), [1..2, 0..1]);
        assert_eq!(share_out(&[2, 0, 2], 2), [1..3, 0..1]); // nothing takes no room
        assert!(share_out(&[], 5).is_empty());
    }
}
