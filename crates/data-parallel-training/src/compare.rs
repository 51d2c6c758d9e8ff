//! Compares parameters of replicas to the bit.

use std::fmt::Display;

use candle_core::{DType, Result, Tensor};
use devices::bail;

use crate::values::with_values;

/// Compares one parameter of two replicas. `places` are the names of their devices.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let a = Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?;
/// let b = Tensor::new(&[[1f32, 3.0]], &Device::Cpu)?;
/// let error = data_parallel_training::compare("W1", ["cpu(0)", "cpu(1)"], [&a, &b]).unwrap_err();
/// assert_eq!(error.to_string(), "the replicas differ: W1[0, 1] is 2 on cpu(0) and 3 on cpu(1)");
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// Names the first element that has other bits.
pub fn compare(name: &str, places: [&str; 2], params: [&Tensor; 2]) -> Result<()> {
    let [a, b] = params;
    let differ = if a.dtype() == DType::F32 {
        let bits = |x: f32| u64::from(x.to_bits());
        with_values(a, |a| with_values(b, |b| first_difference(a, b, bits)))??
    } else {
        // such as a frozen table of integers
        let numbers = |tensor: &Tensor| tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1();
        first_difference(&numbers(a)?, &numbers(b)?, f64::to_bits)
    };
    match differ {
        None => Ok(()),
        Some(Difference { element, x, y }) => {
            let at = index(element, a.dims());
            let [on_a, on_b] = places;
            bail!("the replicas differ: {name}{at:?} is {x} on {on_a} and {y} on {on_b}")
        }
    }
}

/// An element of two tensors, and what it is in each.
struct Difference {
    element: usize,
    x: String,
    y: String,
}

fn first_difference<T: Copy + Display>(
    x: &[T],
    y: &[T],
    bits: impl Fn(T) -> u64,
) -> Option<Difference> {
    let mut pairs = x.iter().zip(y);
    let element = pairs.position(|(x, y)| bits(*x) != bits(*y))?;
    Some(Difference {
        element,
        x: x[element].to_string(),
        y: y[element].to_string(),
    })
}

/// Index of element `i` in a tensor of that shape.
fn index(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = Vec::new();
    for dim in dims.iter().rev() {
        index.push(i % dim);
        i /= dim;
    }
    index.reverse();
    index
}
