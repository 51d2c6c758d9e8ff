//! Looks for parameters that steps have made NaN or infinite: no later step mends them, so the network is lost. No step
//! looks, because that would read all parameters once more: a step that is refused does, and an evaluation.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Result;
use training::weights;

use crate::error::Kind;
use crate::network_state::NetworkState;

/// The square of a larger f32 is infinite.
const USABLE: f32 = 1.8e19;

/// What is known of the parameters of a network.
pub(crate) struct Finite {
    /// Those that are looked at, by their numbers: without those that were built with NaN or infinity, or numbers that are
    /// not much smaller, such as a mask of −∞.
    looked_at: Vec<usize>,
    /// True if a step was taken since they were looked at.
    has_stepped: AtomicBool,
}

impl Finite {
    /// Of a network that is new.
    pub fn new(state: &NetworkState) -> Result<Self> {
        let mut looked_at = Vec::new();
        for (i, (_, param)) in state.parameters().enumerate() {
            if weights::first_beyond(param, USABLE)?.is_none() {
                looked_at.push(i);
            }
        }
        Ok(Self {
            looked_at,
            has_stepped: AtomicBool::new(false),
        })
    }

    /// A step was taken, or has failed.
    pub fn step_ends(&self) {
        self.has_stepped.store(true, Ordering::Relaxed);
    }

    /// An error that names a parameter that steps have made NaN or infinite.
    pub fn check(&self, state: &NetworkState) -> Result<()> {
        if !self.has_stepped.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let checked = self.check_up_to(f32::MAX, state, |_| true);
        if checked.is_err() {
            self.step_ends(); // the next look finds it again
        }
        checked
    }

    /// Returns the error of [`check`](Self::check) after a step that was refused; and one that names a parameter that is
    /// trained with these `rates`, if its square is infinite.
    pub fn check_usable(&self, state: &NetworkState, rates: &[f64]) -> Result<()> {
        self.check_up_to(f32::MAX, state, |_| true)?;
        self.check_up_to(USABLE, state, |i| rates[i] != 0.0)
    }

    fn check_up_to(
        &self,
        limit: f32,
        state: &NetworkState,
        is_meant: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let params: Vec<_> = state.parameters().collect();
        let meant = self.looked_at.iter().filter(|i| is_meant(**i));
        for (name, param) in meant.map(|i| params[*i]) {
            if let Some(value) = weights::first_beyond(param, limit)? {
                return Err(Kind::Diverged.says(format!(
                    "A step has made the parameter {name} {value:?}, so the network is lost: load a checkpoint, or build it \
                     anew; then try a smaller rate, or other settings of the optimizer"
                )));
            }
        }
        Ok(())
    }
}
