//! How many predictions are right.

use candle_core::{D, DType, Result, Tensor, bail};

/// The number of labels at which the output is the largest ("Softmax Regression Implementation from Scratch"):
/// `y_hat` (B, classes), `y` (B,), or (B, …, classes) and (B, …). It is 0 for 0 examples: a replica may get none.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let y_hat = Tensor::new(&[[0.1f32, 0.3, 0.6], [0.3, 0.2, 0.5]], &Device::Cpu)?;
/// let y = Tensor::new(&[0u32, 2], &Device::Cpu)?;
/// assert_eq!(training::accuracy(&y_hat, &y)?, 1);
/// assert_eq!(training::accuracy(&y_hat.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?)?, 0);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If the numbers of examples differ, or there is one class only.
pub fn accuracy(y_hat: &Tensor, y: &Tensor) -> Result<usize> {
    if y_hat.elem_count() == 0 && y.elem_count() == 0 {
        return Ok(0); // candle has no largest of nothing
    }
    if y_hat.dims().last() == Some(&1) {
        bail!(
            "accuracy: y_hat has shape {:?}, one class, which is always the largest; count with a threshold instead",
            y_hat.dims()
        )
    }
    let right = y_hat.argmax(D::Minus1)?.eq(y)?;
    Ok(right.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}
