//! How a trainer goes down: its optimizer, and what changes its learning rate.

use std::sync::Arc;

use anyhow::{Result, ensure};
use functional::{Optimizer, Update};

use super::state::State;
use super::trainer::Trainer;

/// A factor of the learning rate for each step, counted from 0.
pub(crate) type Schedule = dyn Fn(usize) -> f64 + Send + Sync;

#[derive(Clone)]
pub(crate) struct Descent {
    pub optimizer: Arc<dyn Optimizer>,
    pub lr: f64,
    schedule: Option<Arc<Schedule>>,
    /// A factor of the learning rate for each parameter.
    rates: Arc<[f64]>,
    max_norm: Option<f64>,
    /// The steps that were taken.
    pub steps: usize,
}

impl Descent {
    pub fn new(optimizer: impl Optimizer + 'static, state: &State) -> Self {
        Self {
            lr: optimizer.lr(),
            optimizer: Arc::new(optimizer),
            schedule: None,
            rates: state.parameters().map(|_| 1.0).collect(),
            max_norm: None,
            steps: 0,
        }
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

    /// The learning rate of the next step.
    fn now(&self) -> f64 {
        let schedule = self.schedule.as_ref();
        self.lr * schedule.map_or(1.0, |schedule| schedule(self.steps))
    }

    /// That of the next step alone. The schedule is asked once, for all replicas.
    pub fn next(&self) -> Result<Self> {
        let (lr, step) = (self.now(), self.steps + 1);
        ensure!(
            lr.is_finite() && lr >= 0.0,
            "the learning rate of step {step} is {lr}; expected a finite number, 0 or more"
        );
        Ok(Self {
            lr,
            schedule: None,
            ..self.clone()
        })
    }
}

/// What a training loop may change.
impl Trainer {
    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.descent.now()
    }

    /// Sets the learning rate of the steps that follow. What the optimizer keeps stays.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use concise::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
    /// # let net = DataParallel::new(&d2l::devices(2)?, Initializer::Normal(0.1), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// # let (x, y) = (Tensor::ones((4, 3), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
    /// let mut trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1));
    /// for step in 0..100 {
    ///     trainer.set_lr(0.1 * (1.0 - f64::from(step) / 100.0)); // falls to 0
    ///     trainer.step(&x, &y)?;
    /// }
    /// # anyhow::Ok(())
    /// ```
    pub fn set_lr(&mut self, lr: f64) {
        self.descent.lr = lr;
    }

    /// Multiplies the learning rate of each step, counted from 0, by what `schedule` says, such as one of
    /// [`schedule`](crate::schedule). A run that is resumed goes on with the step where it was.
    pub fn schedule(mut self, schedule: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Self {
        self.descent.schedule = Some(Arc::new(schedule));
        self
    }

    /// Multiplies the learning rate of each parameter by what `rate` says of its name. With 0 a parameter is frozen:
    /// it stays as it is, and so does what the optimizer keeps of it.
    ///
    /// ```
    /// # use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
    /// # let init = Initializer::Normal(0.01);
    /// # let net = DataParallel::new(&d2l::devices(1)?, init, 0, |vb| resnet18(10, vb))?;
    /// let trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1));
    /// // only the last layer, 8, learns
    /// let trainer = trainer.rate(|name| if name.starts_with("8.") { 1.0 } else { 0.0 });
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Panics
    /// If a rate is negative or no finite number.
    pub fn rate(mut self, rate: impl Fn(&str) -> f64) -> Self {
        let of = |name: &str| {
            let rate = rate(name);
            let is_one = rate.is_finite() && rate >= 0.0;
            assert!(is_one, "the rate of {name} is {rate}; expected 0 or more");
            rate
        };
        let params = self.net.states[0].parameters();
        self.descent.rates = params.map(|(name, _)| of(name)).collect();
        self
    }

    /// Scales the gradients down where their norm, over all parameters that are not frozen, is larger than
    /// `max_norm`: PyTorch's `clip_grad_norm_`. It is the norm of the sum of all replicas, divided by the examples.
    ///
    /// # Panics
    /// If `max_norm` is not above 0.
    pub fn clip_norm(mut self, max_norm: f64) -> Self {
        assert!(max_norm > 0.0, "clip_norm {max_norm}: expected more than 0");
        self.descent.max_norm = Some(max_norm);
        self
    }
}
