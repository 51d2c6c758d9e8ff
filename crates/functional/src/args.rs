//! What the operations and their plain twins check of their arguments, each check once.
//! It computes nothing.

use crate::grad;
use candle_core::{DType, Result, Tensor, bail};

/// `tensor`, checked to be f32; without its graph inside [`crate::no_grad`], where an operation on
/// untracked inputs records nothing.
pub(crate) fn float(op: &str, name: &str, tensor: &Tensor) -> Result<Tensor> {
    if tensor.dtype() != DType::F32 {
        bail!(
            "{op}: {name} is {}, expected f32; convert it with to_dtype",
            tensor.dtype().as_str()
        )
    }
    Ok(if grad::recording() {
        tensor.clone()
    } else {
        tensor.detach()
    })
}

/// The sizes of an image tensor; `axes` names them in the message, such as "(B, H, W, C)".
pub(crate) fn dims4(op: &str, axes: &str, x: &Tensor) -> Result<[usize; 4]> {
    match *x.dims() {
        [a, b, c, d] => Ok([a, b, c, d]),
        _ => bail!("{op}: x has shape {:?}, expected {axes}", x.dims()),
    }
}

/// Checks that a vector has one value for each of `expected`, such as "20 channels of x".
pub(crate) fn vector(op: &str, name: &str, v: &Tensor, len: usize, of: &str) -> Result<()> {
    if v.dims() != [len] {
        bail!(
            "{op}: {name} has shape {:?}, expected [{len}] for the {len} {of}",
            v.dims()
        )
    }
    Ok(())
}

/// How often a window of `kernel` fits into `size` with `padding` on both sides, in steps of
/// `stride`; what is left over at the end is not covered.
pub(crate) fn windows(
    op: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Result<usize> {
    if stride == 0 || kernel == 0 {
        bail!("{op}: kernel {kernel} and stride {stride} must be at least 1")
    }
    match (size + 2 * padding).checked_sub(kernel) {
        Some(room) => Ok(room / stride + 1),
        None => bail!("{op}: kernel {kernel} is larger than x, {size} with padding {padding}"),
    }
}
