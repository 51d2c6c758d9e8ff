//! Looks for NaN and infinity, as fast as the memory gives the numbers.

use crate::cpu::gradient::CHUNK;
use crate::cpu::threads::for_each_chunk;
use crate::memory::bucket::{BucketMemory, Part};
use crate::memory::tensors::read_all;
use candle_core::{DType, Result, Tensor};
use devices::vectorized;

/// The index of the first element of `x` that is NaN or infinite; none also where `x` is no f32 tensor on the CPU.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2.], [f32::NAN, 4.]], &Device::Cpu)?;
/// assert_eq!(data_parallel_functional::not_finite(&x)?, Some(2));
/// assert_eq!(data_parallel_functional::not_finite(&x.narrow(0, 0, 1)?)?, None);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where there is no memory left for a contiguous copy.
pub fn not_finite(x: &Tensor) -> Result<Option<usize>> {
    if !x.device().is_cpu() || x.dtype() != DType::F32 {
        return Ok(None);
    }
    read_all(&[x.contiguous()?], |x| {
        let is_finite = vectorized(
            #[inline(always)]
            || largest_bits(x[0]) < f32::INFINITY.to_bits(),
        );
        let first = || x[0].iter().position(|v| !v.is_finite());
        Ok(if is_finite { None } else { first() })
    })
}

/// The first of the parts of a bucket that is NaN or infinite, with its value; none on a GPU.
pub(crate) fn not_finite_part<'a>(
    values: &BucketMemory,
    parts: &'a [Part],
) -> Option<(&'a Part, f32)> {
    let first = |floats: &[f32]| {
        if are_finite(floats) {
            return None;
        }
        parts.iter().find_map(|part| {
            let mut values = floats[part.range.clone()].iter();
            let value = values.find(|value| !value.is_finite())?;
            Some((part, *value))
        })
    };
    match values {
        BucketMemory::Floats(floats) => first(floats),
        BucketMemory::Tensor(tensor) if tensor.device().is_cpu() => {
            read_all(std::slice::from_ref(tensor), |floats| Ok(first(floats[0]))).ok()?
        }
        _ => None,
    }
}

/// True if all are finite. Uses the threads of this replica.
fn are_finite(values: &[f32]) -> bool {
    let mut largest = vec![0; values.len().div_ceil(CHUNK)];
    for_each_chunk(
        &mut largest,
        1,
        #[inline(always)]
        |i, largest| {
            let chunk = &values[i * CHUNK..];
            largest[0] = largest_bits(&chunk[..CHUNK.min(chunk.len())]);
        },
    );
    largest.iter().all(|bits| *bits < f32::INFINITY.to_bits())
}

/// The largest of all bits without the sign: those of infinity and NaN are larger than those of all numbers.
#[inline(always)]
fn largest_bits(x: &[f32]) -> u32 {
    let mut most = 0;
    for v in x {
        most = most.max(v.to_bits() & 0x7fff_ffff);
    }
    most
}
