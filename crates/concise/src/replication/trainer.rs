//! One synchronized step of all replicas.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use functional::{Optimizer, Value};
use run::{BatchLoss, Unread};

use super::data_parallel::DataParallel;
use super::descent::Descent;
use super::replica::{Replica, Turn};
use super::split::Split;

/// A loss of each example.
pub(crate) type Loss = dyn Fn(&Value, &Tensor) -> candle_core::Result<Value> + Send + Sync;

/// Trains a replicated network: its [`step`](Trainer::step) is all that a training loop needs.
///
/// One network may have several trainers, one after the other: each begins without momentum where another
/// one has taken a step.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use concise::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
///
/// let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(2))?;
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
    pub(crate) descent: Descent,
    /// Minibatches of a step.
    accumulate: usize,
    /// Whether the next step compares the gradients of candle's operations with finite differences.
    checks: bool,
    /// The losses that are not yet known to be finite; nothing where others look.
    unread: Option<Unread>,
    pub(crate) waiting: Waiting,
    /// Examples that the gradients are of.
    pub(crate) examples: usize,
    /// Where the split is measured, until it is.
    pub(crate) measuring: Option<Measuring>,
    /// What came of it, until it is asked for.
    measured: Option<Vec<f64>>,
    /// Its number among the trainers of the network, from 1: tells its steps from theirs.
    pub(crate) id: usize,
}

/// The minibatches with gradients that wait for the step.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Waiting {
    pub minibatches: usize,
    pub examples: usize,
}

/// What a step leaves.
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
            descent: Descent::new(optimizer, &net.states[0]),
            accumulate: 1,
            checks: true,
            unread: Some(Unread::default()),
            waiting: Waiting::default(),
            examples: 0,
            measuring: (net.how.split == Split::Measured)
                .then(|| Measuring::new(net.devices().len())),
            measured: None,
            id: net.next_trainer(),
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

    /// Whether the first step compares the gradient of each [`functional::candle`] in the network with a finite
    /// difference, as [`functional::check_gradients`] does; an error where one is wrong. It does, until said otherwise.
    pub fn check_gradients(self, checks: bool) -> Self {
        Self { checks, ..self }
    }

    /// Whether a loss that is NaN or infinite is an error of the step: on the CPU at once, on a GPU up to 256 steps
    /// later, so that the host does not wait for the GPU in every step. It is, until said otherwise.
    pub fn check_losses(self, checks: bool) -> Self {
        let unread = checks.then(Unread::default);
        Self { unread, ..self }
    }

    /// One step on the minibatch `x` (B, …), `y` (B,): splits it over the devices, computes
    /// the loss and its gradient on all of them at once, sums the gradients, and takes the same
    /// step everywhere, divided by the number of examples there are.
    ///
    /// Gradients are summed while others are still computed, as [`Replication`](crate::Replication)
    /// says.
    ///
    /// # Errors
    /// If `x` and `y` do not fit the network and the loss: nothing was changed, and training can go on with the next
    /// minibatch. If a replica fails later; the message names it, and the network trains no further. If a loss is NaN
    /// or infinite: the step was taken. And if another trainer of the network came while gradients waited here: they
    /// are lost, and the next step begins anew.
    pub fn step(&mut self, x: &Tensor, y: &Tensor) -> Result<Step> {
        self.check_waiting()?;
        let descent = self.descent.next()?;
        let lr = descent.lr;
        let shards = self.net.scatter(x, y)?;
        let batch_size = self.batch_size(y.dim(0)?)?;
        ensure!(
            batch_size > 0,
            "a step needs at least 1 example, the minibatch has 0"
        );
        let turn = Turn {
            step: self.descent.steps,
            minibatch: self.waiting.minibatches,
            checks: self.checks,
        };
        let ys = self.write(shards, turn)?;
        self.waiting.minibatches += 1;
        self.waiting.examples += batch_size;
        self.examples = self.waiting.examples;
        let last = self.waiting.minibatches >= self.accumulate;
        let (id, examples) = (self.id, self.examples);
        let measures = self.measuring.is_some();
        let done = self.net.on_each(ys, move |replica, y| {
            replica.begin(id);
            let (outputs, speed) =
                computed(replica, measures, &y, |replica| backward(replica, &y, last))?;
            if last {
                replica.step(&descent, examples)?;
            }
            Ok((outputs.map(|(l, y_hat)| (l, (y_hat, y))), speed))
        })?;
        self.checks = false;
        if last {
            self.waiting = Waiting::default();
            self.descent.steps += 1;
        }
        let (outputs, speeds): (Vec<_>, Vec<f64>) = done.into_iter().unzip();
        self.measure(speeds);
        let (ls, shards): (Vec<Tensor>, Vec<_>) = outputs.into_iter().flatten().unzip();
        let loss = BatchLoss::new(self.all_losses(ls)?, batch_size);
        self.check_finite(&loss, lr)?;
        Ok(Step { loss, shards })
    }

    /// The first half of a step: adds the gradients of a minibatch to those that wait. [`flush`](Self::flush) is the
    /// other half, which sums them over the replicas and takes the step with all of them.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use concise::{DataParallel, Initializer, Sgd, Trainer, layers::Linear};
    /// # let net = DataParallel::new(&d2l::devices(2)?, Initializer::Normal(0.1), 0, |vb| {
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
        let accumulate = std::mem::replace(&mut self.accumulate, usize::MAX);
        let step = self.step(x, y);
        self.accumulate = accumulate;
        step
    }

    /// Writes network and loss down on all replicas, and returns the labels of the shards. Nothing is computed before
    /// that has succeeded on all of them: so training can go on after a minibatch that does not fit. In several
    /// processes it cannot, because the others do not wait for this one.
    fn write(&self, shards: Vec<(Tensor, Tensor)>, turn: Turn) -> Result<Vec<Tensor>> {
        let (loss, id, alone) = (self.loss.clone(), self.id, self.net.processes.are_one());
        self.net.on_each(shards, move |replica, (x, y)| {
            if !alone {
                replica.begin(id);
            }
            replica.write(&*loss, (&x, &y), turn)?;
            Ok(y)
        })
    }

    /// The examples of the minibatch in all processes, of which `own` are here. Where one of the processes
    /// was asked to end, all do so after this step.
    fn batch_size(&self, own: usize) -> Result<usize> {
        if self.net.processes.are_one() {
            return Ok(own); // no other process trains this network, so none has to agree on the end
        }
        let mut counts = [own as f64, f64::from(u8::from(run::wants_to_end()))];
        self.net.processes.sum(&mut counts)?;
        if counts[1] > 0.0 {
            run::interrupt();
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
        let steps = self.descent.steps;
        for (_, loss) in unread.read()? {
            ensure!(
                loss.is_finite(),
                "after {steps} steps, at learning rate {lr:?}, the loss is {loss}; try a smaller \
                 rate, or clip_norm"
            );
        }
        Ok(())
    }

    /// The split as it was measured, once.
    pub(crate) fn measured(&mut self) -> Option<Vec<f64>> {
        self.measured.take()
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

    /// Splits what comes in proportion to the examples a second of each replica, once that is known.
    fn measure(&mut self, speeds: Vec<f64>) {
        let Some(measuring) = &mut self.measuring else {
            return;
        };
        if let Some(weights) = measuring.add(speeds) {
            self.net.set_split(weights);
            self.measuring = None;
            self.measured = Some(self.net.split());
        }
    }

    /// Takes the step with what has been accumulated, if there is something: at the end of an epoch,
    /// where fewer minibatches are left.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn flush(&mut self) -> Result<()> {
        self.check_waiting()?;
        let Waiting {
            minibatches,
            examples,
        } = std::mem::take(&mut self.waiting);
        if minibatches == 0 {
            return Ok(());
        }
        let (descent, id) = (self.descent.next()?, self.id);
        let all = vec![(); self.net.devices().len()];
        self.net.on_each(all, move |replica, ()| {
            replica.begin(id);
            replica.reduce()?;
            replica.step(&descent, examples)
        })?;
        self.descent.steps += 1;
        Ok(())
    }

    /// An error, unless the gradients that wait for the step are still there. Those that were lost wait no longer.
    fn check_waiting(&mut self) -> Result<()> {
        let (id, waiting, group) = (self.id, self.waiting.minibatches, self.accumulate);
        let still_there = move |replica: &mut Replica| Ok(replica.belongs_to(id));
        if waiting == 0 || self.net.on_first(still_there)? {
            return Ok(());
        }
        self.waiting = Waiting::default();
        bail!(
            "the gradients of {waiting} of {group} minibatches are lost, because another trainer \
             used the network before their step; call flush() first"
        )
    }
}

/// What `f` computes on the replica's cores, and the examples a second that it had if `measures`.
fn computed<T>(
    replica: &mut Replica,
    measures: bool,
    y: &Tensor,
    f: impl FnOnce(&mut Replica) -> Result<T>,
) -> Result<(T, f64)> {
    replica.compute(|replica| {
        let start = Instant::now();
        let computed = f(replica)?;
        if measures {
            y.device().synchronize()?;
        }
        // one without an example is at least as fast as with one
        let examples = y.dim(0)?.max(1) as f64;
        let took = replica.writing + start.elapsed();
        Ok((computed, examples / took.as_secs_f64()))
    })
}

/// The sum of the shard's losses and its outputs; the gradient stays in the replica. With `last` the
/// replicas begin to sum it.
fn backward(replica: &mut Replica, y: &Tensor, last: bool) -> Result<Option<(Tensor, Tensor)>> {
    let Some((l, y_hat)) = replica.written.take() else {
        if last {
            replica.reduce()?;
        }
        return Ok(None);
    };
    let backward = replica.backward(&l, &y_hat, last);
    let l = match y.dim(0)? {
        0 => backward.context(NO_EXAMPLE)?,
        _ => backward?,
    };
    Ok(Some((l, y_hat.eval()?)))
}

/// candle's operations forget on what a tensor without elements depends.
const NO_EXAMPLE: &str = "this replica got no example of the minibatch; with --sync-bn, a network \
    with candle's own operations needs at least 1 on each replica";

/// The speeds of the replicas in the first steps.
pub(crate) struct Measuring(Vec<Vec<f64>>);

/// The first of them warms up.
const MEASURED_STEPS: usize = 6;

impl Measuring {
    fn new(replicas: usize) -> Self {
        Self(vec![Vec::new(); replicas])
    }

    /// The median of each replica's, once there are enough of them.
    fn add(&mut self, speeds: Vec<f64>) -> Option<Vec<f64>> {
        for (all, speed) in self.0.iter_mut().zip(speeds) {
            all.push(speed);
        }
        let median = |speeds: &Vec<f64>| {
            let mut speeds = speeds.get(1..MEASURED_STEPS)?.to_vec();
            speeds.sort_by(f64::total_cmp);
            Some(speeds[speeds.len() / 2])
        };
        self.0.iter().map(median).collect()
    }
}
