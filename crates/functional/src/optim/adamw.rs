//! AdamW.

use candle_core::Result;

use super::{Optimizer, Slice};

/// Adam with decoupled weight decay, as in PyTorch ("Adam" in the book's chapter on optimization has no decay).
///
/// ```
/// let adamw = functional::AdamW { lr: 3e-4, ..Default::default() };
/// assert_eq!((adamw.beta1, adamw.weight_decay), (0.9, 0.01));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// How much of the mean of the gradients stays at a step.
    pub beta1: f64,
    /// How much of the mean of their squares stays.
    pub beta2: f64,
    /// What keeps the divisor above 0.
    pub eps: f64,
    /// By which part, times `lr`, a step shrinks a parameter.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// PyTorch's.
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.01,
        }
    }
}

impl AdamW {
    /// Of a step: what makes a sum a mean; how much of the parameter stays; the rate, and the root of what the mean of
    /// squares is divided by, because both means began at 0.
    pub(crate) fn numbers(&self, slice: &Slice<'_>) -> [f32; 4] {
        let begun = |beta: f64| 1. - beta.powf(slice.step as f64);
        let keep = 1. - slice.lr * self.weight_decay;
        let (rate, root) = (slice.lr / begun(self.beta1), begun(self.beta2).sqrt());
        [1. / slice.examples, keep, rate, root].map(|value| value as f32)
    }
}

impl Optimizer for AdamW {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if Slice::are_on_a_gpu(slices) {
            return crate::cuda::adamw(self, slices);
        }
        let [new1, beta2, new2, eps] =
            [1. - self.beta1, self.beta2, 1. - self.beta2, self.eps].map(|value| value as f32);
        for slice in slices {
            let [share, keep, rate, root] = self.numbers(slice);
            slice.each(
                #[inline(always)]
                |p, sum, [m, v]| {
                    let g = share * sum;
                    *m += new1 * (g - *m);
                    *v = beta2 * *v + new2 * g * g;
                    *p = keep * *p - rate * *m / (v.sqrt() / root + eps);
                },
            )?;
        }
        Ok(())
    }
}
