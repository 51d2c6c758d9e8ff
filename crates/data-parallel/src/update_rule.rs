//! How a trainer takes its steps: the optimizer, and how its learning rate changes.

use std::sync::Arc;

use candle_core::Result;
use devices::{bail, ensure};
use functional::Optimizer;

/// A factor of the learning rate for each step, counted from 0.
pub(crate) type LrSchedule = dyn Fn(usize) -> f64 + Send + Sync;

pub(crate) struct UpdateRule {
    pub optimizer: Arc<dyn Optimizer>,
    /// The learning rate that [`Trainer::set_lr`](crate::Trainer::set_lr) has set; without one it is the optimizer's.
    pub lr: Option<f64>,
    pub schedule: Option<Arc<LrSchedule>>,
    /// A factor of the learning rate for each parameter. Those with 0 are not trained.
    pub rates: Vec<f64>,
    pub max_norm: Option<f64>,
}

/// The rule of one step.
pub(crate) struct StepRule {
    pub optimizer: Arc<dyn Optimizer>,
    pub lr: f64,
    /// A factor of the learning rate for each parameter that is trained.
    pub rates: Vec<f64>,
    pub max_norm: Option<f64>,
}

/// An error if an optimizer has a setting, or names of its state, that cannot be used.
pub(crate) fn check_optimizer(optimizer: &dyn Optimizer) -> Result<()> {
    optimizer.check()?;
    let names = optimizer.state();
    for (i, name) in names.iter().enumerate() {
        ensure!(
            !names[..i].contains(name),
            "Optimizer::state: two are called {name:?}; give each a name of its own"
        );
    }
    Ok(())
}

impl UpdateRule {
    pub fn new(optimizer: impl Optimizer + 'static, parameters: usize) -> Self {
        Self {
            optimizer: Arc::new(optimizer),
            lr: None,
            schedule: None,
            rates: vec![1.0; parameters],
            max_norm: None,
        }
    }

    /// The learning rate of step `step`, counted from 0.
    pub fn lr_of(&self, step: usize) -> f64 {
        let factor = self
            .schedule
            .as_ref()
            .map_or(1.0, |schedule| schedule(step));
        self.lr.unwrap_or_else(|| self.optimizer.lr()) * factor
    }

    /// A line that tells the schedule of the first `taken` steps from others: the factor of the last one, and a sum of all.
    pub fn schedule_line(&self, taken: usize) -> String {
        let Some(schedule) = &self.schedule else {
            return "schedule none".to_owned();
        };
        let last = schedule(taken.saturating_sub(1));
        let add = |sum: u64, step| sum.rotate_left(5) ^ schedule(step).to_bits();
        let sum = (0..taken).fold(0, add);
        format!("schedule {last:?} at step {taken}, {sum:x} for all steps")
    }

    /// Sets the rate of the parameter `of`, or of all parameters of the layer `of`, or of all if it is "". `names` are those
    /// of all parameters.
    ///
    /// # Errors
    /// If none is meant, or the rate is negative or no finite number.
    pub fn set_rate(&mut self, names: &[&str], of: &str, rate: f64) -> Result<()> {
        let is_rate = rate.is_finite() && rate >= 0.0;
        ensure!(is_rate, "the rate of {of} is {rate}; expected 0 or more");
        let of = of.trim_end_matches('.');
        let is_meant = |name: &str| match name.strip_prefix(of) {
            Some(rest) => of.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        };
        if !names.iter().any(|name| is_meant(name)) {
            let names = names.join(", ");
            bail!("rate: the network has no layer or parameter {of}; it has {names}")
        }
        for (of_name, name) in self.rates.iter_mut().zip(names) {
            if is_meant(name) {
                *of_name = rate;
            }
        }
        Ok(())
    }

    /// For each parameter, true if it is trained.
    pub fn trained(&self) -> Vec<bool> {
        self.rates.iter().map(|rate| *rate != 0.0).collect()
    }

    /// The rule of step `step` alone: the schedule is asked once, for all replicas.
    ///
    /// # Errors
    /// If the learning rate is negative or no finite number, or the optimizer has a setting that cannot be used.
    pub fn of_step(&self, step: usize) -> Result<StepRule> {
        check_optimizer(&*self.optimizer)?;
        let lr = self.lr_of(step);
        let number = step + 1;
        ensure!(
            lr.is_finite() && lr >= 0.0,
            "the learning rate of step {number} is {lr}; expected a finite number, 0 or more"
        );
        Ok(StepRule {
            optimizer: self.optimizer.clone(),
            lr,
            rates: self
                .rates
                .iter()
                .copied()
                .filter(|rate| *rate != 0.0)
                .collect(),
            max_norm: self.max_norm,
        })
    }
}

#[cfg(test)]
mod tests {
    use functional::Sgd;

    use super::*;
    use crate::schedule::step;

    #[test]
    fn schedules_that_were_different_at_any_step_are_told_apart() {
        let line = |schedule: Arc<LrSchedule>| {
            let mut rule = UpdateRule::new(Sgd::new(0.1), 1);
            rule.schedule = Some(schedule);
            rule.schedule_line(5)
        };
        let thirds = line(Arc::new(step(3, 0.1)));
        assert!(thirds.starts_with("schedule 0.1 at step 5,"), "{thirds}");
        assert_ne!(thirds, line(Arc::new(step(4, 0.1))));
        assert_ne!(thirds, line(Arc::new(|_| 0.1)));
    }
}
