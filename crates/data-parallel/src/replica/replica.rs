//! One replica of a network, and a step as it takes it (steps 0 and 3 of the chapter `seven-diffs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use candle_core::{Error, Result, Tensor};
use collective::Member;
use devices::{Context, bail, ensure, or_panic};
use functional::{BackwardOptions, Value, each_example_alone, not_finite_sum};

use super::connections::{Connections, GradientSums, Memberships};
use super::cores::Cores;
use super::examples::{
    Gathering, LossOver, all_examples, check_each_alone, check_losses, own_losses,
};
use super::job::{ShardResult, StepJob, Trained};
use super::loss::{AnyNetwork, Loss, outputs_of, values};
use super::pass_sums::OutputSums;
use super::refusal::Refusal;
use super::shared_buffers::{check_buffers, share_buffers};
use super::slot::{Slot, Untrained};
use super::twin::{Built, Twin};
use crate::batch_tensors::BatchTensors;
use crate::layers::DropoutPass;
use crate::network_state::NetworkState;
use crate::replication::Replication;

/// The network on one device, as its thread sees it.
pub(crate) struct Replica {
    net: Box<dyn AnyNetwork>,
    twin: Twin,
    /// True after the first outputs in inference.
    has_inferred: bool,
    pub state: NetworkState,
    /// None after an error in a step.
    connections: Option<Connections>,
    how: Replication,
    /// The seed of random numbers in training.
    seed: u64,
    /// Its number among the replicas of all processes.
    rank: usize,
    shared: Shared,
    /// True if other replicas wait for this one. If it fails then, it leaves them.
    pub in_step: bool,
}

/// What the replicas of a process have in common.
#[derive(Clone)]
pub(crate) struct Shared {
    pub cores: Arc<Cores>,
    /// True if no other process has replicas of this network.
    pub one_process: bool,
}

/// A minibatch that is written down and not yet computed.
struct Written {
    /// The sum of the losses.
    loss: Value,
    outputs: Option<Value>,
}

impl Replica {
    pub fn new(
        name: &str,
        built: Built,
        seed: u64,
        memberships: Memberships,
        how: &Replication,
        shared: Shared,
    ) -> Result<Self> {
        let rank = memberships.gradients.rank();
        let Built { net, state, twin } = built;
        let connections = Connections::new(name, memberships, how, &state.device(), &shared.cores)?;
        Ok(Self {
            net,
            twin,
            has_inferred: false,
            state,
            connections: Some(connections),
            how: how.clone(),
            seed,
            rank,
            shared,
            in_step: false,
        })
    }

    /// Trains on a part of a minibatch: writes the computation down, agrees with the other replicas that all could,
    /// computes, sums the gradients of all replicas while it computes them, and takes the step. A replica without an
    /// example only sums.
    ///
    /// # Errors
    /// If the minibatch does not fit: nothing was changed. In several processes the other processes wait, so training
    /// cannot go on. If this replica cannot compute it: in one process no replica has taken the step then, and
    /// [`drop_step`](Self::drop_step) sets back what was changed.
    pub fn train(
        &mut self,
        job: &StepJob,
        share: &BatchTensors,
        slot: &mut Slot,
    ) -> Result<Trained> {
        self.in_step = true;
        let examples = share.examples;
        // a network may set its buffers also where it is written down
        slot.keep_buffers(&self.state)?;
        let untrained = slot.untrained_to_check()?;
        let written = self.compute(|replica| replica.write(job, share, slot));
        // outside of the replica's turn on the cores: the others may need them to come here
        let connections = self.connections.as_mut().context(FAILED)?;
        let all_could = connections.all_agree(written.is_ok())?;
        if !all_could {
            self.in_step = !self.shared.one_process;
            slot.set_back_buffers(&self.state)?;
        }
        let written = explained(written, examples)?;
        if !all_could {
            return Ok(Trained::default());
        }
        slot.examples += examples;
        let mut handed_in = 0;
        let result = match &written {
            None => Ok(None),
            Some(written) => {
                let all = self.compute(|replica| {
                    replica.backward(written, job, slot, untrained.as_ref(), &mut handed_in)
                });
                all.map(Some)
            }
        };
        let computed = match explained(result, examples) {
            Ok(computed) => computed,
            Err(error) if self.shared.one_process && handed_in < slot.gradients.layout().len() => {
                self.give_up(job, slot, handed_in)?;
                self.in_step = false;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let refused = match job.step_with {
            None => None,
            Some(divisor) => {
                if computed.is_none() {
                    self.connections()?.hand_in(slot, 0)?;
                }
                self.update(job, slot, divisor)?
            }
        };
        let shard = computed.map(|(loss, outputs)| ShardResult {
            loss,
            outputs,
            labels: share.y.first().cloned(),
        });
        Ok(Trained { shard, refused })
    }

    /// Sums the gradients that wait, and takes the step with them. Returns why the step was refused, if it was.
    pub fn flush(
        &mut self,
        job: &StepJob,
        slot: &mut Slot,
        divisor: f64,
    ) -> Result<Option<Refusal>> {
        self.in_step = true;
        slot.keep_buffers(&self.state)?;
        self.connections()?.hand_in(slot, 0)?;
        self.update(job, slot, divisor)
    }

    /// Forgets the gradients of the step, and sets the buffers back to what they were before its last minibatch. The
    /// replicas sum with new memberships from then on.
    pub fn drop_step(&mut self, slot: &mut Slot, member: Option<Member>) -> Result<()> {
        self.connections()?.join_pass(member);
        slot.examples = 0;
        slot.gradients.zero();
        slot.set_back_buffers(&self.state)
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free. A panic becomes an error.
    fn compute<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let cores = self.shared.cores.clone();
        cores.compute(|| or_panic(|| f(self)))
    }

    /// Writes the sum of the losses and the outputs down: here shapes are checked. None without an example, unless the
    /// norms of all replicas are synchronized.
    fn write(
        &self,
        job: &StepJob,
        share: &BatchTensors,
        slot: &mut Slot,
    ) -> Result<Option<Written>> {
        let examples = share.examples;
        let of_others = matches!(job.loss_over, LossOver::Minibatch(_));
        if examples == 0 && self.connections()?.norms().is_none() && !of_others {
            return Ok(None);
        }
        let pass = DropoutPass {
            seed: self.seed,
            replica: self.rank,
            trainer: job.trainer,
            step: job.step,
            minibatch: job.minibatches_before,
        };
        let (losses, outputs) = pass.run(|| {
            if job.checks_gradients {
                slot.checks.run(examples, || self.losses(job, share))
            } else {
                self.losses(job, share)
            }
        })?;
        if let Some(outputs) = &outputs
            && examples > 0
        {
            let own = || self.state.restore_buffers_after(|| outputs.eval());
            let of_twin = |net: &dyn AnyNetwork| {
                pass.run(|| net.forward_all(&values(&share.x)?, true)?.eval())
            };
            self.twin.check(&*self.net, &self.state, own, of_twin)?;
        }
        let losses = match &job.loss_over {
            LossOver::Shard { checked } => {
                check_losses(&losses, examples)?;
                if *checked && examples > 0 {
                    let again =
                        |share: &BatchTensors| pass.run(|| self.losses(job, share)?.0.eval());
                    let checked = || check_each_alone(share, again);
                    self.state
                        .restore_buffers_after(|| each_example_alone(checked))?;
                }
                losses
            }
            LossOver::Minibatch(whole) => {
                check_losses(&losses, whole.examples)?;
                own_losses(&losses, whole.rows(self.rank))?
            }
        };
        let loss = losses.sum()?;
        Ok(Some(Written { loss, outputs }))
    }

    /// The losses of all examples, and the outputs if the loss is a function of them.
    fn losses(&self, job: &StepJob, share: &BatchTensors) -> Result<(Value, Option<Value>)> {
        let LossOver::Minibatch(whole) = &job.loss_over else {
            return self.losses_of(job, &share.x, &share.y);
        };
        let gathering = Gathering {
            rows: whole.rows(self.rank),
            examples: whole.examples,
            sums: Arc::new(OutputSums(self.connections()?.pass_sums.clone())),
        };
        let device = self.state.device();
        let targets = whole.y.iter().map(|y| devices::to_device(y, &device));
        let y = targets.collect::<Result<Vec<Tensor>>>()?;
        gathering.run(|| self.losses_of(job, &share.x, &y))
    }

    fn losses_of(
        &self,
        job: &StepJob,
        x: &[Tensor],
        y: &[Tensor],
    ) -> Result<(Value, Option<Value>)> {
        let x = values(x)?;
        match &*job.loss {
            Loss::OfOutputs(loss) => {
                let y_hat = self.net.forward_all(&x, true)?;
                let losses = match &job.loss_over {
                    LossOver::Shard { .. } => loss(&y_hat, &y[0])?,
                    LossOver::Minibatch(_) => loss(&all_examples(&y_hat)?, &y[0])?,
                };
                Ok((losses, Some(y_hat)))
            }
            Loss::OfNetwork(loss) => {
                let losses = loss(self.net.as_any(), &x, y)?;
                Ok((losses, None))
            }
        }
    }

    /// Computes the loss and the outputs, and adds the gradients of the loss to those that wait. In the last minibatch of
    /// a step it begins to sum the gradients of all replicas, each bucket as soon as it is complete. `handed_in` counts
    /// the buckets; behind the last one nothing can fail any more.
    fn backward(
        &self,
        written: &Written,
        job: &StepJob,
        slot: &mut Slot,
        untrained: Option<&Untrained>,
        handed_in: &mut usize,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let connections = self.connections()?;
        let is_last = job.step_with.is_some();
        let mut bad_loss = None;
        let mut forward_done = |loss: Option<f32>| {
            if let Some(untrained) = untrained {
                untrained.check()?;
            }
            if !job.checks_numbers {
                return Ok(());
            }
            // in several processes the others would wait; there the sums show it
            bad_loss = loss.filter(|loss| !loss.is_finite() && self.shared.one_process);
            match bad_loss {
                Some(loss) => candle_core::bail!("the loss is {loss}"),
                None => check_buffers(&self.state),
            }
        };
        let mut ready = |bucket| {
            connections.check_norms_are_used()?;
            *handed_in += 1;
            connections.hand_in_bucket(bucket)
        };
        let outputs: Vec<&Value> = written.outputs.iter().collect();
        let how = BackwardOptions {
            norms: connections.norms(),
            outputs: &outputs,
            forward_done: Some(&mut forward_done),
            ready: (is_last && self.how.overlap).then_some(&mut ready),
        };
        let loss = slot.gradients.backward_with(&written.loss, how);
        if let Some(loss) = bad_loss {
            return Err(Refusal::loss(loss).into());
        }
        let loss = loss?;
        slot.minibatches += 1;
        connections.check_norms_are_used()?;
        let outputs = written.outputs.as_ref().map(Value::eval).transpose()?;
        if is_last && self.how.overlap {
            connections.hand_in_used(slot)?;
        } else if is_last {
            connections.hand_in(slot, 0)?;
        } else if job.checks_numbers
            && self.shared.one_process
            && let Some((part, value)) = slot.gradients.not_finite()
        {
            // before the gradients of other minibatches are added
            return Err(Refusal::gradient(slot.name(part.parameter), value).into());
        }
        Ok((loss, outputs))
    }

    /// Tells all replicas to drop the step. Where they sum gradients, this one hands in zeros in place of the buckets that
    /// it has not yet handed in, and waits for the sums as the others do.
    fn give_up(&self, job: &StepJob, slot: &mut Slot, handed_in: usize) -> Result<()> {
        job.dropped.store(true, Ordering::SeqCst);
        let connections = self.connections()?;
        connections.leave_pass();
        slot.renew_gradients()?;
        if job.step_with.is_none() {
            return Ok(());
        }
        connections.hand_in(slot, handed_in)?;
        connections.sums(slot)?;
        slot.renew_gradients()
    }

    /// Waits for all sums, and takes the optimizer's step with them, divided by `divisor`: as a whole or not at all. It is
    /// not taken where a replica has dropped it, or if the sums forbid it; then this returns why.
    fn update(&mut self, job: &StepJob, slot: &mut Slot, divisor: f64) -> Result<Option<Refusal>> {
        let GradientSums {
            buckets,
            are_finite,
            used,
        } = self.connections()?.sums(slot)?;
        let dropped = job.dropped.load(Ordering::SeqCst);
        let refused = self.compute(|replica| {
            let _span = tracing::info_span!("update").entered();
            if dropped {
                return Ok(None);
            }
            if job.checks_numbers
                && !are_finite
                && let Some((part, value)) = not_finite_sum(&buckets)
            {
                let name = slot.name(part.parameter);
                return Ok(Some(Refusal::gradient(name, value)));
            }
            if used.iter().all(|used| !used) {
                return Ok(Some(Refusal::nothing_is_used()));
            }
            let stepped = slot.step(&job.rule, &used, &buckets, divisor);
            stepped
                .context("the optimizer failed, so replicas may differ; build the network anew")?;
            let sums = &replica.connections()?.pass_sums;
            share_buffers(&replica.state, replica.rank, slot.examples, sums)?;
            Ok(None)
        })?;
        slot.examples = 0;
        for bucket in buckets {
            slot.gradients.put_back(bucket)?;
        }
        slot.gradients.zero();
        Ok(refused)
    }

    /// The network's output in inference, with a first dimension for the examples.
    pub fn infer_rows(&mut self, shard: &BatchTensors) -> Result<Tensor> {
        let y_hat = self.infer(&shard.x)?;
        let dims = y_hat.dims();
        let examples = shard.examples;
        ensure!(
            dims.first() == Some(&examples),
            "the outputs have shape {dims:?}, expected a first dimension of {examples}, the examples"
        );
        Ok(y_hat)
    }

    /// The network's output in inference.
    pub fn infer(&mut self, x: &[Tensor]) -> Result<Tensor> {
        self.compute(|replica| {
            let net = &*replica.net;
            let first = || replica.state.keep_buffers();
            let before = (!replica.has_inferred).then(first).transpose()?;
            let y_hat = outputs_of(net, x)?;
            if let Some(before) = before
                && let Some(name) = before.moved_statistic()
            {
                before.restore()?;
                bail!(
                    "the network moves {name} in inference: a closure does not know whether it trains; give `candle` a \
                     ModuleT, which calls the norm with `train`"
                )
            }
            let outputs = |net: &dyn AnyNetwork| outputs_of(net, x);
            replica.twin.check(net, &replica.state, || Ok(y_hat.clone()), outputs)?;
            replica.has_inferred = true;
            Ok(y_hat)
        })
    }

    fn connections(&self) -> Result<&Connections> {
        self.connections.as_ref().context(FAILED)
    }

    /// The reason behind an error of this replica: an error of the sums, if one has failed.
    pub fn cause(&self, error: Error) -> Error {
        let of_peers = self.connections.as_ref().and_then(Connections::failure);
        of_peers.unwrap_or(error)
    }

    /// Leaves all groups: the other replicas no longer wait for this one.
    pub fn leave(&mut self) {
        if let Some(connections) = self.connections.take() {
            connections.leave();
        }
    }
}

const FAILED: &str = "an earlier step failed; build the network anew";

/// candle's operations forget on what a tensor without elements depends.
const NO_EXAMPLE: &str = "this replica got no example of the minibatch; with synchronized batch norm, or over_minibatch, a \
    network with candle's own operations needs at least 1 on each replica";

/// `computed`; an error of a replica without an example says so.
fn explained<T>(computed: Result<T>, examples: usize) -> Result<T> {
    match examples {
        0 => computed.context(NO_EXAMPLE),
        _ => computed,
    }
}
