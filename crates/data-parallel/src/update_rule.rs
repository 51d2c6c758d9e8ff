//! How a trainer takes its steps: the optimizer, and how its learning rate changes.

use std::sync::Arc;

use anyhow::{Result, ensure};
use functional::{Optimizer, Update};

/// A factor of the learning rate for each step, counted from 0.
pub(crate) type Schedule = dyn Fn(usize) -> f64 + Send + Sync;

#[derive(Clone)]
pub(crate) struct UpdateRule {
    pub optimizer: Arc<dyn Optimizer>,
    pub lr: f64,
    pub schedule: Option<Arc<Schedule>>,
    /// A factor of the learning rate for each parameter.
    pub rates: Arc<[f64]>,
    pub max_norm: Option<f64>,
}

impl UpdateRule {
    pub fn new(optimizer: impl Optimizer + 'static, parameters: usize) -> Self {
        Self {
            lr: optimizer.lr(),
            optimizer: Arc::new(optimizer),
            schedule: None,
            rates: vec![1.0; parameters].into(),
            max_norm: None,
        }
    }

    /// The learning rate of step `step`, counted from 0.
    pub fn lr_of(&self, step: usize) -> f64 {
        let schedule = self.schedule.as_ref();
        self.lr * schedule.map_or(1.0, |schedule| schedule(step))
    }

    /// The rule of step `step` alone: the schedule is asked once, for all replicas.
    ///
    /// # Errors
    /// If the learning rate is negative or no finite number.
    pub fn of_step(&self, step: usize) -> Result<Self> {
        let (lr, number) = (self.lr_of(step), step + 1);
        ensure!(
            lr.is_finite() && lr >= 0.0,
            "the learning rate of step {number} is {lr}; expected a finite number, 0 or more"
        );
        Ok(Self {
            lr,
            schedule: None,
            ..self.clone()
        })
    }

    /// The numbers of a step on so many examples.
    pub fn update(&self, examples: usize) -> Update<'_> {
        Update {
            lr: self.lr,
            rates: &self.rates,
            max_norm: self.max_norm,
            examples,
        }
    }
}
