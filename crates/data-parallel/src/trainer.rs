//! One synchronized step of all replicas.

use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor, Var};
use collective::Member;
use devices::{bail, ensure, find, lock};
use functional::{Optimizer, Value};
use training::{BatchLoss, ReadLoss, Unread};

use crate::data_parallel::DataParallel;
use crate::error::Kind;
use crate::replica::{Loss, Minibatch, Refusal, Replica, Share};
use crate::slot::{NamedState, Slot};
use crate::update_rule::{StepRule, UpdateRule};

/// Trains a replicated network: its [`step`](Trainer::step) is all that a training loop needs.
///
/// A trainer has gradients and an optimizer state of its own. So several trainers can take turns on one network, as the
/// optimizers of a GAN do: [`Trainer::with`].
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
/// # data_parallel::Result::Ok(())
/// ```
pub struct Trainer {
    pub(crate) net: DataParallel,
    loss: Arc<Loss>,
    pub(crate) rule: UpdateRule,
    /// Minibatches of a step.
    accumulate: usize,
    /// Whether steps compare the gradients of candle's operations with finite differences.
    checks_gradients: bool,
    /// Whether numbers that are not finite are errors.
    checks_numbers: bool,
    /// The losses that are not yet known to be finite.
    unread: Unread<StepNumber>,
    /// The losses since the last [`mean_loss`](Self::mean_loss).
    pub(crate) losses: LossSum,
    /// Those of the present epoch of [`Checkpoints`](crate::Checkpoints).
    pub(crate) epoch_losses: LossSum,
    /// This process wants to stop.
    wants_to_stop: Option<Arc<AtomicBool>>,
    /// What others see of this trainer.
    pub(crate) flags: Flags,
    /// The steps that were taken.
    pub(crate) steps: usize,
    pub(crate) waiting: Waiting,
    /// The examples of the last step; 0 where its gradients are not there.
    pub(crate) last_examples: usize,
    slots: Slots,
    /// Its number among the trainers of the network: each draws numbers of its own.
    pub(crate) number: usize,
}

/// The minibatches whose gradients wait for their step.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waiting {
    pub minibatches: usize,
    examples: usize,
}

/// What the minibatches of [`Checkpoints`](crate::Checkpoints) see of a trainer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// Training is to end, in all processes.
    pub stopping: Arc<AtomicBool>,
    /// How many minibatches wait for their step.
    pub waiting: Arc<AtomicUsize>,
}

impl Flags {
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub fn is_between_steps(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }
}

/// What a trainer keeps on the replicas of this process.
#[derive(Default)]
pub(crate) struct Slots {
    /// Of each replica; none before the first minibatch.
    all: Vec<Arc<Mutex<Slot>>>,
    /// The parameters that they train.
    trained: Vec<bool>,
}

/// A state that fits a trainer and its network.
pub(crate) struct CheckedState {
    /// None where only running statistics are set.
    pub of_trainer: Option<TrainerState>,
    /// Running statistics of other replicas.
    pub buffers: Vec<CheckedBuffer>,
    /// Whether the state has running statistics of replicas, here or in other processes.
    pub has_buffers: bool,
}

/// A running statistic of a replica, and its new value.
pub(crate) struct CheckedBuffer {
    pub name: String,
    pub buffer: Var,
    pub value: Tensor,
}

/// The state of a trainer itself.
pub(crate) struct TrainerState {
    pub slots: Slots,
    pub steps: usize,
    pub lr: Option<f64>,
    pub number: usize,
}

/// The losses of several minibatches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LossSum {
    /// Of all examples.
    pub sum: f64,
    pub examples: usize,
}

impl LossSum {
    fn add(&mut self, loss: &ReadLoss<StepNumber>) {
        self.sum += f64::from(loss.mean) * loss.examples as f64;
        self.examples += loss.examples;
    }

    pub fn mean(self) -> f64 {
        self.sum / self.examples as f64
    }
}

/// A step, as an error names it.
#[derive(Debug, Clone, Copy)]
struct StepNumber {
    /// From 1.
    number: usize,
    lr: f64,
}

/// What a step needs before the replicas begin.
struct Prepared {
    rule: StepRule,
    /// The examples of the minibatch in all processes.
    batch_size: usize,
    /// Of each replica of this process.
    shares: Vec<Share>,
    slots: Vec<Arc<Mutex<Slot>>>,
}

/// The result of a step.
#[derive(Debug)]
pub struct Step {
    /// The loss of the minibatch, before the step.
    pub loss: BatchLoss,
    /// Outputs and labels of each shard, on its device, before the step: for a metric. Replicas
    /// without an example have none, and trainers of [`Trainer::with`] have none at all.
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
        loss: impl Fn(&Value, &Tensor) -> Result<Value> + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Self {
        Self::of(net, Loss::OfOutputs(Box::new(loss)), optimizer)
    }

    /// A trainer whose loss is a function of the network: for a network that is run twice in a step, or of which a step
    /// uses a part, as those of a GAN do.
    ///
    /// `losses` gets the network, the inputs and the targets of a shard, and returns the loss of each example, (B,).
    /// Today there is one input, `x`, and one target, `y`. Layers are called with `train` true. `N` is the type that
    /// the network was built as.
    ///
    /// ```
    /// use data_parallel::prelude::*;
    ///
    /// struct Gan {
    ///     generator: Sequential,
    ///     critic: Sequential,
    /// }
    ///
    /// impl Network for Gan {
    ///     fn forward(&self, noise: &Value, train: bool) -> Result<Value> {
    ///         self.generator.forward(noise, train) // in inference
    ///     }
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
    ///     let generator = Sequential::new().add(Linear::new(2, 3, vb.pp("generator"))?);
    ///     let critic = Sequential::new().add(Linear::new(3, 1, vb.pp("critic"))?);
    ///     Ok(Gan { generator, critic })
    /// })?;
    /// let real_or_not = |gan: &Gan, x: &[Value], y: &[Tensor]| {
    ///     let real = gan.critic.forward(&Value::new(&y[0])?, true)?;
    ///     let fake = gan.critic.forward(&gan.generator.forward(&x[0], true)?, true)?;
    ///     binary_cross_entropy(&Value::cat(&[&real, &fake], 1)?, &Tensor::new(&[[1f32, 0.0]], y[0].device())?.repeat((y[0].dim(0)?, 1))?)
    /// };
    /// let fools = |gan: &Gan, x: &[Value], y: &[Tensor]| {
    ///     let fake = gan.critic.forward(&gan.generator.forward(&x[0], true)?, true)?;
    ///     binary_cross_entropy(&fake, &Tensor::ones((y[0].dim(0)?, 1), DType::F32, y[0].device())?)
    /// };
    /// // each trains its part, and has its own optimizer state
    /// let mut critic = Trainer::with(&net, real_or_not, AdamW::default())?.rate("generator", 0.0)?;
    /// let mut generator = Trainer::with(&net, fools, AdamW::default())?.rate("critic", 0.0)?;
    /// let (noise, real) = (Tensor::ones((4, 2), DType::F32, &Device::Cpu)?, Tensor::ones((4, 3), DType::F32, &Device::Cpu)?);
    /// critic.step(&noise, &real)?;
    /// generator.step(&noise, &real)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the network was built as another type; the message has both.
    pub fn with<N: 'static>(
        net: &DataParallel,
        losses: impl Fn(&N, &[Value], &[Tensor]) -> Result<Value> + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Result<Self> {
        let (built, expected) = (net.network_type.name, std::any::type_name::<N>());
        ensure!(
            net.network_type.id == TypeId::of::<N>(),
            "the network was built as {built}, the loss takes a {expected}"
        );
        let losses = move |net: &dyn Any, x: &[Value], y: &[Tensor]| match net.downcast_ref() {
            Some(net) => losses(net, x, y),
            None => candle_core::bail!("the network is no {expected}"),
        };
        Ok(Self::of(net, Loss::OfNetwork(Box::new(losses)), optimizer))
    }

    fn of(net: &DataParallel, loss: Loss, optimizer: impl Optimizer + 'static) -> Self {
        net.a_trainer_begins();
        Self {
            net: net.clone(),
            loss: Arc::new(loss),
            rule: UpdateRule::new(optimizer, net.states[0].parameters().count()),
            accumulate: 1,
            checks_gradients: true,
            checks_numbers: true,
            unread: Unread::default(),
            losses: LossSum::default(),
            epoch_losses: LossSum::default(),
            wants_to_stop: None,
            flags: Flags::default(),
            steps: 0,
            waiting: Waiting::default(),
            last_examples: 0,
            slots: Slots::default(),
            number: net.trainers.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Takes the optimizer's step once in `minibatches`: their gradients add up on each device, and are
    /// summed over the devices once. It is the step on all their examples together. Where as many or more wait
    /// already, the next one is the last.
    ///
    /// # Errors
    /// If `minibatches` is 0.
    pub fn accumulate(self, minibatches: usize) -> Result<Self> {
        ensure!(minibatches > 0, "a step of 0 minibatches; give at least 1");
        Ok(Self {
            accumulate: minibatches,
            ..self
        })
    }

    /// Whether the first step, and each later one with a new shape, compares the gradient of each [`functional::candle`] in
    /// the network and in the loss with finite differences, as [`functional::GradientChecks`] does. A wrong gradient is an
    /// error, except of a frozen parameter. Default: true.
    pub fn check_gradients(self, checks: bool) -> Self {
        Self {
            checks_gradients: checks,
            ..self
        }
    }

    /// Whether NaN and infinity are errors. Default: true.
    ///
    /// On the CPU they are one in `x` and `y`, in the loss, in the sums of the gradients, and in running statistics: the
    /// step is not taken. On a GPU they are one in a loss, up to 256 steps after its step, so that the host does not wait
    /// for the GPU in every step.
    pub fn check_losses(self, checks: bool) -> Self {
        Self {
            checks_numbers: checks,
            ..self
        }
    }

    /// Lets training end in order once `flag` is set, such as by `signal_hook::flag::register`. The minibatches of
    /// [`Checkpoints`](crate::Checkpoints) end then, between two steps. Several processes tell each other in each step, and
    /// end after the same one, whichever of them was asked.
    pub fn stop_when(mut self, flag: Arc<AtomicBool>) -> Self {
        if self.net.processes.are_one() {
            self.flags.stopping = flag.clone();
        }
        self.wants_to_stop = Some(flag);
        self
    }

    /// A flag that is set once training is to end, at the same step in all processes: for
    /// [`DataIter::stop_when`](training::DataIter::stop_when).
    pub fn stopping(&self) -> Arc<AtomicBool> {
        self.flags.stopping.clone()
    }

    /// Multiplies the learning rate of each step, counted from 0, by the value of `schedule`, such as one of
    /// [`schedule`](crate::schedule). A run that is resumed goes on with the step where it was.
    pub fn schedule(mut self, schedule: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Self {
        self.rule.schedule = Some(Arc::new(schedule));
        self
    }

    /// Multiplies the learning rate of a parameter, or of all parameters of a layer, by `rate`: `of` is its name, or its
    /// first parts, or "" for all. A later call replaces an earlier one.
    ///
    /// With 0 a parameter is frozen: neither it nor its optimizer state changes, and it has no gradient, which is not
    /// checked either. Of a layer below which nothing is trained, backward is not computed. Running statistics of batch norms move all the same.
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
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the network has nothing of that name, or the rate is negative or no finite number; and if a parameter begins or
    /// ceases to be trained while gradients wait for their step.
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
        let before = self.rule.trained();
        for (of_name, name) in self.rule.rates.iter_mut().zip(&names) {
            if is_meant(name) {
                *of_name = rate;
            }
        }
        if self.rule.trained() != before {
            self.check_no_gradients_wait("rate")?;
        }
        Ok(self)
    }

    /// Scales the gradients down where their norm, over all parameters that are not frozen, is larger than
    /// `max_norm`: PyTorch's `clip_grad_norm_`. It is the norm of the sum of all replicas, divided by the examples.
    ///
    /// # Errors
    /// If `max_norm` is not above 0.
    pub fn clip_norm(mut self, max_norm: f64) -> Result<Self> {
        ensure!(max_norm > 0.0, "clip_norm {max_norm}: expected more than 0");
        self.rule.max_norm = Some(max_norm);
        Ok(self)
    }

    /// The learning rate of the next step.
    pub fn lr(&self) -> f64 {
        self.rule.lr_of(self.steps)
    }

    /// How many steps this trainer has taken, also before its state was loaded.
    ///
    /// ```no_run
    /// # use data_parallel::Trainer;
    /// # fn next() -> data_parallel::Result<(candle_core::Tensor, candle_core::Tensor)> { unreachable!() }
    /// # fn train(mut trainer: Trainer) -> data_parallel::Result<()> {
    /// for _ in trainer.steps()..10_000 {
    ///     let (x, y) = next()?; // a stream has no epochs
    ///     trainer.step(&x, &y)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// The mean loss of an example, before its step, over all minibatches since the last call; NaN if there was none. A
    /// checkpoint has its sum, so it is the same where a run was resumed in between.
    ///
    /// # Errors
    /// If a device fails; and as [`step`](Self::step), if a loss is NaN or infinite that was not read before.
    pub fn mean_loss(&mut self) -> Result<f64> {
        self.read_losses()?;
        Ok(std::mem::take(&mut self.losses).mean())
    }

    /// The losses since the last call, for [`Checkpoints`](crate::Checkpoints).
    pub(crate) fn take_epoch_losses(&mut self) -> Result<LossSum> {
        self.read_losses()?;
        Ok(std::mem::take(&mut self.epoch_losses))
    }

    /// The sums of [`mean_loss`](Self::mean_loss) and of the epoch, with those that are still on the devices.
    pub(crate) fn all_losses_so_far(&self) -> Result<[LossSum; 2]> {
        let mut sums = [self.losses, self.epoch_losses];
        for read in self.unread.peek()? {
            sums.iter_mut().for_each(|sum| sum.add(&read));
        }
        Ok(sums)
    }

    /// Whether losses that are NaN or infinite are errors.
    pub(crate) fn checks_numbers(&self) -> bool {
        self.checks_numbers
    }

    /// What the result of its steps depends on beside the network, a line each, as far as the library knows it: the code
    /// of a loss is not known.
    pub fn settings(&self) -> String {
        let rule = &self.rule;
        let names = self.net.states[0].named().map(|(name, _)| name);
        let rates = names.zip(&rule.rates).filter(|(_, rate)| **rate != 1.0);
        let rates: Vec<String> = rates.map(|(name, rate)| format!("{name} {rate}")).collect();
        let lines = [
            format!("optimizer {:?}", rule.optimizer),
            format!("accumulate {}", self.accumulate),
            format!("clip-norm {:?}", rule.max_norm),
            format!("rates {rates:?}"),
        ];
        lines.join("\n")
    }

    /// Sets the learning rate of the steps that follow, which [`state_dict`](Self::state_dict) has too. The optimizer state
    /// stays.
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
    /// # data_parallel::Result::Ok(())
    /// ```
    pub fn set_lr(&mut self, lr: f64) {
        self.rule.lr = Some(lr);
    }

    /// One step on the minibatch `x` (B, …), `y` (B,): splits it over the devices, computes
    /// the loss and its gradient on all of them at once, sums the gradients, and takes the same
    /// step everywhere, divided by the number of examples there are.
    ///
    /// Gradients are summed while others are still computed, as [`Replication`](crate::Replication)
    /// says.
    ///
    /// # Errors
    /// If `x` and `y` do not fit the network and the loss, or have NaN; if a replica cannot compute its part; if a sum of
    /// gradients, or on one replica a running statistic, is NaN or infinite. Then no step was taken, nothing was
    /// changed, and training can go on with the next minibatch. Gradients that waited for the step are lost where the
    /// message says so.
    ///
    /// If a loss is NaN or infinite, on a GPU or in several processes: the step was taken.
    ///
    /// In several processes, and where the all-reduce fails, the network trains no further after an error of one replica.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        let last = self.waiting.minibatches + 1 >= self.accumulate;
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
    /// let weight = || candle_core::Result::Ok(net.parameter("weight", 0)?.to_vec2::<f32>()?);
    /// let (before, mut trainer) = (weight()?, Trainer::new(&net, functional::cross_entropy, Sgd::new(0.1)));
    /// trainer.backward(&x, &y)?;
    /// assert_eq!(weight()?, before);
    /// trainer.flush()?;
    /// assert_ne!(weight()?, before);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn backward(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        self.minibatch(x, y, false)
    }

    /// One job of all replicas: [`Replica::train`].
    fn minibatch(&mut self, x: &Tensor, y: &Tensor, last: bool) -> Result<Step> {
        let Prepared {
            rule,
            batch_size,
            shares,
            slots,
        } = self.prepare(x, y).map_err(|error| self.unprepared(error))?;
        self.last_examples = 0; // until the step is taken
        let of_step = self.step_number(&rule);
        let examples = self.waiting.examples + batch_size;
        let minibatch = self.job(rule, last.then_some(examples));
        let inputs = shares.into_iter().zip(slots).collect();
        let job = minibatch.clone();
        let train = move |replica: &mut Replica, (share, slot): (Share, Arc<Mutex<Slot>>)| {
            replica.train(&job, &share, &mut lock(&slot))
        };
        let trained = match self.net.on_each(inputs, train) {
            Ok(trained) => trained,
            Err(error) if minibatch.dropped.load(Ordering::SeqCst) => {
                if let Some(refused) = find::<Refusal>(&error) {
                    return self.refuse(of_step, refused);
                }
                let lost = self.drop_step()?;
                return Err(Kind::Refused.says(format!("{error}{lost}")));
            }
            Err(error) => return Err(self.failed(error)),
        };
        let refused = trained.iter().find_map(|trained| trained.refused.clone());
        let (mut losses, mut shards) = (Vec::new(), Vec::new());
        for shard in trained.into_iter().filter_map(|trained| trained.shard) {
            losses.push(shard.loss);
            shards.extend(shard.outputs.map(|outputs| (outputs, shard.labels)));
        }
        if let Some(refused) = refused {
            let loss = BatchLoss::new(losses, batch_size).mean()?;
            return if loss.is_finite() {
                self.refuse(of_step, &refused)
            } else {
                self.refuse(of_step, &Refusal::loss(loss))
            };
        }
        if last {
            self.step_taken(examples);
        } else {
            self.set_waiting(Waiting {
                minibatches: self.waiting.minibatches + 1,
                examples,
            });
        }
        let loss = BatchLoss::new(self.all_losses(losses)?, batch_size);
        self.count_loss(&loss, of_step)?;
        Ok(Step { loss, shards })
    }

    /// What a step needs before the replicas begin.
    fn prepare(&mut self, x: &Tensor, y: &Tensor) -> Result<Prepared> {
        self.net.check_statistics()?;
        let rule = self.rule_of_step()?;
        let bad = self.not_finite(x, y)?;
        let batch_size = self.batch_size(y.dim(0)?, bad)?;
        self.check_parts(x, y)?;
        let shards = self.net.scatter_part(x, y, batch_size)?;
        ensure!(
            batch_size > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        let shares = shards.into_iter().map(|(x, y)| Share { x, y });
        Ok(Prepared {
            rule,
            batch_size,
            shares: shares.collect(),
            slots: self.slots()?,
        })
    }

    /// In the first step of several processes: an error in all of them, if two have the same minibatch. Then the data was not
    /// cut, and each example would be trained once in each process.
    fn check_parts(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let is_first = self.steps == 0 && self.waiting.minibatches == 0;
        if self.net.processes.are_one() || !is_first {
            return Ok(());
        }
        let all = self.net.processes.gather(&fingerprint(x, y)?)?;
        for (i, other) in all.iter().enumerate().skip(1) {
            if let Some(first) = all[..i]
                .iter()
                .position(|first| first == other && !first.is_empty())
            {
                return Err(Kind::Refused.says(format!(
                    "processes {first} and {i} train on the same minibatch: net.part(data) makes the part of a process, and \
                     so does Checkpoints::minibatches"
                )));
            }
        }
        Ok(())
    }

    /// The error of a minibatch that did not get to the replicas. Unless all processes know of it, the others wait for this
    /// one.
    fn unprepared(&self, error: candle_core::Error) -> candle_core::Error {
        let alone = self.net.processes.are_one();
        let kind = if alone { Kind::Refused } else { Kind::Failed };
        kind.of(error)
    }

    /// The error of a replica that failed: if the replicas had begun to sum, they sum no more.
    fn failed(&self, error: candle_core::Error) -> candle_core::Error {
        let kind = if self.net.has_failed() {
            Kind::Failed
        } else {
            Kind::Refused
        };
        kind.of(error)
    }

    /// Takes the step with the gradients that wait, if there are any: at the end of an epoch, where fewer minibatches are
    /// left.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn flush(&mut self) -> Result<()> {
        if self.waiting.minibatches == 0 {
            return Ok(());
        }
        let (rule, examples) = (self.rule_of_step()?, self.waiting.examples);
        let of_step = self.step_number(&rule);
        let job = self.job(rule, Some(examples));
        let flush = move |replica: &mut Replica, slot: Arc<Mutex<Slot>>| {
            replica.flush(&job, &mut lock(&slot), examples)
        };
        let slots = self.slots()?;
        let flushed = self.net.on_each(slots, flush);
        let refusals = flushed.map_err(|error| self.failed(error))?;
        let refused = refusals.into_iter().flatten().next();
        if let Some(refused) = refused {
            return self.refuse(of_step, &refused);
        }
        self.step_taken(examples);
        Ok(())
    }

    /// The rule of the next step.
    fn rule_of_step(&self) -> Result<StepRule> {
        ensure!(
            !self.rule.rates.is_empty(),
            "the network has no parameters; build its layers from the VarBuilder that DataParallel gives"
        );
        let rule = self.rule.of_step(self.steps)?;
        ensure!(
            !rule.rates.is_empty(),
            "no parameter is trained: the rate of each is 0; give one another rate"
        );
        Ok(rule)
    }

    fn step_number(&self, rule: &StepRule) -> StepNumber {
        StepNumber {
            number: self.steps + 1,
            lr: rule.lr,
        }
    }

    /// What the replicas need to know of the next minibatch.
    fn job(&self, rule: StepRule, step_with: Option<usize>) -> Arc<Minibatch> {
        Arc::new(Minibatch {
            loss: self.loss.clone(),
            rule,
            trainer: self.number,
            number: (self.steps, self.waiting.minibatches),
            step_with,
            checks_gradients: self.checks_gradients,
            checks_numbers: self.checks_numbers,
            dropped: AtomicBool::new(false),
        })
    }

    fn set_waiting(&mut self, waiting: Waiting) {
        self.flags
            .waiting
            .store(waiting.minibatches, Ordering::Relaxed);
        self.waiting = waiting;
    }

    fn step_taken(&mut self, examples: usize) {
        self.steps += 1;
        self.last_examples = examples;
        self.set_waiting(Waiting::default());
    }

    /// The slots of the replicas, for the parameters that are trained now. Another choice of parameters takes the
    /// optimizer state along.
    fn slots(&mut self) -> Result<Vec<Arc<Mutex<Slot>>>> {
        if self.slots.all.is_empty() || self.slots.trained != self.rule.trained() {
            self.slots = self.new_slots(&self.optimizer_state()?)?;
        }
        Ok(self.slots.all.clone())
    }

    /// Slots with this optimizer state.
    pub(crate) fn new_slots(&self, state: &NamedState) -> Result<Slots> {
        let (trained, state) = (self.rule.trained(), state.clone());
        let (names, how) = (self.rule.optimizer.state(), self.net.how.clone());
        let of_job = trained.clone();
        let make = move |replica: &mut Replica, ()| {
            let slot = Slot::new(&replica.state, &of_job, &how, names, &state)?;
            Ok(Arc::new(Mutex::new(slot)))
        };
        let all = self.net.on_each(vec![(); self.net.devices().len()], make)?;
        Ok(Slots { all, trained })
    }

    /// Replaces the slots, and what is known of the gradients in them.
    pub(crate) fn set_slots(&mut self, slots: Slots, steps: usize) {
        self.slots = slots;
        self.steps = steps;
        self.set_waiting(Waiting::default());
        self.last_examples = 0;
        self.unread = Unread::default();
        (self.losses, self.epoch_losses) = Default::default();
    }

    /// The optimizer state, which all replicas have in common.
    pub(crate) fn optimizer_state(&self) -> Result<NamedState> {
        let names = self.rule.optimizer.state();
        self.on_first_slot(NamedState::default(), move |slot| slot.state(names))
    }

    /// What `of` says of the slot of the first replica; `none` where there is no slot.
    pub(crate) fn on_first_slot<T: Send + 'static>(
        &self,
        none: T,
        of: impl Fn(&Slot) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        match self.slots.all.first().cloned() {
            None => Ok(none),
            Some(slot) => self.net.on_first(move |_| of(&lock(&slot))),
        }
    }

    /// Forgets a step that no replica has taken, and sets back what its last minibatch has changed. Returns what an error
    /// says of gradients that waited.
    fn drop_step(&mut self) -> Result<String> {
        let norms = self.net.new_norms()?.into_iter();
        let inputs = self.slots.all.iter().cloned().zip(norms).collect();
        type Input = (Arc<Mutex<Slot>>, Option<Member>);
        let drop_step = |replica: &mut Replica, (slot, norms): Input| {
            replica.drop_step(&mut lock(&slot), norms)
        };
        self.net.on_each(inputs, drop_step)?;
        let waited = self.waiting.minibatches;
        self.set_waiting(Waiting::default());
        self.last_examples = 0;
        Ok(match waited {
            0 => String::new(),
            1 => "; the gradients of 1 minibatch that waited for the step are lost".to_owned(),
            n => format!("; the gradients of {n} minibatches that waited for the step are lost"),
        })
    }

    /// The error of a step that was not taken.
    fn refuse<T>(&mut self, step: StepNumber, refused: &Refusal) -> Result<T> {
        let lost = self.drop_step()?;
        let StepNumber { number, lr } = step;
        let said = refused.said(&lost, self.steps == 0);
        Err(Kind::Refused.says(format!("step {number}, at learning rate {lr:?}: {said}")))
    }

    /// An error that names `flush`, if gradients wait for their step.
    pub(crate) fn check_no_gradients_wait(&self, what: &str) -> Result<()> {
        let waiting = self.waiting.minibatches;
        let s = if waiting == 1 { "" } else { "es" };
        ensure!(
            waiting == 0,
            "{what}: the gradients of {waiting} minibatch{s} wait for their step; call flush() first"
        );
        Ok(())
    }

    /// What is wrong with the numbers of a minibatch, unless they are not checked: NaN or infinity, in f32 on the CPU.
    fn not_finite(&self, x: &Tensor, y: &Tensor) -> Result<Option<String>> {
        for (name, numbers) in [("x", x), ("y", y)] {
            if self.checks_numbers
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
        let wants_to_stop = self.wants_to_stop.as_ref();
        let wants_to_stop = wants_to_stop.is_some_and(|flag| flag.load(Ordering::Relaxed));
        let flags = [wants_to_stop, bad.is_some()].map(|flag| f64::from(u8::from(flag)));
        let mut counts = [own as f64, flags[0], flags[1]];
        self.net.processes.sum(&mut counts)?;
        if let Some(bad) = bad {
            return Err(Kind::Refused.says(bad));
        }
        if counts[2] > 0.0 {
            let bad = "the minibatch of another process has NaN or infinity; no step was taken";
            return Err(Kind::Refused.says(bad));
        }
        if self.net.processes.are_one() {
            return Ok(own);
        }
        if counts[1] > 0.0 {
            self.flags.stopping.store(true, Ordering::Relaxed);
        }
        Ok(counts[0] as usize)
    }

    /// Counts the loss of a step.
    ///
    /// # Errors
    /// If one of the losses that can be read by now is NaN or infinite. Its step was taken.
    fn count_loss(&mut self, loss: &BatchLoss, of_step: StepNumber) -> Result<()> {
        if self.unread.push(loss.clone(), of_step) {
            self.read_losses()?;
        }
        Ok(())
    }

    /// Reads the losses that are still on the devices.
    fn read_losses(&mut self) -> Result<()> {
        for read in self.unread.read()? {
            self.losses.add(&read);
            self.epoch_losses.add(&read);
            let (StepNumber { number, lr }, loss) = (read.note, read.mean);
            if self.checks_numbers && !loss.is_finite() {
                return Err(Kind::Diverged.says(format!(
                    "step {number}, at learning rate {lr:?}: the loss is {loss}. The step was taken; try a smaller rate, \
                     or clip_norm"
                )));
            }
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
        let loss = |bytes: &[u8; 4]| Tensor::new(f32::from_le_bytes(*bytes), &Device::Cpu);
        all.as_chunks().0.iter().map(loss).collect()
    }
}

/// What tells the minibatches of processes apart; nothing of one that has no two different examples.
fn fingerprint(x: &Tensor, y: &Tensor) -> Result<Vec<u8>> {
    let mut sums = Vec::new();
    let mut differ = false;
    for tensor in [x, y] {
        let values = tensor
            .to_dtype(DType::F64)?
            .flatten_all()?
            .to_vec1::<f64>()?;
        differ |= values.iter().any(|value| *value != values[0]);
        sums.extend(crc32fast::hash(bytemuck::cast_slice(&values)).to_le_bytes());
    }
    Ok(if differ { sums } else { Vec::new() })
}
