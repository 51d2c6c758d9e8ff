//! Number of predictions that are right.

use candle_core::{D, DType, Result, Tensor, bail};

/// The number of labels at which the output is the largest ("Softmax Regression Implementation from Scratch"):
/// `y_hat` (B, classes), `y` (B,), or (B, …, classes) and (B, …). It is 0 for 0 examples: a replica may get none.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let y_hat = Tensor::new(&[[0.1f32, 0.3, 0.6], [0.3, 0.2, 0.5]], &Device::Cpu)?;
/// let y = Tensor::new(&[0u32, 2], &Device::Cpu)?;
/// assert_eq!(data_parallel_training::accuracy(&y_hat, &y)?, 1);
/// assert_eq!(data_parallel_training::accuracy(&y_hat.narrow(0, 0, 0)?, &y.narrow(0, 0, 0)?)?, 0);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If the shapes do not fit, there is one class only, or the labels are not u32.
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
    let expected = &y_hat.dims()[..y_hat.rank().saturating_sub(1)];
    if y.dims() == y_hat.dims() {
        bail!(
            "accuracy: y has shape {:?} as y_hat, expected {expected:?}: of one-hot labels take y.argmax(D::Minus1)",
            y.dims()
        )
    }
    if y.dims() != expected {
        bail!(
            "accuracy: y has shape {:?}, expected {expected:?} for y_hat of shape {:?}",
            y.dims(),
            y_hat.dims()
        )
    }
    if y.dtype() != DType::U32 {
        bail!(
            "accuracy: y is {}, expected u32; convert it with to_dtype",
            y.dtype().as_str()
        )
    }
    let right = y_hat.argmax(D::Minus1)?.eq(y)?;
    Ok(right.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()? as usize)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// What to do is said, and then it is right.
    #[test]
    fn labels_that_do_not_fit_are_named() -> Result<()> {
        let y_hat = Tensor::new(&[[0.1f32, 0.3, 0.6], [0.3, 0.2, 0.5]], &Device::Cpu)?;
        let y = Tensor::new(&[0u32, 2], &Device::Cpu)?;
        let one_hot = Tensor::new(&[[1f32, 0.0, 0.0], [0.0, 0.0, 1.0]], &Device::Cpu)?;
        let says = |y: &Tensor| accuracy(&y_hat, y).unwrap_err().to_string();
        for dtype in [DType::U8, DType::I64, DType::F32] {
            let said = says(&y.to_dtype(dtype)?);
            let words = format!(
                "y is {}, expected u32; convert it with to_dtype",
                dtype.as_str()
            );
            assert!(said.contains(&words), "{said}");
        }
        for one_hot in [one_hot.clone(), one_hot.to_dtype(DType::U32)?] {
            let said = says(&one_hot);
            let words = "y has shape [2, 3] as y_hat, expected [2]: of one-hot labels take y.argmax(D::Minus1)";
            assert!(said.contains(words), "{said}");
            assert_eq!(accuracy(&y_hat, &one_hot.argmax(D::Minus1)?)?, 1);
        }
        let said = says(&y.unsqueeze(1)?);
        assert!(
            said.contains("y has shape [2, 1], expected [2] for y_hat of"),
            "{said}"
        );
        Ok(())
    }
}
