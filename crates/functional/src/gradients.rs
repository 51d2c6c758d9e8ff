//! The gradients of a network's parameters in one flat buffer, the way an all-reduce wants them.
//! The operations of this crate write there directly; what other operations of candle's computed is
//! added.

use crate::operation::Grad;
use candle_core::{DType, Device, Result, Tensor, TensorId, Var, bail};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

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
    params: Vec<(String, Tensor)>,
    flat: Flat,
}

#[derive(Default)]
struct Flat {
    /// On the CPU.
    floats: Vec<f32>,
    /// On another device.
    tensor: Option<Tensor>,
    /// Id and length of each parameter, in order.
    layout: Vec<(TensorId, usize)>,
    written: Vec<bool>,
}

thread_local! {
    /// The buffer of the [`Gradients::backward`] that runs on this thread.
    static FLAT: RefCell<Option<Flat>> = const { RefCell::new(None) };
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
        let params: Vec<_> = params.into_iter().map(named).collect();
        let layout: Vec<_> = params
            .iter()
            .map(|(_, p)| (p.id(), p.elem_count()))
            .collect();
        let ids: HashSet<_> = layout.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), layout.len(), "a parameter is there twice");
        let len = layout.iter().map(|(_, len)| len).sum();
        let device = params.first().map_or(&Device::Cpu, |(_, p)| p.device());
        let (floats, tensor) = match device {
            Device::Cpu => (vec![0.; len], None),
            device => (vec![], Some(Tensor::zeros(len, DType::F32, device)?)),
        };
        let written = vec![false; layout.len()];
        Ok(Self {
            params,
            flat: Flat {
                floats,
                tensor,
                layout,
                written,
            },
        })
    }

    /// Replaces the contents by the gradients of the scalar `loss`.
    ///
    /// # Errors
    /// Where the loss does not depend on a parameter; the message names it.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        self.flat.written.fill(false);
        let store = {
            let _lent = Lent::new(&mut self.flat);
            loss.backward()?
        };
        let mut first = 0;
        for (i, (name, param)) in self.params.iter().enumerate() {
            let written = self.flat.written[i];
            match store.get(param) {
                Some(grad) => self.flat.put(first, &grad.flatten_all()?, written)?,
                None if !written => bail!("the loss does not depend on the parameter {name}"),
                None => {}
            }
            first += param.elem_count();
        }
        Ok(())
    }

    /// All gradients, one after the other, where the parameters are on the CPU; otherwise nothing.
    pub fn flat(&self) -> &[f32] {
        &self.flat.floats
    }

    /// All gradients, one after the other, as one tensor where the parameters are on a GPU; none where
    /// they are on the CPU.
    pub fn tensor(&self) -> Option<&Tensor> {
        self.flat.tensor.as_ref()
    }

    /// Sets all to zero.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn zero(&mut self) -> Result<()> {
        self.flat.floats.fill(0.);
        match &self.flat.tensor {
            Some(tensor) => tensor.zero_set(),
            None => Ok(()),
        }
    }
}

impl Flat {
    /// Writes or adds the gradient that begins at `first`.
    fn put(&mut self, first: usize, grad: &Tensor, add: bool) -> Result<()> {
        let len = grad.elem_count();
        match &self.tensor {
            None => {
                let grad = grad.to_vec1::<f32>()?;
                crate::operation::put(&mut self.floats[first..first + len], grad.into_iter(), add);
                Ok(())
            }
            Some(flat) if add => flat.slice_set(&(flat.narrow(0, first, len)? + grad)?, 0, first),
            Some(flat) => flat.slice_set(&grad.contiguous()?, 0, first),
        }
    }
}

/// The buffer while it is the thread's; it comes back even if backward panics.
struct Lent<'a>(&'a mut Flat);

impl<'a> Lent<'a> {
    fn new(flat: &'a mut Flat) -> Self {
        FLAT.set(Some(std::mem::take(flat)));
        Self(flat)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.0 = FLAT.take().unwrap_or_default();
    }
}

/// The places for the gradients of parameters, by their ids.
pub(crate) struct Places<'a>(HashMap<TensorId, (usize, &'a mut [f32])>, &'a mut [bool]);

impl<'a> Places<'a> {
    /// The place of one parameter's gradient, if it has one; given away once.
    pub(crate) fn take(&mut self, id: TensorId) -> Option<Grad<'a>> {
        let (i, to) = self.0.remove(&id)?;
        let written = std::mem::replace(&mut self.1[i], true);
        Some(Grad::Slice { to, written })
    }
}

/// Calls `f` with the places that the running [`Gradients::backward`] has; without one, with none.
pub(crate) fn with_flat<R>(f: impl FnOnce(&mut Places<'_>) -> R) -> R {
    FLAT.with_borrow_mut(|flat| {
        let mut nothing = Flat::default();
        let flat = flat.as_mut().unwrap_or(&mut nothing);
        let mut places = HashMap::new();
        let mut rest = &mut flat.floats[..];
        for (i, (id, len)) in flat.layout.iter().enumerate() {
            let (to, tail) = rest.split_at_mut(*len);
            places.insert(*id, (i, to));
            rest = tail;
        }
        f(&mut Places(places, &mut flat.written))
    })
}

/// The tensor of the [`Gradients::backward`] that runs on this thread, where its parameters are on a GPU.
#[cfg(feature = "cuda")]
pub(crate) fn on_device() -> Option<Tensor> {
    FLAT.with_borrow(|flat| flat.as_ref()?.tensor.clone())
}

/// Where in that tensor the gradient of a parameter begins, and whether a part of it is there already.
#[cfg(feature = "cuda")]
pub(crate) fn take_place(id: TensorId) -> Option<(usize, bool)> {
    FLAT.with_borrow_mut(|flat| {
        let flat = flat.as_mut()?;
        let i = flat.layout.iter().position(|(other, _)| *other == id)?;
        let first = flat.layout[..i].iter().map(|(_, len)| len).sum();
        Some((first, std::mem::replace(&mut flat.written[i], true)))
    })
}
