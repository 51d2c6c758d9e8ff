//! The gradients of a network's parameters in one flat buffer, the way an all-reduce wants them.
//! The operations of this crate write there directly; what other operations of candle's computed is
//! added.

use crate::operation::Grad;
use candle_core::{Result, Tensor, TensorId, Var, bail};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

/// The gradients of parameters, one after the other in the order of the parameters.
///
/// ```
/// use candle_core::{Device, Var};
/// let w = Var::new(&[[1f32, 2.]], &Device::Cpu)?;
/// let b = Var::new(&[3f32], &Device::Cpu)?;
/// let x = candle_core::Tensor::new(&[[10f32, 20.]], &Device::Cpu)?;
/// let mut gradients = functional::Gradients::new([("w", &w), ("b", &b)]);
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
    floats: Vec<f32>,
    /// Id and length of each parameter, in order.
    layout: Vec<(TensorId, usize)>,
    written: Vec<bool>,
}

thread_local! {
    /// The buffer of the [`Gradients::backward`] that runs on this thread.
    static FLAT: RefCell<Option<Flat>> = const { RefCell::new(None) };
}

impl Gradients {
    /// Zeros for each of `params`, which have names for messages.
    ///
    /// # Panics
    /// Where a parameter is there twice.
    pub fn new<'a>(params: impl IntoIterator<Item = (&'a str, &'a Var)>) -> Self {
        let named = |(name, var): (&str, &Var)| (name.to_owned(), var.as_tensor().clone());
        let params: Vec<_> = params.into_iter().map(named).collect();
        let layout: Vec<_> = params
            .iter()
            .map(|(_, p)| (p.id(), p.elem_count()))
            .collect();
        let ids: HashSet<_> = layout.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), layout.len(), "a parameter is there twice");
        let floats = vec![0.; layout.iter().map(|(_, len)| len).sum()];
        let written = vec![false; layout.len()];
        Self {
            params,
            flat: Flat {
                floats,
                layout,
                written,
            },
        }
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
        let mut rest = &mut self.flat.floats[..];
        for (i, (name, param)) in self.params.iter().enumerate() {
            let (to, tail) = rest.split_at_mut(param.elem_count());
            rest = tail;
            let written = self.flat.written[i];
            match store.get(param) {
                Some(grad) => {
                    let grad: Vec<f32> = grad.flatten_all()?.to_vec1()?;
                    crate::operation::put(to, grad.into_iter(), written);
                }
                None if !written => bail!("the loss does not depend on the parameter {name}"),
                None => {}
            }
        }
        Ok(())
    }

    /// All gradients, one after the other.
    pub fn flat(&self) -> &[f32] {
        &self.flat.floats
    }

    /// As [`flat`](Self::flat), to write.
    pub fn flat_mut(&mut self) -> &mut [f32] {
        &mut self.flat.floats
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
