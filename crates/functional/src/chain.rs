//! The short way back from a loss to a network that is one expression: along operations of this crate that have
//! one input each.
//!
//! candle's backward adds each gradient to a tensor of zeros that it makes for it, and comes to an expression
//! through its gates: on a GPU that takes as many kernels as a small network itself. Where all gradients that an
//! expression has to give belong into places, none of it is wanted, and what lies between is a chain. It
//! computes nothing itself; what is no such chain is candle's.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor, TensorId};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// An operation of a chain.
pub(crate) trait Link: CustomOp1 + Send + Sync {
    /// Where the gradient goes from here.
    fn next(&self) -> Result<Next<'_>>;

    /// The gradient of what is [`Next`], from the result `y` and its gradient `dy`; none stands for ones.
    fn back(&self, y: &Tensor, dy: Option<&Tensor>) -> Result<Option<Tensor>>;
}

pub(crate) enum Next<'a> {
    /// To the one input.
    To(&'a Tensor),
    /// Nowhere: all gradients belong into places of the pass that runs on this thread.
    Places,
    /// To where only candle finds.
    Elsewhere,
}

/// The operations of which there may be a way back, by their results. candle's graph keeps them alive.
static LINKS: LazyLock<Mutex<HashMap<TensorId, Weak<dyn Link>>>> = LazyLock::new(Mutex::default);

fn links() -> MutexGuard<'static, HashMap<TensorId, Weak<dyn Link>>> {
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of `op`, which candle differentiates as any, and of which a chain knows.
pub(crate) fn apply(x: &Tensor, op: impl Link + 'static) -> Result<Tensor> {
    let op: Arc<dyn Link> = Arc::new(op);
    let y = x.apply_op1(Shared(op.clone()))?;
    if y.track_op() {
        let mut links = links();
        if links.len() == links.capacity() {
            links.retain(|_, link| link.strong_count() > 0);
        }
        links.insert(y.id(), Arc::downgrade(&op));
    }
    Ok(y)
}

/// Passes the gradient of `loss` back to the places, if a chain leads there.
pub(crate) fn backward(loss: &Tensor) -> Result<bool> {
    let mut chain: Vec<(Arc<dyn Link>, Tensor)> = Vec::new();
    let mut y = loss.clone();
    loop {
        let link = links().get(&y.id()).and_then(Weak::upgrade);
        let Some(link) = link else {
            return Ok(false);
        };
        let next = match link.next()? {
            Next::To(x) => Some(x.clone()),
            Next::Places => None,
            Next::Elsewhere => return Ok(false),
        };
        chain.push((link, y));
        match next {
            Some(x) => y = x,
            None => break,
        }
    }
    let mut gradient = None;
    for (link, y) in chain {
        gradient = link.back(&y, gradient.as_ref())?;
    }
    Ok(true)
}

/// The gradient `dy` of `y`, of which none stands for ones.
pub(crate) fn or_ones(y: &Tensor, dy: Option<&Tensor>) -> Result<Tensor> {
    dy.map_or_else(|| y.ones_like(), |dy| Ok(dy.clone()))
}

/// An operation that is candle's and a chain's.
struct Shared(Arc<dyn Link>);

impl CustomOp1 for Shared {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd(x, layout)
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        self.0.cuda_fwd(x, layout)
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        self.0.bwd(x, y, dy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::slice;
    use crate::{Expr, backward};
    use candle_core::{Device, Var, bail};

    /// The same again; candle's way back is an error.
    struct Same(Tensor);

    impl CustomOp1 for Same {
        fn name(&self) -> &'static str {
            "same"
        }

        fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
            let x = slice(x, layout)?.to_vec();
            Ok((CpuStorage::F32(x), layout.shape().clone()))
        }

        fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
            bail!("candle's way")
        }
    }

    impl Link for Same {
        fn next(&self) -> Result<Next<'_>> {
            Ok(Next::To(&self.0))
        }

        fn back(&self, _: &Tensor, dy: Option<&Tensor>) -> Result<Option<Tensor>> {
            Ok(dy.cloned())
        }
    }

    fn same(x: &Tensor) -> Result<Tensor> {
        apply(x, Same(x.clone()))
    }

    fn var(values: &[f32]) -> Var {
        let values = Tensor::from_slice(values, (1, values.len()), &Device::Cpu).unwrap();
        Var::from_tensor(&values).unwrap()
    }

    #[test]
    fn candle_is_left_out_where_all_gradients_have_places() -> Result<()> {
        let (x, w, grad) = (var(&[10., 20.]), var(&[1., 2.]), var(&[0., 0.]));
        let loss = crate::sum(&same(&crate::linear(&x.detach(), &w, None)?)?)?;
        backward(&loss, [(&w, &grad)])?;
        assert_eq!(grad.to_vec2::<f32>()?, [[10., 20.]]);
        Ok(())
    }

    #[test]
    fn candle_is_asked_where_a_gradient_has_none() -> Result<()> {
        let (x, w, grad) = (var(&[10., 20.]), var(&[1., 2.]), var(&[0., 0.]));
        let of_another = Expr::new(&x).linear(&w, None).eval()?; // x is tracked
        let after_candle = crate::linear(&x.detach(), &w, None)?.sqr()?;
        for y in [of_another, after_candle] {
            let error = backward(&same(&y)?, [(&w, &grad)]).unwrap_err();
            assert!(error.to_string().contains("candle's way"), "{error}");
        }
        Ok(())
    }

    #[test]
    fn what_candle_has_forgotten_is_forgotten() -> Result<()> {
        let w = var(&[1., 2.]);
        let mut most = 0;
        for _ in 0..1000 {
            same(&w)?;
            most = most.max(links().len());
        }
        assert!(most < 500, "{most} of 1000 and other tests'");
        Ok(())
    }
}
