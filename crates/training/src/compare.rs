//! Compares parameters of replicas to the bit.

use anyhow::{Result, bail};
use candle_core::Tensor;

/// Compares one parameter of two replicas, each with the name of its device.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let a = Tensor::new(&[[1f32, 2.0]], &Device::Cpu)?;
/// let b = Tensor::new(&[[1f32, 3.0]], &Device::Cpu)?;
/// let error = training::compare("W1", ("cpu(0)", &a), ("cpu(1)", &b)).unwrap_err();
/// assert_eq!(error.to_string(), "the replicas differ: W1[0, 1] is 2 on cpu(0) and 3 on cpu(1)");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// Names the first element that has other bits.
pub fn compare(name: &str, (on_a, a): (&str, &Tensor), (on_b, b): (&str, &Tensor)) -> Result<()> {
    let values = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
    let (x, y) = (values(a)?, values(b)?);
    let differ = |(x, y): (&f32, &f32)| x.to_bits() != y.to_bits();
    match x.iter().zip(&y).position(differ) {
        None => Ok(()),
        Some(i) => {
            let (at, x, y) = (index(i, a.dims()), x[i], y[i]);
            bail!("the replicas differ: {name}{at:?} is {x} on {on_a} and {y} on {on_b}")
        }
    }
}

/// Where element `i` is in a tensor of that shape.
fn index(mut i: usize, dims: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = Vec::new();
    for dim in dims.iter().rev() {
        index.push(i % dim);
        i /= dim;
    }
    index.reverse();
    index
}
