//! A parameter with its gradient beside it, and the step that uses both.

use std::ops::Deref;

use candle_core::{Result, Tensor, Var, bail};
use functional::Value;

/// A parameter on one device with its gradient attached, as the book has it after
/// `p.requires_grad_()`; wherever a tensor is read, it stands for its value.
#[derive(Debug, Clone)]
pub struct Param {
    value: Var,
    grad: Var,
}

impl Param {
    /// A copy of `value` on the device where it is, with a gradient of zeros.
    ///
    /// It is always a copy: between two CPU replicas candle's `to_device` shares the storage,
    /// and two replicas that share a parameter are one.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// let b1 = d2l::Param::new(&Tensor::ones(2, candle_core::DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(b1.to_vec1::<f32>()?, [1.0, 1.0]);
    /// assert_eq!(b1.grad().to_vec1::<f32>()?, [0.0, 0.0]);
    /// # candle_core::Result::Ok(())
    /// ```
    pub fn new(value: &Tensor) -> Result<Self> {
        Ok(Self {
            // `Var::from_tensor` copies, but of another variable it makes an alias
            value: Var::from_tensor(&value.detach())?,
            grad: Var::from_tensor(&value.zeros_like()?)?,
        })
    }

    /// The gradient that the last [`backward`] left, or an all-reduce after it.
    pub fn grad(&self) -> &Var {
        &self.grad
    }
}

impl Deref for Param {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.value
    }
}

/// Backpropagation: computes the scalar `l`, writes its gradient into each of `params`, and returns it: the book's
/// `l.backward()`.
///
/// # Errors
/// If `l` is no scalar, or does not depend on one of them.
pub fn backward(l: &Value, params: &[Param]) -> Result<Tensor> {
    functional::backward(l, params.iter().map(|p| (&p.value, &p.grad)))
}

/// Minibatch stochastic gradient descent, in place: `param -= lr · grad / batch_size`
/// ("Linear Regression Implementation from Scratch").
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # use data_parallel_functional::Value;
/// let w = [d2l::Param::new(&Tensor::new(&[3f32], &Device::Cpu)?)?];
/// d2l::backward(&Value::new(&w[0].sqr()?)?.sum()?, &w)?; // the gradient of w² is 2w = 6
/// d2l::sgd(&w, 0.5, 2)?;
/// assert_eq!(w[0].to_vec1::<f32>()?, [1.5]);
/// # candle_core::Result::Ok(())
/// ```
///
/// # Errors
/// If `batch_size` is 0.
#[tracing::instrument(skip_all, name = "update")]
pub fn sgd(params: &[Param], lr: f64, batch_size: usize) -> Result<()> {
    if batch_size == 0 {
        bail!("sgd: batch_size is 0; a step needs at least 1 example");
    }
    let values: Vec<&Var> = params.iter().map(|param| &param.value).collect();
    let grads = params.iter().map(|param| param.grad.as_detached_tensor());
    functional::sgd(&values, &grads.collect::<Vec<_>>(), lr, batch_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn a_parameter_without_a_gradient_is_an_error() -> Result<()> {
        let used = Param::new(&Tensor::ones(1, DType::F32, &Device::Cpu)?)?;
        let unused = Param::new(&Tensor::ones(1, DType::F32, &Device::Cpu)?)?;
        let l = Value::new(&used.sqr()?)?.sum()?;
        let error = backward(&l, &[used, unused]).unwrap_err().to_string();
        assert!(error.contains("parameter 1"), "{error}");
        Ok(())
    }
}
