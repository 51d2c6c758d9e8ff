//! One synchronized step of all replicas.

use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor, Var};
use collective::Member;
use devices::{bail, ensure, find, lock};
use functional::{Optimizer, Value};
use training::{Batch, BatchLoss, ReadLoss, Unread};

use crate::count::{Count, CountOf, checked};
use crate::data::{Data, first_twins};
use crate::data_parallel::DataParallel;
use crate::error::Kind;
use crate::replica::{Loss, Minibatch, Refusal, Replica};
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
    /// What the mean of a step is over, if not over the examples.
    mean_over: Option<Box<CountOf>>,
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
    /// What the sums of the last step were divided by; none where its gradients are not there.
    pub(crate) last_divisor: Option<f64>,
    slots: Slots,
    /// Its number among the trainers of the network: each draws numbers of its own.
    pub(crate) number: usize,
}

/// The minibatches whose gradients wait for their step.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waiting {
    pub minibatches: usize,
    /// What they count in its mean.
    divisor: f64,
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
    /// The number of examples, or what else the mean is over.
    pub divisor: f64,
}

impl LossSum {
    fn add(&mut self, loss: &ReadLoss<StepNumber>) {
        if loss.divisor > 0.0 {
            self.sum += f64::from(loss.mean) * loss.divisor;
            self.divisor += loss.divisor;
        }
    }

    pub fn mean(self) -> f64 {
        self.sum / self.divisor
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
    whole: Whole,
    /// Of each replica of this process.
    shares: Vec<Data>,
    slots: Vec<Arc<Mutex<Slot>>>,
}

/// A minibatch in all processes.
#[derive(Clone, Copy)]
struct Whole {
    examples: usize,
    /// What it counts in the mean of the step: its examples, or what [`Trainer::mean_over`] says.
    divisor: f64,
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
    /// minibatch does not know by how many examples to divide. There is one target; [`with`](Self::with) takes a loss of
    /// several, or of none.
    pub fn new(
        net: &DataParallel,
        loss: impl Fn(&Value, &Tensor) -> Result<Value> + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Self {
        Self::of(net, Loss::OfOutputs(Box::new(loss)), optimizer)
    }

    /// A trainer whose loss is a function of the network, the inputs and the targets: for several targets or none, for a
    /// network that is run twice in a step, or of which a step uses a part, as those of a GAN do.
    ///
    /// `losses` gets the network, and all inputs and all targets of a shard in the order of
    /// [`Batch::map`](training::Batch::map). It returns the loss of each example, (B,). It calls layers with `train` true.
    /// `N` is the type that the network was built as. If that type has no name, as of a closure or `impl Network`, put the
    /// network into a [`Sequential`](crate::layers::Sequential), and write `|net: &Sequential, x, y| …`.
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
            mean_over: None,
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
            last_divisor: None,
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

    /// Takes the mean of a step over something else than its examples, such as the tokens that are no padding. `count` gets
    /// the inputs and the targets of a minibatch, or of this process's part of it, and returns what they count: a number, or
    /// a tensor, such as a mask or the weights of the examples, whose elements are added. Gradients and losses of a step are
    /// divided by the sum of these counts over its processes and accumulated minibatches. So each token has the same weight,
    /// however tokens are spread.
    ///
    /// The loss of each example is then the *sum* over what is counted, as
    /// [`masked_cross_entropy`](functional::masked_cross_entropy) returns it, and no mean.
    ///
    /// ```
    /// use data_parallel::prelude::*;
    ///
    /// # fn main() -> Result<()> {
    /// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Embedding::new(10, 10, vb))?;
    /// let losses = |net: &Embedding, x: &[Value], y: &[Tensor]| {
    ///     masked_cross_entropy(&net.forward(&x[0], true)?, &y[0], &y[1]) // a sum for each example
    /// };
    /// let mut trainer = Trainer::with(&net, losses, AdamW::default())?.mean_over(|_, y| Ok(y[1].clone()));
    /// let tokens = Tensor::new(&[[1u32, 2, 3], [4, 5, 0]], &Device::Cpu)?;
    /// let next = Tensor::new(&[[2u32, 3, 9], [5, 9, 0]], &Device::Cpu)?;
    /// let mask = Tensor::new(&[[1u8, 1, 1], [1, 1, 0]], &Device::Cpu)?;
    /// let loss = trainer.step(&tokens, &(next, mask))?.loss.mean()?; // the mean over five tokens
    /// # assert!((0.5..5.0).contains(&loss), "{loss}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A step whose counts add up to 0 is an error in all processes, and so is a negative count, NaN or infinity. Counts that
    /// are no whole numbers may have other last bits in several processes than in one. With data on a GPU, each step waits
    /// for its count.
    pub fn mean_over<C: Count>(
        mut self,
        count: impl Fn(&[Tensor], &[Tensor]) -> Result<C> + Send + Sync + 'static,
    ) -> Self {
        self.mean_over = Some(Box::new(move |x, y| count(x, y)?.count()));
        self
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

    /// The mean loss of an example, or of what [`mean_over`](Self::mean_over) counts, before its step, over all minibatches
    /// since the last call; NaN if there was none. A checkpoint has its sum, so it is the same where a run was resumed in
    /// between.
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
        let mean_over = match self.mean_over {
            None => "examples",
            Some(_) => "counts of the program",
        };
        let lines = [
            format!("optimizer {:?}", rule.optimizer),
            format!("accumulate {}", self.accumulate),
            format!("clip-norm {:?}", rule.max_norm),
            format!("rates {rates:?}"),
            format!("mean-over {mean_over}"),
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
    /// step everywhere, divided by the number of examples there are, or as [`mean_over`](Self::mean_over) says.
    ///
    /// `x` and `y` are batches of any form: `step(&x, &(targets, mask))`, `step(&[anchor, positive, negative], &())`.
    /// [`Batch`](training::Batch) says which.
    ///
    /// Gradients are summed while others are still computed, as [`Replication`](crate::Replication)
    /// says.
    ///
    /// # Errors
    /// If `x` and `y` have different numbers of examples, do not fit the network and the loss, or have NaN; if a replica
    /// cannot compute its part; if a sum of gradients, or on one replica a running statistic, is NaN or infinite. Then no
    /// step was taken, nothing was changed, and training can go on with the next minibatch. Gradients that waited for the
    /// step are lost where the message says so.
    ///
    /// If a loss is NaN or infinite, on a GPU or in several processes: the step was taken.
    ///
    /// In several processes, and where the all-reduce fails, the network trains no further after an error of one replica.
    pub fn step<X: Batch, Y: Batch>(&mut self, x: &X, y: &Y) -> Result<Step> {
        let last = self.waiting.minibatches + 1 >= self.accumulate;
        self.minibatch(Data::of_program(x, y), last)
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
    pub fn backward<X: Batch, Y: Batch>(&mut self, x: &X, y: &Y) -> Result<Step> {
        self.minibatch(Data::of_program(x, y), false)
    }

    /// One job of all replicas: [`Replica::train`].
    fn minibatch(&mut self, data: Result<Data>, last: bool) -> Result<Step> {
        let prepared = self.prepare(data, last);
        let Prepared {
            rule,
            whole,
            shares,
            slots,
        } = prepared.map_err(|error| self.unprepared(error))?;
        self.last_divisor = None; // until the step is taken
        let of_step = self.step_number(&rule);
        let divisor = self.waiting.divisor + whole.divisor;
        let minibatch = self.job(rule, last.then_some(divisor));
        let inputs = shares.into_iter().zip(slots).collect();
        let job = minibatch.clone();
        let train = move |replica: &mut Replica, (share, slot): (Data, Arc<Mutex<Slot>>)| {
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
            shards.extend(shard.outputs.zip(shard.labels));
        }
        if let Some(refused) = refused {
            let loss = whole.loss(losses).mean()?;
            return if loss.is_finite() || whole.divisor == 0.0 {
                self.refuse(of_step, &refused)
            } else {
                self.refuse(of_step, &Refusal::loss(loss))
            };
        }
        if last {
            self.step_taken(divisor);
        } else {
            self.set_waiting(Waiting {
                minibatches: self.waiting.minibatches + 1,
                divisor,
            });
        }
        let loss = whole.loss(self.all_losses(losses)?);
        self.count_loss(&loss, of_step)?;
        Ok(Step { loss, shards })
    }

    /// What a step needs before the replicas begin.
    fn prepare(&mut self, data: Result<Data>, last: bool) -> Result<Prepared> {
        self.net.check_statistics()?;
        let rule = self.rule_of_step()?;
        let counted = data.and_then(|data| {
            let count = self.checked_count(&data)?;
            Ok((data, count))
        });
        let (data, whole) = self.whole(counted)?;
        self.check_parts(&data)?;
        let shares = self.net.scatter(&data, whole.examples)?;
        ensure!(
            whole.examples > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        if last && self.waiting.divisor + whole.divisor == 0.0 {
            let says = nothing_counts(self.steps + 1);
            return Err(Kind::Refused.says(says + "; leave out minibatches that count nothing"));
        }
        Ok(Prepared {
            rule,
            whole,
            shares,
            slots: self.slots()?,
        })
    }

    /// In the first step of several processes: an error in all of them, if two have the same minibatch. Then the data was not
    /// cut, and each example would be trained once in each process.
    fn check_parts(&self, data: &Data) -> Result<()> {
        let is_first = self.steps == 0 && self.waiting.minibatches == 0;
        if self.net.processes.are_one() || !is_first {
            return Ok(());
        }
        let all = self.net.processes.gather(&data.fingerprint()?)?;
        if let Some((first, other)) = first_twins(&all) {
            return Err(Kind::Refused.says(format!(
                "processes {first} and {other} train on the same minibatch: net.part(data) makes the part of a process, and \
                 so does Checkpoints::minibatches"
            )));
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
        let (rule, divisor) = (self.rule_of_step()?, self.waiting.divisor);
        if divisor == 0.0 {
            let lost = self.forget_gradients()?;
            return Err(Kind::Refused.says(nothing_counts(self.steps + 1) + &lost));
        }
        let of_step = self.step_number(&rule);
        let job = self.job(rule, Some(divisor));
        let flush = move |replica: &mut Replica, slot: Arc<Mutex<Slot>>| {
            replica.flush(&job, &mut lock(&slot), divisor)
        };
        let slots = self.slots()?;
        let flushed = self.net.on_each(slots, flush);
        let refusals = flushed.map_err(|error| self.failed(error))?;
        let refused = refusals.into_iter().flatten().next();
        if let Some(refused) = refused {
            return self.refuse(of_step, &refused);
        }
        self.step_taken(divisor);
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
    fn job(&self, rule: StepRule, step_with: Option<f64>) -> Arc<Minibatch> {
        Arc::new(Minibatch {
            loss: self.loss.clone(),
            rule,
            trainer: self.number,
            step: self.steps,
            before: self.waiting.minibatches,
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

    fn step_taken(&mut self, divisor: f64) {
        self.steps += 1;
        self.last_divisor = Some(divisor);
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
        self.last_divisor = None;
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
        Ok(self.nothing_waits())
    }

    /// As [`drop_step`](Self::drop_step), where no minibatch was begun: buffers stay as they are.
    fn forget_gradients(&mut self) -> Result<String> {
        let forget = |_: &mut Replica, slot: Arc<Mutex<Slot>>| {
            lock(&slot).gradients.zero();
            Ok(())
        };
        self.net.on_each(self.slots.all.clone(), forget)?;
        Ok(self.nothing_waits())
    }

    /// No gradients wait any more. Returns what an error says of those that did.
    fn nothing_waits(&mut self) -> String {
        let waited = self.waiting.minibatches;
        self.set_waiting(Waiting::default());
        self.last_divisor = None;
        match waited {
            0 => String::new(),
            1 => "; the gradients of 1 minibatch that waited for the step are lost".to_owned(),
            n => format!("; the gradients of {n} minibatches that waited for the step are lost"),
        }
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

    /// What the minibatch of this process counts in the mean of its step.
    ///
    /// # Errors
    /// If it does not fit the loss, or a number is NaN or infinite.
    fn checked_count(&self, data: &Data) -> Result<f64> {
        let targets = data.y.len();
        ensure!(
            targets == 1 || matches!(*self.loss, Loss::OfNetwork(_)),
            "the loss of Trainer::new is of 1 target, the minibatch has {targets}; Trainer::with takes a loss of all of them"
        );
        if self.checks_numbers {
            data.check_finite()?;
        }
        match &self.mean_over {
            None => Ok(data.examples as f64),
            Some(_) if data.examples == 0 => Ok(0.0),
            Some(count) => checked(count, data),
        }
    }

    /// The minibatch in all processes, of which `own` is here, with what it counts. Where one of the processes wants to
    /// stop, all do so after this step.
    ///
    /// # Errors
    /// In all processes, if the minibatch of one is bad.
    fn whole(&self, own: Result<(Data, f64)>) -> Result<(Data, Whole)> {
        let (examples, count) = match &own {
            Ok((data, count)) => (data.examples, *count),
            Err(_) => (0, 0.0),
        };
        let is_set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        let wants_to_stop = self.wants_to_stop.as_ref().is_some_and(is_set);
        let flags = [wants_to_stop, own.is_err()].map(|flag| f64::from(u8::from(flag)));
        let mut sums = [examples as f64, count, flags[0], flags[1]];
        self.net.processes.sum(&mut sums)?;
        let [examples, divisor, wanting_to_stop, bad] = sums;
        if bad > 0.0 {
            return Err(Kind::Refused.of(self.net.processes.why(own.err())?));
        }
        let (data, _) = own?;
        if wanting_to_stop > 0.0 && !self.net.processes.are_one() {
            self.flags.stopping.store(true, Ordering::Relaxed);
        }
        let examples = examples as usize;
        Ok((data, Whole { examples, divisor }))
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
            let has_mean = read.divisor > 0.0;
            if self.checks_numbers && has_mean && !loss.is_finite() {
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

impl Whole {
    /// The loss of the minibatch, from the sums of its shards.
    fn loss(self, sums: Vec<Tensor>) -> BatchLoss {
        BatchLoss::new(sums, self.examples).divided_by(self.divisor)
    }
}

/// What an error says of a step that has no mean.
fn nothing_counts(step: usize) -> String {
    format!(
        "step {step}: the counts of mean_over add up to 0, so there is no mean. No step was taken"
    )
}
