//! One synchronized step of all replicas.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, bail, ensure};
use candle_core::{Device, Tensor};
use functional::{GradientChecks, Optimizer, Value, Variables};
use training::{BatchLoss, Unread};

use crate::data_parallel::DataParallel;
use crate::replica::{Checks, Loss, Minibatch, Replica};
use crate::update_rule::UpdateRule;

/// Trains a replicated network: its [`step`](Trainer::step) is all that a training loop needs.
///
/// One network may have several trainers, one after the other. Where another one has taken a step, a trainer begins
/// without momentum.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use data_parallel::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
///
/// let devices = devices::devices(2)?;
/// let net = DataParallel::new(&devices, Initializer::Normal(0.1), 0, |vb| {
///     Linear::new(3, 2, vb)
/// })?;
/// let mut trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.5));
/// let x = Tensor::ones((5, 3), DType::F32, &Device::Cpu)?; // three examples and two
/// let y = Tensor::zeros(5, DType::U32, &Device::Cpu)?;
/// let before = trainer.step(&x, &y)?.loss.mean()?;
/// assert!(trainer.step(&x, &y)?.loss.mean()? < before);
/// # anyhow::Ok(())
/// ```
pub struct Trainer {
    pub(crate) net: DataParallel,
    loss: Arc<Loss>,
    pub(crate) rule: UpdateRule,
    /// Minibatches of a step.
    accumulate: usize,
    /// Whether steps compare the gradients of candle's operations with finite differences.
    checks: bool,
    /// What was compared, on each replica; nothing before the first step with these rates.
    compared: Vec<Checks>,
    /// The losses that are not yet known to be finite, unless they are not checked.
    unread: Option<Unread>,
    stop: Option<Stop>,
    /// The steps that were taken.
    pub(crate) steps: usize,
    /// Minibatches with gradients that wait for the step.
    pub(crate) waiting: usize,
    /// Examples of the gradients that wait, or of the last step.
    pub(crate) examples: usize,
    /// Its number among all trainers of the program.
    id: usize,
}

static NEXT_ID: AtomicUsize = AtomicUsize::new(1);

/// Asks whether this process wants to stop, and stops it: several processes stop after the same step.
#[derive(Clone, Copy)]
struct Stop {
    wants_to: fn() -> bool,
    stop: fn(),
}

/// The result of a step.
#[derive(Debug)]
pub struct Step {
    /// The loss of the minibatch, before the step.
    pub loss: BatchLoss,
    /// Outputs and labels of each shard, on its device, before the step: for a metric. Replicas
    /// without an example have none.
    pub shards: Vec<(Tensor, Tensor)>,
}

impl Trainer {
    /// A trainer of all parameters of `net`.
    ///
    /// `loss` is that of each example, such as [`functional::cross_entropy`]: outputs (B, …) and labels (B,) or targets
    /// (B, …) to losses (B,). A mean, as candle-nn's losses return it, is an error: a replica with a part of the
    /// minibatch does not know by how many examples to divide.
    pub fn new(
        net: &DataParallel,
        loss: impl Fn(&Value, &Tensor) -> candle_core::Result<Value> + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Self {
        Self {
            net: net.clone(),
            loss: Arc::new(loss),
            rule: UpdateRule::new(optimizer, net.states[0].parameters().count()),
            accumulate: 1,
            checks: true,
            compared: Vec::new(),
            unread: Some(Unread::default()),
            stop: None,
            steps: 0,
            waiting: 0,
            examples: 0,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes the optimizer's step once in `minibatches`: their gradients add up on each device, and are
    /// summed over the devices once. It is the step on all their examples together. Where as many or more wait
    /// already, the next one is the last.
    ///
    /// # Panics
    /// If `minibatches` is 0.
    pub fn accumulate(self, minibatches: usize) -> Self {
        assert!(minibatches > 0, "a step of 0 minibatches; give at least 1");
        Self {
            accumulate: minibatches,
            ..self
        }
    }

    /// Whether the first step, and each later one with a new shape, compares the gradient of each [`functional::candle`] in
    /// the network and in the loss with finite differences, as [`functional::GradientChecks`] does. A wrong gradient is an
    /// error, except of a frozen parameter. Default: true.
    pub fn check_gradients(self, checks: bool) -> Self {
        Self { checks, ..self }
    }

    /// Whether NaN and infinity are errors. In `x` and `y` they are one before the step, if these are f32 on the CPU. In a
    /// loss they are one after the step: on the CPU at once, on a GPU up to 256 steps later, so that the host does not
    /// wait for the GPU in every step. Default: true.
    pub fn check_losses(self, checks: bool) -> Self {
        let unread = checks.then(Unread::default);
        Self { unread, ..self }
    }

    /// Lets several processes stop after the same step. In each step they tell each other whether `wants_to_stop`; if
    /// one does, all call `stop` after the step, such as a function that sets the flag of
    /// [`DataIter::stop_when`](training::DataIter::stop_when). A process that is alone calls neither.
    pub fn stop_together(self, wants_to_stop: fn() -> bool, stop: fn()) -> Self {
        let wants_to = wants_to_stop;
        let stop = Some(Stop { wants_to, stop });
        Self { stop, ..self }
    }

    /// Multiplies the learning rate of each step, counted from 0, by the value of `schedule`, such as one of
    /// [`schedule`](crate::schedule). A run that is resumed goes on with the step where it was.
    pub fn schedule(mut self, schedule: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Self {
        self.rule.schedule = Some(Arc::new(schedule));
        self
    }

    /// Multiplies the learning rate of a parameter, or of all parameters of a layer, by `rate`: `of` is its name, or its
    /// first parts, or "" for all. With 0 a parameter is frozen: neither it nor its optimizer state changes, and its
    /// gradient is not checked. A later call replaces an earlier one.
    ///
    /// ```
    /// # use data_parallel::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
    /// # let net = DataParallel::new(&devices::devices(1)?, Initializer::Layers, 0, |vb| {
    /// #     Linear::new(3, 2, vb.pp("last"))
    /// # })?;
    /// let trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1));
    /// // only the last layer learns
    /// let trainer = trainer.rate("", 0.0)?.rate("last", 1.0)?;
    /// assert!(trainer.rate("lst", 1.0).is_err());
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the network has nothing of that name, or the rate is negative or no finite number.
    pub fn rate(mut self, of: &str, rate: f64) -> Result<Self> {
        let is_one = rate.is_finite() && rate >= 0.0;
        ensure!(is_one, "the rate of {of} is {rate}; expected 0 or more");
        let of = of.trim_end_matches('.');
        let is_meant = |name: &str| match name.strip_prefix(of) {
            Some(rest) => of.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        };
        let names = self.net.states[0].named().map(|(name, _)| name);
        let names: Vec<&str> = names.collect();
        if !names.iter().any(|name| is_meant(name)) {
            let names = names.join(", ");
            bail!("rate: the network has no layer or parameter {of}; it has {names}")
        }
        let mut rates = self.rule.rates.to_vec();
        for (of_name, name) in rates.iter_mut().zip(&names) {
            if is_meant(name) {
                *of_name = rate;
            }
        }
        self.rule.rates = rates.into();
        self.compared.clear(); // what is frozen was not compared
        Ok(self)
    }

    /// Scales the gradients down where their norm, over all parameters that are not frozen, is larger than
    /// `max_norm`: PyTorch's `clip_grad_norm_`. It is the norm of the sum of all replicas, divided by the examples.
    ///
    /// # Panics
    /// If `max_norm` is not above 0.
    pub fn clip_norm(mut self, max_norm: f64) -> Self {
        assert!(max_norm > 0.0, "clip_norm {max_norm}: expected more than 0");
        self.rule.max_norm = Some(max_norm);
        self
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.rule.lr_of(self.steps)
    }

    /// Sets the learning rate of the steps that follow. The optimizer state stays.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
    /// # let net = DataParallel::new(&devices::devices(2)?, Initializer::Normal(0.1), 0, |vb| {
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
        self.rule.lr = lr;
    }

    /// One step on the minibatch `x` (B, …), `y` (B,): splits it over the devices, computes
    /// the loss and its gradient on all of them at once, sums the gradients, and takes the same
    /// step everywhere, divided by the number of examples there are.
    ///
    /// Gradients are summed while others are still computed, as [`Replication`](crate::Replication)
    /// says.
    ///
    /// # Errors
    /// If `x` and `y` do not fit the network and the loss, or have NaN: nothing was changed, and in one process training
    /// can go on with the next minibatch. If a replica fails later; the message names it, and the network trains no
    /// further. If a loss is NaN or infinite: the step was taken. And if another trainer of the network came while
    /// gradients waited here: they are lost, and the next step begins anew.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        let last = self.waiting + 1 >= self.accumulate;
        self.minibatch(x, y, last)
    }

    /// The first half of a step: adds the gradients of a minibatch to those that wait. [`flush`](Self::flush) is the
    /// other half, which sums them over the replicas and takes the step with all of them.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use data_parallel::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
    /// # let net = DataParallel::new(&devices::devices(2)?, Initializer::Normal(0.1), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// # let (x, y) = (Tensor::ones((4, 3), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
    /// let weight = || anyhow::Ok(net.parameter("weight", 0)?.to_vec2::<f32>()?);
    /// let (before, mut trainer) = (weight()?, Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1)));
    /// trainer.backward(&x, &y)?;
    /// assert_eq!(weight()?, before);
    /// trainer.flush()?;
    /// assert_ne!(weight()?, before);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn backward(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        self.minibatch(x, y, false)
    }

    /// One job of all replicas: [`Replica::train`](crate::replica::Replica::train).
    fn minibatch(&mut self, x: &Tensor, y: &Tensor, last: bool) -> Result<Step> {
        self.check_waiting()?;
        ensure!(
            !self.rule.rates.is_empty(),
            "the network has no parameters; build its layers from the VarBuilder that DataParallel gives"
        );
        let rule = self.rule.of_step(self.steps)?;
        let bad = self.not_finite(x, y)?;
        let batch_size = self.batch_size(y.dim(0)?, bad)?;
        let shards = self.net.scatter_part(x, y, batch_size)?;
        ensure!(
            batch_size > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        let waiting = if self.waiting > 0 { self.examples } else { 0 };
        let (examples, lr) = (waiting + batch_size, rule.lr);
        let minibatch = Minibatch {
            loss: self.loss.clone(),
            rule,
            number: (self.steps, self.waiting),
            fresh: !self.is_last(),
            step_with: last.then_some(examples),
        };
        let shards = shards.into_iter().zip(self.gradient_checks()?);
        let shards = shards.map(|((x, y), checks)| (x, y, checks)).collect();
        let train = move |replica: &mut _, shard| Replica::train(replica, &minibatch, shard);
        let trained = self.net.on_each(shards, train)?;
        self.is_last_now();
        self.examples = examples;
        self.waiting = if last { 0 } else { self.waiting + 1 };
        self.steps += usize::from(last);
        let (ls, shards): (Vec<Tensor>, Vec<_>) = trained.into_iter().flatten().unzip();
        let loss = BatchLoss::new(self.all_losses(ls)?, batch_size);
        self.check_finite(&loss, lr)?;
        Ok(Step { loss, shards })
    }

    /// What each replica has compared of candle's gradients, if they are compared. Each compares its own: shards may have
    /// different shapes, and a check moves no variable that another replica reads.
    fn gradient_checks(&mut self) -> Result<Vec<Option<Checks>>> {
        let states = self.net.states.clone();
        if !self.checks {
            return Ok(vec![None; states.len()]);
        }
        if self.compared.is_empty() {
            for state in states.iter() {
                let mut variables = Variables::default();
                for ((name, param), rate) in state.parameters().zip(&*self.rule.rates) {
                    if *rate == 0.0 {
                        variables.frozen.push(param.clone());
                    } else {
                        variables.trained.push((name.clone(), param.clone()));
                    }
                }
                let buffers = state.buffers().map(|(_, buffer)| buffer.clone());
                variables.buffers = buffers.collect();
                let checks = GradientChecks::new(variables)?;
                self.compared.push(Arc::new(Mutex::new(checks)));
            }
        }
        Ok(self.compared.iter().cloned().map(Some).collect())
    }

    /// Takes the step with the gradients that wait, if there are any: at the end of an epoch, where fewer minibatches are
    /// left.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn flush(&mut self) -> Result<()> {
        self.check_waiting()?;
        if self.waiting == 0 {
            return Ok(());
        }
        let (rule, examples) = (self.rule.of_step(self.steps)?, self.examples);
        self.waiting = 0;
        let all = vec![(); self.net.devices().len()];
        self.net
            .on_each(all, move |replica, ()| replica.flush(&rule, examples))?;
        self.steps += 1;
        Ok(())
    }

    /// What is wrong with the numbers of a minibatch, unless they are not checked: NaN or infinity, in f32 on the CPU.
    fn not_finite(&self, x: &Tensor, y: &Tensor) -> Result<Option<String>> {
        for (name, numbers) in [("x", x), ("y", y)] {
            if self.unread.is_some()
                && let Some(at) = functional::not_finite(numbers)?
            {
                let example = at / (numbers.elem_count() / numbers.dim(0)?);
                let value = numbers.flatten_all()?.get(at)?.to_scalar::<f32>()?;
                return Ok(Some(format!(
                    "{name} has the value {value} in example {example} of the minibatch; no step was taken. \
                     Trainer::check_losses(false) trains all the same"
                )));
            }
        }
        Ok(None)
    }

    /// The examples of the minibatch in all processes, of which `own` are here. Where one of the processes
    /// wants to stop, all do so after this step.
    ///
    /// # Errors
    /// In all processes, if a minibatch is bad.
    fn batch_size(&self, own: usize, bad: Option<String>) -> Result<usize> {
        let wants_to_stop = self.stop.is_some_and(|stop| (stop.wants_to)());
        let flags = [wants_to_stop, bad.is_some()].map(|flag| f64::from(u8::from(flag)));
        let mut counts = [own as f64, flags[0], flags[1]];
        self.net.processes.sum(&mut counts)?;
        if let Some(bad) = bad {
            bail!(bad)
        }
        ensure!(
            counts[2] == 0.0,
            "the minibatch of another process has NaN or infinity; no step was taken"
        );
        if self.net.processes.are_one() {
            return Ok(own);
        }
        if let (true, Some(Stop { stop, .. })) = (counts[1] > 0.0, self.stop) {
            stop();
        }
        Ok(counts[0] as usize)
    }

    /// An error where one of the losses that can be read by now is NaN or infinite.
    fn check_finite(&mut self, loss: &BatchLoss, lr: f64) -> Result<()> {
        let Some(unread) = &mut self.unread else {
            return Ok(());
        };
        if !unread.push(loss.clone()) {
            return Ok(());
        }
        let steps = self.steps;
        for (_, loss) in unread.read()? {
            ensure!(
                loss.is_finite(),
                "after {steps} steps, at learning rate {lr:?}, the loss is {loss}; try a smaller \
                 rate, or clip_norm"
            );
        }
        Ok(())
    }

    /// The losses of the shards of all processes, of which `own` are here, in the order in which one process would
    /// have them: so their sum has its bits.
    fn all_losses(&self, own: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if self.net.processes.are_one() {
            return Ok(own); // they may stay where they are
        }
        let bytes = |l: &Tensor| Ok(l.to_scalar::<f32>()?.to_le_bytes());
        let own = own.iter().map(bytes).collect::<Result<Vec<_>>>()?;
        let all = self.net.processes.gather(&own.concat())?.concat();
        let loss = |bytes: &[u8; 4]| Ok(Tensor::new(f32::from_le_bytes(*bytes), &Device::Cpu)?);
        all.as_chunks().0.iter().map(loss).collect()
    }

    /// Whether the replicas hold the gradients and the optimizer state of this trainer.
    pub(crate) fn is_last(&self) -> bool {
        self.net.last_trainer.load(Ordering::Relaxed) == self.id
    }

    pub(crate) fn is_last_now(&self) {
        self.net.last_trainer.store(self.id, Ordering::Relaxed);
    }

    /// An error, unless the gradients that wait for the step are still there. Lost gradients wait no longer.
    fn check_waiting(&mut self) -> Result<()> {
        let waiting = self.waiting;
        if waiting == 0 || self.is_last() {
            return Ok(());
        }
        self.waiting = 0;
        let s = if waiting == 1 { "" } else { "es" };
        bail!(
            "the gradients of {waiting} minibatch{s} are lost, because another trainer used the \
             network before their step; call flush() first"
        )
    }
}
