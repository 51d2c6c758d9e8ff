//! A trainer: what it trains, how, and how far it is. How it takes a step is in `step.rs`, its state in `state_dict.rs`.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::{Result, Tensor};
use devices::{Context, ensure};
use functional::{Optimizer, Value};

use super::count::{Count, CountOf};
use super::losses::{LossSum, Losses};
use super::slots::Slots;
use crate::data_parallel::DataParallel;
use crate::replica::Loss;
use crate::update_rule::{UpdateRule, check_optimizer};

/// Trains a replicated network: its [`step`](Trainer::step) is all that a training loop needs.
///
/// A trainer has gradients and an optimizer state of its own. So several trainers can take turns on one network, as the
/// optimizers of a GAN do: [`Trainer::with`].
///
/// ```
/// use data_parallel::prelude::*;
///
/// let devices = devices(2)?;
/// let net = DataParallel::new(&devices, Initializer::Normal(0.1), 0, |vb| {
///     Linear::new(3, 2, vb)
/// })?;
/// let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.5));
/// let x = Tensor::ones((5, 3), DType::F32, &Device::Cpu)?; // three examples and two
/// let y = Tensor::zeros(5, DType::U32, &Device::Cpu)?;
/// let before = trainer.step(&x, &y)?.loss.mean()?;
/// assert!(trainer.step(&x, &y)?.loss.mean()? < before);
/// # data_parallel::Result::Ok(())
/// ```
pub struct Trainer {
    pub(crate) net: DataParallel,
    pub(crate) loss: Arc<Loss>,
    /// What the mean of a step is over, if not over the examples.
    pub(crate) mean_over: Option<Box<CountOf>>,
    pub(crate) rule: UpdateRule,
    /// Of which examples the loss sees the outputs.
    pub(crate) loss_sees: LossSees,
    /// Examples of the largest minibatch of which losses were taken.
    pub(crate) most_examples: usize,
    /// Minibatches of a step.
    pub(crate) accumulate: usize,
    /// True if steps compare the gradients of candle's operations with finite differences.
    pub(crate) checks_gradients: bool,
    /// True if numbers that are not finite are errors.
    pub(crate) checks_numbers: bool,
    pub(crate) losses: Losses,
    /// Lines of the program's own on which the result depends.
    depends_on: Vec<String>,
    /// This process wants to stop.
    pub(crate) wants_to_stop: Option<Arc<AtomicBool>>,
    /// What others see of this trainer.
    pub(crate) flags: Flags,
    /// The steps that were taken.
    pub(crate) steps: usize,
    pub(crate) waiting: Waiting,
    /// The divisor of the sums of the last step; none where its gradients are not there.
    pub(crate) last_divisor: Option<f64>,
    pub(crate) slots: Slots,
    /// Its number among the trainers of the network: each draws numbers of its own.
    pub(crate) number: usize,
}

/// Of which examples a loss sees the outputs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LossSees {
    /// Of those of one replica; the loss of an example must not depend on the others.
    EachExample,
    Shard,
    Minibatch,
}

/// The minibatches whose gradients wait for their step.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waiting {
    pub minibatches: usize,
    /// The sum of what they count in its mean.
    pub divisor: f64,
}

/// What the minibatches of [`Checkpoints`](crate::Checkpoints) see of a trainer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// Training is to end, in all processes.
    pub stopping: Arc<AtomicBool>,
    /// The number of minibatches that wait for their step.
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
    /// If the network was built as another type; the message has both. If a setting of the optimizer cannot be used, of
    /// which the first step of a trainer of [`new`](Self::new) says the same.
    pub fn with<N: 'static>(
        net: &DataParallel,
        losses: impl Fn(&N, &[Value], &[Tensor]) -> Result<Value> + Send + Sync + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Result<Self> {
        let built = net.network_type.name;
        let expected = std::any::type_name::<N>();
        ensure!(
            net.network_type.id == TypeId::of::<N>(),
            "the network was built as {built}, the loss takes a {expected}"
        );
        check_optimizer(&optimizer)?;
        let losses = move |net: &dyn Any, x: &[Value], y: &[Tensor]| match net.downcast_ref() {
            Some(net) => losses(net, x, y),
            None => candle_core::bail!("the network is no {expected}"),
        };
        Ok(Self::of(net, Loss::OfNetwork(Box::new(losses)), optimizer))
    }

    fn of(net: &DataParallel, loss: Loss, optimizer: impl Optimizer + 'static) -> Self {
        net.statistics.trainer_is_new();
        Self {
            net: net.clone(),
            loss: Arc::new(loss),
            mean_over: None,
            rule: UpdateRule::new(optimizer, net.states[0].parameters().count()),
            loss_sees: LossSees::EachExample,
            most_examples: 0,
            accumulate: 1,
            checks_gradients: true,
            checks_numbers: true,
            losses: Losses::default(),
            depends_on: Vec::new(),
            wants_to_stop: None,
            flags: Flags::default(),
            steps: 0,
            waiting: Waiting::default(),
            last_divisor: None,
            slots: Slots::default(),
            number: net.trainers.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Gives the loss the outputs and the targets of the whole minibatch, of all replicas and processes: for a loss that
    /// compares examples with each other, such as a contrastive one. It returns the loss of each of them, (B,). In PyTorch:
    /// `DataParallel`, which gathers the outputs before the loss.
    ///
    /// The loss of [`new`](Self::new) gets all outputs. That of [`with`](Self::with) gets the inputs of one replica and the
    /// targets of all, and gathers with [`all_examples`](crate::all_examples):
    ///
    /// ```
    /// use data_parallel::prelude::*;
    ///
    /// struct Towers {
    ///     image: Linear,
    ///     text: Linear,
    /// }
    ///
    /// impl Network for Towers {
    ///     fn forward(&self, image: &Value, train: bool) -> Result<Value> {
    ///         self.image.forward(image, train) // in inference
    ///     }
    /// }
    ///
    /// /// Each image is to be more similar to its own text than to the other texts of the minibatch.
    /// fn contrast(net: &Towers, x: &[Value], _: &[Tensor]) -> Result<Value> {
    ///     let image = all_examples(&net.image.forward(&x[0], true)?)?;
    ///     let text = all_examples(&net.text.forward(&x[1], true)?)?;
    ///     let similar = candle_fn(|x: &[Tensor]| x[0].matmul(&x[1].t()?)); // (B, B)
    ///     let own = Tensor::arange(0u32, image.dims()[0] as u32, image.device())?;
    ///     cross_entropy(&similar.forward_all(&[image, text], true)?, &own)
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let pairs = (Tensor::rand(-1f32, 1.0, (8, 3), &Device::Cpu)?, Tensor::rand(-1f32, 1.0, (8, 4), &Device::Cpu)?);
    /// let mut losses = Vec::new();
    /// for k in [1, 4] {
    ///     let net = DataParallel::new(&devices(k)?, Initializer::Layers, 0, |vb| {
    ///         Ok(Towers { image: Linear::new(3, 5, vb.pp("image"))?, text: Linear::new(4, 5, vb.pp("text"))? })
    ///     })?;
    ///     let mut trainer = Trainer::with(&net, contrast, Sgd::new(0.1))?.over_minibatch();
    ///     losses.push(trainer.step(&pairs, &())?.loss.mean()?);
    /// }
    /// assert!((losses[0] - losses[1]).abs() < 1e-5, "{losses:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Each replica computes the losses of all examples. It waits for the others where it gathers, in forward and in
    /// backward, and what is gathered goes through the host's memory. `predict` and `forward` gather nothing: there the
    /// network gets the examples of one replica. Replicas without an example run the network as well, which candle's own
    /// operations may refuse. All replicas have to gather in the same calls.
    pub fn over_minibatch(self) -> Self {
        Self {
            loss_sees: LossSees::Minibatch,
            ..self
        }
    }

    /// Allows a loss in which examples depend on each other within the part of the minibatch that a replica has. Then the
    /// result depends on the number of replicas, as that of PyTorch's `DistributedDataParallel` does. Without this, such a
    /// loss of several replicas is an error of the first step, of the steps 2, 4, 8 and so on, or of one with more examples
    /// than before: there the losses are compared.
    /// [`over_minibatch`](Self::over_minibatch) takes the whole minibatch.
    pub fn within_shards(self) -> Self {
        Self {
            loss_sees: LossSees::Shard,
            ..self
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
    /// A step whose counts add up to 0 is an error in all processes, and so is a negative count, NaN or infinity. With
    /// [`accumulate`](Self::accumulate), single minibatches may count 0. Their `loss.mean()` is NaN. Counts that
    /// are no whole numbers may have other last bits in several processes than in one. With data on a GPU, each step waits
    /// for its count.
    pub fn mean_over<C: Count>(
        mut self,
        count: impl Fn(&[Tensor], &[Tensor]) -> Result<C> + Send + Sync + 'static,
    ) -> Self {
        self.mean_over = Some(Box::new(move |x, y| count(x, y)?.count()));
        self
    }

    /// Adds lines to [`settings`](Self::settings): on what else the result depends, such as a checksum of the data. A
    /// checkpoint of a run with other lines is refused, and so are processes that train together with other lines. The
    /// first word of a line is its name.
    pub fn depends_on(mut self, lines: &str) -> Self {
        self.depends_on.extend(lines.lines().map(str::to_owned));
        self
    }

    /// Turns the check of gradients on or off. With it the first step, and each later one in which something is new,
    /// compares the gradient of each [`functional::candle`] in the network and in the loss with finite differences, as
    /// [`functional::GradientChecks`] does. A wrong gradient is an error, except of a frozen parameter. Default: on.
    ///
    /// The check calls each module some 25 times for each shape. A module that counts its calls, or draws from a generator of
    /// its own, counts and draws for the check too.
    ///
    /// Two other checks stay on. In the first step a second network gets the same parameters and computes outputs. And on
    /// several replicas the losses of single examples are computed, some five forward passes, in the steps that
    /// [`within_shards`](Self::within_shards) names.
    pub fn check_gradients(self, checks: bool) -> Self {
        Self {
            checks_gradients: checks,
            ..self
        }
    }

    /// Turns the check of numbers on or off: with it NaN and infinity are errors. Default: on.
    ///
    /// On the CPU they are one in `x` and `y`, in the loss, in the sums of the gradients, and in running statistics: the
    /// step is not taken. If a parameter has become one, the error is [`Error::Diverged`](crate::Error::Diverged): the
    /// parameters are looked at where a step is refused. On a GPU they are one in a loss, up to 256 steps after its step, so
    /// that the host does not wait for the GPU in every step.
    pub fn check_numbers(self, checks: bool) -> Self {
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
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(1)?, Initializer::Layers, 0, |vb| {
    /// #     Linear::new(3, 2, vb.pp("last"))
    /// # })?;
    /// let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
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
        let names: Vec<&str> = self.net.states[0].named().map(|(name, _)| name).collect();
        let before = self.rule.trained();
        self.rule.set_rate(&names, of, rate)?;
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

    /// The number of steps that this trainer has taken, also before its state was loaded.
    ///
    /// ```no_run
    /// # use data_parallel::Trainer;
    /// # fn next() -> data_parallel::Result<(data_parallel::candle_core::Tensor, data_parallel::candle_core::Tensor)> { unreachable!() }
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

    /// True if no minibatch waits for the step: then a checkpoint is whole.
    pub fn is_between_steps(&self) -> bool {
        self.waiting.minibatches == 0
    }

    /// The gradients of the last step by the names of the parameters, in their shapes: means over the examples, or over what
    /// [`mean_over`](Self::mean_over) counts. Frozen
    /// parameters have none. There are none either while minibatches wait for the step: each replica has its own part of
    /// the sum.
    ///
    /// # Errors
    /// If the trainer has taken no step since it was made, since its state was loaded, or since a step was not taken; and
    /// if a device fails.
    pub fn gradients(&self) -> Result<Vec<(String, Tensor)>> {
        if !self.is_between_steps() {
            return Ok(Vec::new());
        }
        let divisor = self.last_divisor.context(
            "there are no gradients: this trainer has taken no step, or not since its state was loaded or a step failed",
        )?;
        let sums = self.slots.sums(&self.net)?.into_iter();
        sums.map(|(name, sum)| Ok((name, (sum / divisor)?)))
            .collect()
    }

    /// The mean loss of an example, or of what [`mean_over`](Self::mean_over) counts, before its step, over all minibatches
    /// since the last call; NaN if there was none. A checkpoint has its sum, so it is the same where a run was resumed in
    /// between.
    ///
    /// # Errors
    /// If a device fails; and as [`step`](Self::step), if a loss is NaN or infinite that was not read before.
    pub fn mean_loss(&mut self) -> Result<f64> {
        self.losses.read(self.checks_numbers)?;
        Ok(std::mem::take(&mut self.losses.since_mean).mean())
    }

    /// The losses since the last call, for [`Checkpoints`](crate::Checkpoints).
    pub(crate) fn take_epoch_losses(&mut self) -> Result<LossSum> {
        self.losses.read(self.checks_numbers)?;
        Ok(std::mem::take(&mut self.losses.of_epoch))
    }

    /// What the result of its steps depends on beside the network, a line each, as far as the library knows it: the code
    /// of a loss is not known.
    pub fn settings(&self) -> String {
        let rule = &self.rule;
        let names = self.net.states[0].named().map(|(name, _)| name);
        let rates = names.zip(&rule.rates).filter(|(_, rate)| **rate != 1.0);
        let rates: Vec<String> = rates.map(|(name, rate)| format!("{name} {rate}")).collect();
        let changing = [
            format!("accumulate {}", self.accumulate),
            format!("clip-norm {:?}", rule.max_norm),
            format!("rates {rates:?}"),
        ];
        [changing.join("\n"), self.fixed_settings()].join("\n")
    }

    /// Those of the [`settings`](Self::settings) that may not change during a run, because no checkpoint can bring them
    /// back.
    pub(crate) fn fixed_settings(&self) -> String {
        let mean_over = match self.mean_over {
            None => "examples",
            Some(_) => "counts of the program",
        };
        let own = [
            format!("optimizer {:?}", self.rule.optimizer),
            format!("mean-over {mean_over}"),
        ];
        let loss_sees = match self.loss_sees {
            LossSees::EachExample => None,
            LossSees::Shard => Some("loss-sees shards".to_owned()),
            LossSees::Minibatch => Some("loss-sees the whole minibatch".to_owned()),
        };
        let own = own.into_iter().chain(loss_sees);
        let all: Vec<String> = own.chain(self.depends_on.iter().cloned()).collect();
        all.join("\n")
    }

    /// Sets the learning rate of the steps that follow, which [`state_dict`](Self::state_dict) has too. The optimizer state
    /// stays.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.1), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// # let (x, y) = (Tensor::ones((4, 3), DType::F32, &Device::Cpu)?, Tensor::zeros(4, DType::U32, &Device::Cpu)?);
    /// let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    /// for step in 0..100 {
    ///     trainer.set_lr(0.1 * (1.0 - f64::from(step) / 100.0)); // falls to 0
    ///     trainer.step(&x, &y)?;
    /// }
    /// # data_parallel::Result::Ok(())
    /// ```
    pub fn set_lr(&mut self, lr: f64) {
        self.rule.lr = Some(lr);
    }

    pub(crate) fn set_waiting(&mut self, waiting: Waiting) {
        self.flags
            .waiting
            .store(waiting.minibatches, Ordering::Relaxed);
        self.waiting = waiting;
    }

    /// Replaces the slots, and what is known of the gradients in them.
    pub(crate) fn set_slots(&mut self, slots: Slots, steps: usize) {
        self.slots = slots;
        self.steps = steps;
        self.set_waiting(Waiting::default());
        self.last_divisor = None;
        self.losses = Losses::default();
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
}
