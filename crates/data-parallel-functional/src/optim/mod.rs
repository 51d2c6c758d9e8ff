//! Optimizers: they take a step with summed gradients. They know slices of parameters, and no network.
//!
//! A slice has elements of a parameter, the sums of their gradients, and their state by name. So a part of a parameter
//! can be stepped elsewhere. On the CPU the threads of the crate compute the step. [`Sgd`] and [`AdamW`] have kernels
//! on GPUs; any other optimizer copies its numbers to the host. A new kernel goes into `cuda/elementwise.cu`, and its
//! launch into `cuda/optim.rs`. [`OptimizerState`] owns the state, bucket by bucket, and counts the steps of each
//! parameter.

mod adamw;
mod each;
mod sgd;
mod state;

pub use adamw::AdamW;
pub use sgd::{Sgd, sgd};
pub use state::{OptimizerState, Update, not_finite_sum};

use std::fmt::Debug;
use std::ops::Range;

use candle_core::{Result, Tensor, Var, bail};

#[cfg(feature = "cuda")]
use crate::cuda;

/// Takes a step with summed gradients.
///
/// ```
/// use data_parallel_functional::{Optimizer, Slice};
///
/// /// Steps of one size: the sign of the momentum ("Symbolic Discovery of Optimization Algorithms", Lion).
/// #[derive(Debug)]
/// struct Lion {
///     lr: f64,
/// }
///
/// impl Optimizer for Lion {
///     fn lr(&self) -> f64 {
///         self.lr
///     }
///
///     fn state(&self) -> &'static [&'static str] {
///         &["momentum"]
///     }
///
///     fn step(&self, slices: &mut [Slice<'_>]) -> candle_core::Result<()> {
///         for slice in slices {
///             let (lr, examples) = (slice.lr as f32, slice.examples as f32);
///             slice.each(|p, sum, [m]| {
///                 let g = sum / examples;
///                 *p -= lr * (0.9 * *m + 0.1 * g).signum();
///                 *m = 0.99 * *m + 0.01 * g;
///             })?;
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// A slice has the name of its parameter. So PyTorch's parameter groups are an optimizer that looks at it:
///
/// ```
/// use data_parallel_functional::{Optimizer, Slice};
///
/// /// SGD with weight decay for weights alone: not for biases, and not for the scales of norms.
/// #[derive(Debug)]
/// struct Decayed {
///     lr: f64,
///     decay: f32,
/// }
///
/// impl Optimizer for Decayed {
///     fn lr(&self) -> f64 {
///         self.lr
///     }
///
///     fn state(&self) -> &'static [&'static str] {
///         &[]
///     }
///
///     fn step(&self, slices: &mut [Slice<'_>]) -> candle_core::Result<()> {
///         for slice in slices {
///             let is_weight = slice.name.ends_with("weight") && !slice.name.contains("norm");
///             let decay = if is_weight { self.decay } else { 0.0 };
///             let (lr, examples) = (slice.lr as f32, slice.examples as f32);
///             slice.each(|p, sum, []| *p -= lr * (sum / examples + decay * *p))?;
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// Another learning rate for a group needs no optimizer: `data_parallel::Trainer::rate` sets it by name.
pub trait Optimizer: Debug + Send + Sync {
    /// The learning rate with which it begins.
    fn lr(&self) -> f64;

    /// The names of its state: the numbers of each element of a parameter that go from step to step. They begin as
    /// zeros, and stay finite. No two have the same name.
    fn state(&self) -> &'static [&'static str];

    /// Looks at its own numbers. It is called before each step: an error of it changes nothing, while one of
    /// [`step`](Self::step) may leave replicas that differ. Without this method all numbers are taken.
    ///
    /// # Errors
    /// If a number cannot be used; the message names it, its value, and what is expected.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Takes the step on slices of parameters whose gradients are in one bucket.
    ///
    /// # Errors
    /// If a device fails.
    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()>;
}

/// An error unless the number `name` of `of` is from 0 to below `end`.
fn check_range(of: &str, name: &str, value: f64, end: f64) -> Result<()> {
    if (0. ..end).contains(&value) {
        return Ok(());
    }
    if end.is_finite() {
        bail!("{of}: {name} is {value}; expected 0 or more, and less than {end}")
    }
    bail!("{of}: {name} is {value}; expected a finite number, 0 or more")
}

/// Some elements of a parameter, with the sums of their gradients and their optimizer state.
/// [`each`](Slice::each) goes through them.
pub struct Slice<'a> {
    /// The name of the parameter.
    pub name: &'a str,
    /// Which of its elements these are, in row-major order.
    pub range: Range<usize>,
    /// The learning rate of this step for this parameter.
    pub lr: f64,
    /// The number of this parameter's step, from 1.
    pub step: u64,
    /// The divisor that makes a sum a mean: the number of examples, or of what else the mean is over, such as tokens. If
    /// gradients are clipped, it is larger.
    pub examples: f64,
    param: &'a Var,
    data: Data<'a>,
}

/// The sums and the state of a slice.
enum Data<'a> {
    Cpu {
        sum: &'a [f32],
        state: Vec<&'a mut [f32]>,
    },
    Gpu {
        sum: Tensor,
        /// Of the whole bucket, in which the slice begins at `first`.
        state: Vec<Tensor>,
        first: usize,
    },
}

#[cfg(feature = "cuda")]
impl Slice<'_> {
    /// The slices as the kernels of a GPU take them, each with its numbers; none on the CPU.
    fn on_a_gpu<'s, const N: usize>(
        slices: &'s [Self],
        numbers: impl Fn(&Self) -> [f32; N],
    ) -> Option<Vec<cuda::Slice<'s, N>>> {
        let on_a_gpu = |slice: &'s Self| match &slice.data {
            Data::Cpu { .. } => None,
            Data::Gpu { sum, state, first } => Some(cuda::Slice {
                param: slice.param.as_tensor(),
                range: slice.range.clone(),
                sums: sum,
                state,
                first: *first,
                numbers: numbers(slice),
            }),
        };
        slices.iter().map(on_a_gpu).collect()
    }
}
