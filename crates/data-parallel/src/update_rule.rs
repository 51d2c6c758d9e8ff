//! How a trainer takes its steps: the optimizer, and how its learning rate changes.

use std::sync::Arc;

use candle_core::Result;
use devices::ensure;
use functional::Optimizer;

/// A factor of the learning rate for each step, counted from 0.
pub(crate) type Schedule = dyn Fn(usize) -> f64 + Send + Sync;

pub(crate) struct UpdateRule {
    pub optimizer: Arc<dyn Optimizer>,
    /// The learning rate that [`Trainer::set_lr`](crate::Trainer::set_lr) has set; without one it is the optimizer's.
    pub lr: Option<f64>,
    pub schedule: Option<Arc<Schedule>>,
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

    /// A line that has the factor of the schedule at the last of so many steps: other schedules have another.
    pub fn schedule_line(&self, taken: usize) -> String {
        match &self.schedule {
            None => "schedule none".to_owned(),
            Some(schedule) => {
                let last = taken.saturating_sub(1);
                format!("schedule {:?} at step {taken}", schedule(last))
            }
        }
    }

    /// Whether each parameter is trained.
    pub fn trained(&self) -> Vec<bool> {
        self.rates.iter().map(|rate| *rate != 0.0).collect()
    }

    /// The rule of step `step` alone: the schedule is asked once, for all replicas.
    ///
    /// # Errors
    /// If the learning rate is negative or no finite number.
    pub fn of_step(&self, step: usize) -> Result<StepRule> {
        let (lr, number) = (self.lr_of(step), step + 1);
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
