//! The checks of operations on their arguments, each check once. It computes nothing.

use candle_core::{DType, Device, Result, bail};

/// Checks that a tensor is f32.
pub(crate) fn check_float(op: &str, name: &str, dtype: DType) -> Result<()> {
    if dtype != DType::F32 {
        let dtype = dtype.as_str();
        bail!("{op}: {name} is {dtype}, expected f32; convert it with to_dtype")
    }
    Ok(())
}

/// Checks that a tensor is where x is.
pub(crate) fn check_device(op: &str, x: &Device, name: &str, other: &Device) -> Result<()> {
    if !x.same_device(other) {
        let x = x.location();
        let other = other.location();
        bail!("{op}: x is on {x:?}, {name} on {other:?}; move one with to_device")
    }
    Ok(())
}

/// The sizes of an image tensor; `axes` names them in the message, such as "(B, H, W, C)".
pub(crate) fn dims4(op: &str, axes: &str, x: &[usize]) -> Result<[usize; 4]> {
    match *x {
        [a, b, c, d] => Ok([a, b, c, d]),
        _ => bail!("{op}: x has shape {x:?}, expected {axes}"),
    }
}

/// Checks that a vector has one value for each of `expected`, such as "20 channels of x".
pub(crate) fn vector(op: &str, name: &str, v: &[usize], len: usize, of: &str) -> Result<()> {
    if v != [len] {
        bail!("{op}: {name} has shape {v:?}, expected [{len}] for the {len} {of}")
    }
    Ok(())
}

/// Checks a bias, where there is one, as [`vector`].
pub(crate) fn bias(op: &str, bias: Option<&[usize]>, len: usize, of: &str) -> Result<()> {
    bias.map_or(Ok(()), |bias| vector(op, "bias", bias, len, of))
}

/// Checks the number under the root of a norm.
pub(crate) fn eps(op: &str, eps: f32) -> Result<()> {
    if !eps.is_finite() || eps < 0. {
        bail!("{op}: eps is {eps}, expected a finite number, 0 or more")
    }
    Ok(())
}

/// Number of windows of `kernel` that fit into `size` with `padding` on both sides, in steps of
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
