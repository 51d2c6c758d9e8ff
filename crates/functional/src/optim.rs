//! Stochastic gradient descent, in place: one pass over parameter and gradient, no copy of either.

use crate::cpu::gradient::CHUNK;
use crate::cpu::threads::{for_each_chunk, for_each_chunk_of_two};
use crate::tensors::{read, slice_mut, with_slice_mut};
use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, Var, bail};

/// SGD with momentum and weight decay, as in PyTorch:
/// g = grad + weight_decay · param; v = momentum · v + g; param −= lr · v.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// How much of the step before goes on; 0 for none.
    pub momentum: f64,
    /// The factor of the L2 penalty; 0 for none.
    pub weight_decay: f64,
}

impl Sgd {
    /// Plain gradient descent: no momentum, no weight decay.
    pub fn new(lr: f64) -> Self {
        Self {
            lr,
            momentum: 0.,
            weight_decay: 0.,
        }
    }

    /// Takes the step on all of `params` with `sums`, a tensor for each of as many elements and on the same
    /// device: the sum of the gradients over the examples, to be divided by `batch_size`. `velocity` has as
    /// many elements as all of them, one after the other, zeros at the beginning, and is written to; without
    /// momentum it can be left out.
    ///
    /// # Errors
    /// Where they do not fit, or one is not f32.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, Var};
    /// let (w, b) = (Var::new(&[3f32, 1.], &Device::Cpu)?, Var::new(&[5f32], &Device::Cpu)?);
    /// let sums = [Tensor::new(&[0f32, 8.], &Device::Cpu)?, Tensor::new(&[4f32], &Device::Cpu)?];
    /// functional::Sgd::new(0.5).step_all(&[&w, &b], &sums, 4, None)?;
    /// assert_eq!(w.to_vec1::<f32>()?, [3., 0.]);
    /// assert_eq!(b.to_vec1::<f32>()?, [4.5]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn step_all(
        &self,
        params: &[&Var],
        sums: &[Tensor],
        batch_size: usize,
        velocity: Option<&Tensor>,
    ) -> Result<()> {
        let lens = |tensors: &mut dyn Iterator<Item = &Tensor>| -> Vec<usize> {
            tensors.map(|t| t.elem_count()).collect()
        };
        let (expected, found) = (
            lens(&mut params.iter().map(|p| p.as_tensor())),
            lens(&mut sums.iter()),
        );
        let all: usize = expected.iter().sum();
        let remembered = velocity.map_or(all, Tensor::elem_count);
        if expected != found || all != remembered {
            bail!(
                "sgd: the parameters have {expected:?} elements, the gradients {found:?}; \
                 velocity has {remembered}, expected {all}"
            )
        }
        if params.iter().zip(sums).any(|(p, sum)| p.id() == sum.id()) {
            bail!("sgd: a parameter and its gradient are the same tensor")
        }
        if self.momentum != 0. && velocity.is_none() {
            bail!("sgd: momentum needs a velocity; give one of zeros for the first step")
        }
        let velocity = velocity.filter(|_| self.momentum != 0.);
        #[cfg(feature = "cuda")]
        if params.first().is_some_and(|p| p.device().is_cuda()) {
            let rates = [self.lr, self.momentum, self.weight_decay];
            return crate::cuda::step(rates, params, sums, batch_size, velocity);
        }
        let step = |mut velocity: Option<&mut [f32]>| {
            for (param, sum) in params.iter().zip(sums) {
                let (of_param, rest) = match velocity {
                    None => (None, None),
                    Some(all) => {
                        let (of_param, rest) = all.split_at_mut(param.elem_count());
                        (Some(of_param), Some(rest))
                    }
                };
                velocity = rest;
                read([sum], |[sum]| self.step(param, sum, batch_size, of_param))??;
            }
            Ok(())
        };
        match velocity {
            Some(velocity) => with_slice_mut(velocity, |all| step(Some(all))),
            None => step(None),
        }
    }

    /// Takes the step on `param` in place. The gradient is `sum`, the sum over the examples, divided by
    /// `batch_size`. `velocity` are as many elements more, zeros at the beginning; without momentum it
    /// can be left out.
    ///
    /// # Errors
    /// Where they do not fit, or `param` is not f32.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// let w = Var::new(&[1f32], &Device::Cpu)?;
    /// let mut velocity = [1f32];
    /// let sgd = functional::Sgd { lr: 0.5, momentum: 0.5, weight_decay: 0.25 };
    /// sgd.step(&w, &[8.], 4, Some(&mut velocity))?;
    /// assert_eq!(velocity, [2.75]); // 0.5 · 1 + 2 + 0.25 · 1
    /// assert_eq!(w.to_vec1::<f32>()?, [-0.375]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn step(
        &self,
        param: &Var,
        sum: &[f32],
        batch_size: usize,
        velocity: Option<&mut [f32]>,
    ) -> Result<()> {
        let velocity = match velocity {
            Some(velocity) if velocity.len() != sum.len() => bail!(
                "sgd: velocity has {} elements, the gradient {}",
                velocity.len(),
                sum.len()
            ),
            None if self.momentum != 0. => {
                bail!("sgd: momentum needs a velocity; give one of zeros for the first step")
            }
            velocity => Mutex::new(velocity),
        };
        let step = Step {
            sgd: *self,
            sum,
            batch_size,
            velocity,
        };
        if param.device().is_cpu() {
            return param.inplace_op1(&step);
        }
        let mut values = param.flatten_all()?.to_vec1()?;
        step.take(&mut values)?;
        param.set(&Tensor::from_vec(values, param.shape(), param.device())?)
    }
}

struct Step<'a> {
    sgd: Sgd,
    sum: &'a [f32],
    batch_size: usize,
    velocity: Mutex<Option<&'a mut [f32]>>,
}

impl Step<'_> {
    fn take(&self, param: &mut [f32]) -> Result<()> {
        let (len, found) = (param.len(), self.sum.len());
        if len != found {
            bail!("sgd: param has {len} elements, the gradient {found}")
        }
        let velocity = self
            .velocity
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match velocity.filter(|_| self.sgd.momentum != 0.) {
            None => for_each_chunk(
                param,
                CHUNK,
                #[inline(always)]
                |i, param| {
                    self.without_velocity(param, &self.sum[i * CHUNK..]);
                },
            ),
            Some(velocity) => {
                for_each_chunk_of_two(
                    (param, CHUNK),
                    (velocity, CHUNK),
                    #[inline(always)]
                    |i, param, velocity| {
                        self.with_velocity(param, &self.sum[i * CHUNK..], velocity);
                    },
                );
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn without_velocity(&self, param: &mut [f32], sum: &[f32]) {
        let lr = (self.sgd.lr / self.batch_size as f64) as f32;
        let decay = (self.sgd.lr * self.sgd.weight_decay) as f32;
        for (p, g) in param.iter_mut().zip(sum) {
            *p -= lr * g + decay * *p;
        }
    }

    #[inline(always)]
    fn with_velocity(&self, param: &mut [f32], sum: &[f32], velocity: &mut [f32]) {
        let share = (1. / self.batch_size as f64) as f32;
        let [lr, momentum, decay] =
            [self.sgd.lr, self.sgd.momentum, self.sgd.weight_decay].map(|v| v as f32);
        for ((p, g), v) in param.iter_mut().zip(sum).zip(velocity) {
            *v = momentum * *v + (share * g + decay * *p);
            *p -= lr * *v;
        }
    }
}

impl InplaceOp1 for Step<'_> {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.take(slice_mut(storage, layout)?)
    }
}
