//! An optimizer of a program's own, whose step is a function.

use std::fmt;

use candle_core::Result;
use data_parallel::functional::{Optimizer, Slice};

/// Of learning rate 0.1, with a state of these names. `step` takes the step of a slice; its `Debug` shows nothing of it.
pub fn own(
    state: &'static [&'static str],
    step: impl Fn(&mut Slice<'_>) -> Result<()> + Send + Sync,
) -> impl Optimizer {
    Own { state, step }
}

struct Own<F> {
    state: &'static [&'static str],
    step: F,
}

impl<F> fmt::Debug for Own<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl<F: Fn(&mut Slice<'_>) -> Result<()> + Send + Sync> Optimizer for Own<F> {
    fn lr(&self) -> f64 {
        0.1
    }

    fn state(&self) -> &'static [&'static str] {
        self.state
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> Result<()> {
        slices.iter_mut().try_for_each(&self.step)
    }
}
