//! The gradients of a network's parameters where their owner wants them: each in a variable of its own,
//! or all in one flat buffer, the way an all-reduce wants them. The operations of this crate write
//! there directly; what other operations of candle's computed is added.

use crate::places::{Memory, Places};
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use std::collections::HashSet;

/// Writes the gradient of the scalar `loss` with respect to each parameter into the variable beside it,
/// on the same device and of as many elements. In the book: `l.backward()`.
///
/// ```
/// use candle_core::{DType, Device, Tensor, Var};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let grad = Var::zeros((1, 2), DType::F32, &Device::Cpu)?;
/// let x = Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// functional::backward(&functional::linear(&x, &w, None)?.sum_all()?, [(&w, &grad)])?;
/// assert_eq!(grad.to_vec2::<f32>()?, [[10., 20.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Where the loss does not depend on a parameter, or the elements of a pair are not as many.
pub fn backward<'a>(
    loss: &Tensor,
    params: impl IntoIterator<Item = (&'a Var, &'a Var)>,
) -> Result<()> {
    let mut places = Places::default();
    for (param, grad) in params {
        if param.elem_count() != grad.elem_count() {
            let (param, grad) = (param.dims(), grad.dims());
            bail!("backward: a parameter has shape {param:?}, its gradient {grad:?}")
        }
        let memory = Memory::Tensor(grad.as_tensor().clone());
        places.add(memory, [param.as_tensor().clone()]);
    }
    match places.backward(loss)? {
        Some(i) => bail!("backward: the loss does not depend on parameter {i}"),
        None => Ok(()),
    }
}

/// The gradients of parameters, one after the other in the order of the parameters.
///
/// ```
/// use candle_core::{Device, Var};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let b = Var::new(&[3f32], &Device::Cpu)?;
/// let x = candle_core::Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let mut gradients = functional::Gradients::new([("w", &w), ("b", &b)])?;
/// let y = functional::linear(&x, &w, Some(&b))?.sum_all()?;
/// gradients.backward(&y)?;
/// assert_eq!(gradients.flat(), [10., 20., 1.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub struct Gradients {
    names: Vec<String>,
    places: Places,
}

impl Gradients {
    /// Zeros for each of `params`, which have names for messages and are all on one device.
    ///
    /// # Errors
    /// Where that device has no memory left.
    ///
    /// # Panics
    /// Where a parameter is there twice.
    pub fn new<'a>(params: impl IntoIterator<Item = (&'a str, &'a Var)>) -> Result<Self> {
        let named = |(name, var): (&str, &Var)| (name.to_owned(), var.as_tensor().clone());
        let (names, params): (Vec<_>, Vec<Tensor>) = params.into_iter().map(named).unzip();
        let ids: HashSet<_> = params.iter().map(Tensor::id).collect();
        assert_eq!(ids.len(), params.len(), "a parameter is there twice");
        let len = params.iter().map(Tensor::elem_count).sum();
        let memory = match params.first().map(Tensor::device) {
            None | Some(Device::Cpu) => Memory::Floats(vec![0.; len]),
            Some(device) => Memory::Tensor(Tensor::zeros(len, DType::F32, device)?),
        };
        let mut places = Places::default();
        places.add(memory, params);
        Ok(Self { names, places })
    }

    /// Replaces the contents by the gradients of the scalar `loss`.
    ///
    /// # Errors
    /// Where the loss does not depend on a parameter; the message names it.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        match self.places.backward(loss)? {
            Some(i) => bail!(
                "the loss does not depend on the parameter {}",
                self.names[i]
            ),
            None => Ok(()),
        }
    }

    /// All gradients, one after the other, where the parameters are on the CPU; otherwise nothing.
    pub fn flat(&self) -> &[f32] {
        match self.places.first() {
            Some(Memory::Floats(floats)) => floats,
            _ => &[],
        }
    }

    /// All gradients, one after the other, as one tensor where the parameters are on a GPU; none where
    /// they are on the CPU.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self.places.first() {
            Some(Memory::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// Sets all to zero.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn zero(&mut self) -> Result<()> {
        match self.places.first_mut() {
            Some(Memory::Floats(floats)) => floats.fill(0.),
            Some(Memory::Tensor(tensor)) => tensor.zero_set()?,
            None => {}
        }
        Ok(())
    }
}
