//! AdamW.

use candle_core::Result;

use super::{Optimizer, Slice, check_range};

/// Adam with decoupled weight decay, as in PyTorch ("Adam" in the book's chapter on optimization has no decay).
///
/// ```
/// let adamw = data_parallel_functional::AdamW { lr: 3e-4, ..Default::default() };
/// assert_eq!((adamw.beta1, adamw.weight_decay), (0.9, 0.01));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate, 0 or more.
    pub lr: f64,
    /// The part of the mean of the gradients that stays at a step: 0 or more, and less than 1.
    pub beta1: f64,
    /// The part of the mean of their squares that stays: 0 or more, and less than 1.
    pub beta2: f64,
    /// Added to the divisor, so that it is above 0. With 0 a parameter whose gradients were all 0 becomes NaN.
    pub eps: f64,
    /// By which part, times `lr`, a step shrinks a parameter: 0 or more.
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
    /// The numbers of a step: what makes a sum a mean; the part of the parameter that stays; the rate, and the root of
    /// the divisor of the mean of squares, because both means began at 0; the constants.
    fn numbers(&self, slice: &Slice<'_>) -> [f32; 8] {
        let begun = |beta: f64| 1. - libm::pow(beta, slice.step as f64);
        let keep = 1. - slice.lr * self.weight_decay;
        let rate = slice.lr / begun(self.beta1);
        let root = begun(self.beta2).sqrt();
        let new1 = 1. - self.beta1;
        let new2 = 1. - self.beta2;
        let share = 1. / slice.examples;
        [share, keep, rate, root, new1, self.beta2, new2, self.eps].map(|value| value as f32)
    }
}

impl Optimizer for AdamW {
    fn lr(&self) -> f64 {
        self.lr
    }

    fn state(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq"]
    }

    /// The ranges of PyTorch's `AdamW`.
    fn check(&self) -> Result<()> {
        check_range("AdamW", "lr", self.lr, f64::INFINITY)?;
        check_range("AdamW", "beta1", self.beta1, 1.)?;
        check_range("AdamW", "beta2", self.beta2, 1.)?;
        check_range("AdamW", "eps", self.eps, f64::INFINITY)?;
        check_range("AdamW", "weight_decay", self.weight_decay, f64::INFINITY)
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(slices) = Slice::on_a_gpu(slices, |slice| self.numbers(slice)) {
            return crate::cuda::adamw(&slices);
        }
        for slice in slices {
            let [share, keep, rate, root, new1, beta2, new2, eps] = self.numbers(slice);
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
