//! Stochastic gradient descent, in place: one pass over parameter and gradient, no copy of either.

use crate::bucket::{Bucket, Part, Values};
use crate::cpu::gradient::CHUNK;
use crate::cpu::threads::{for_each_chunk, for_each_chunk_of_two};
use crate::tensors::{read_all, with_slice_mut};
use candle_core::{Result, Tensor, Var, bail};

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
    /// functional::Sgd::new(0.5).step(&[&w, &b], &sums, 4, None)?;
    /// assert_eq!(w.to_vec1::<f32>()?, [3., 0.]);
    /// assert_eq!(b.to_vec1::<f32>()?, [4.5]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn step(
        &self,
        params: &[&Var],
        sums: &[Tensor],
        batch_size: usize,
        velocity: Option<&Tensor>,
    ) -> Result<()> {
        let lens: Vec<usize> = sums.iter().map(Tensor::elem_count).collect();
        self.check(params, &lens, velocity.map(Tensor::elem_count))?;
        if params.iter().zip(sums).any(|(p, sum)| p.id() == sum.id()) {
            bail!("sgd: a parameter and its gradient are the same tensor")
        }
        let velocity = velocity.filter(|_| self.momentum != 0.);
        #[cfg(feature = "cuda")]
        if params.first().is_some_and(|p| p.device().is_cuda()) {
            let rates = [self.lr, self.momentum, self.weight_decay];
            return crate::cuda::step(rates, params, sums, batch_size, velocity);
        }
        let sums = sums.iter().map(Tensor::contiguous);
        let sums = sums.collect::<Result<Vec<_>>>()?;
        read_all(&sums, |sums| match velocity {
            Some(all) => {
                with_slice_mut(all, |all| self.descend(params, sums, batch_size, Some(all)))
            }
            None => self.descend(params, sums, batch_size, None),
        })
    }

    /// As [`step`](Self::step), on the parameters of a bucket, whose gradients and velocity are where the bucket
    /// is: `params` are all parameters of the [`Gradients`](crate::Gradients) that the bucket comes from.
    ///
    /// # Errors
    /// Where they do not fit.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use functional::{Gradients, Sgd, Value};
    /// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
    /// let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    /// gradients.backward(&Value::new(&w)?.sum()?)?;
    /// gradients.give(&mut |bucket| Sgd::new(0.5).step_bucket(&[&w], &bucket, 1, None))?;
    /// assert_eq!(w.to_vec1::<f32>()?, [0.5, 1.5]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn step_bucket(
        &self,
        params: &[&Var],
        bucket: &Bucket,
        batch_size: usize,
        velocity: Option<&mut Values>,
    ) -> Result<()> {
        let parts = &bucket.parts;
        let params: Vec<&Var> = parts.iter().map(|part| params[part.parameter]).collect();
        match &bucket.values {
            Values::Tensor(sums) => {
                let velocity = match velocity {
                    Some(Values::Tensor(velocity)) => Some(&*velocity),
                    _ => None,
                };
                let sum = |part: &Part| sums.narrow(0, part.range.start, part.range.len());
                let sums = parts.iter().map(sum).collect::<Result<Vec<_>>>()?;
                self.step(&params, &sums, batch_size, velocity)
            }
            Values::Floats(sums) => {
                let velocity = match velocity {
                    Some(Values::Floats(velocity)) => Some(&mut velocity[..]),
                    _ => None,
                };
                let sum = |part: &Part| &sums[part.range.clone()];
                let sums: Vec<&[f32]> = parts.iter().map(sum).collect();
                let lens: Vec<usize> = sums.iter().map(|sum| sum.len()).collect();
                self.check(&params, &lens, velocity.as_ref().map(|all| all.len()))?;
                let velocity = velocity.filter(|_| self.momentum != 0.);
                self.descend(&params, &sums, batch_size, velocity)
            }
        }
    }

    fn check(&self, params: &[&Var], found: &[usize], velocity: Option<usize>) -> Result<()> {
        let expected: Vec<usize> = params.iter().map(|p| p.elem_count()).collect();
        let all: usize = expected.iter().sum();
        let remembered = velocity.unwrap_or(all);
        if expected != found || all != remembered {
            bail!(
                "sgd: the parameters have {expected:?} elements, the gradients {found:?}; \
                 velocity has {remembered}, expected {all}"
            )
        }
        if self.momentum != 0. && velocity.is_none() {
            bail!("sgd: momentum needs a velocity; give one of zeros for the first step")
        }
        Ok(())
    }

    fn descend(
        &self,
        params: &[&Var],
        sums: &[&[f32]],
        batch_size: usize,
        mut velocity: Option<&mut [f32]>,
    ) -> Result<()> {
        for (param, sum) in params.iter().zip(sums) {
            let velocity = velocity.as_mut();
            let velocity = velocity.map(|all| all.split_off_mut(..sum.len()).expect("checked"));
            with_slice_mut(param, |param| {
                self.update(param, sum, batch_size as f64, velocity);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn update(
        &self,
        param: &mut [f32],
        sum: &[f32],
        batch_size: f64,
        velocity: Option<&mut [f32]>,
    ) {
        let Some(velocity) = velocity else {
            let lr = (self.lr / batch_size) as f32;
            let decay = (self.lr * self.weight_decay) as f32;
            return for_each_chunk(
                param,
                CHUNK,
                #[inline(always)]
                |i, param| {
                    for (p, g) in param.iter_mut().zip(&sum[i * CHUNK..]) {
                        *p -= lr * g + decay * *p;
                    }
                },
            );
        };
        let share = (1. / batch_size) as f32;
        let [lr, momentum, decay] = [self.lr, self.momentum, self.weight_decay].map(|v| v as f32);
        for_each_chunk_of_two(
            (param, CHUNK),
            (velocity, CHUNK),
            #[inline(always)]
            |i, param, velocity| {
                for ((p, g), v) in param.iter_mut().zip(&sum[i * CHUNK..]).zip(velocity) {
                    *v = momentum * *v + (share * g + decay * *p);
                    *p -= lr * *v;
                }
            },
        );
    }
}
