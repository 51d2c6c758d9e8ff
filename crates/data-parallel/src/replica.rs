//! One replica of a network, and a step as it takes it (steps 0 and 3 of the chapter `seven-diffs`).

use std::collections::HashMap;
use std::sync::mpsc::{SendError, Sender};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use candle_core::{Error, Tensor, Var};
use collective::Member;
use devices::{catch_panic, lock};
use functional::{
    Backward, Bucket, GradientChecks, Gradients, Network, OptimizerState, Part, Summation, Value,
    Values,
};

use crate::cores::Cores;
use crate::layers::Pass;
use crate::norms::Norms;
use crate::reducer::Reducer;
use crate::settings::Replication;
use crate::state::State;
use crate::update_rule::UpdateRule;

/// A loss of each example.
pub(crate) type Loss = dyn Fn(&Value, &Tensor) -> candle_core::Result<Value> + Send + Sync;

/// What a trainer has compared of candle's gradients on a replica.
pub(crate) type Checks = Arc<Mutex<GradientChecks>>;

/// The network on one device, as its thread sees it.
pub(crate) struct Replica {
    net: Box<dyn Network>,
    pub state: State,
    members: Option<Members>,
    overlap: bool,
    gradients: Gradients,
    optimizer_state: OptimizerState,
    cores: Arc<Cores>,
    /// The seed of random numbers in training, and the replica's number among those of all processes.
    drawn: (u64, usize),
    /// Whether other replicas wait for this one. If it fails then, it leaves them.
    pub in_step: bool,
    /// Whether no other process has replicas of this network.
    alone: bool,
}

/// The memberships of a replica in groups of all replicas. It loses them when it fails in a step.
struct Members {
    /// All replicas of this process agree that a step can begin.
    agreement: Member,
    reducer: Reducer,
    /// If batch norm is over the whole minibatch.
    norms: Option<Arc<Norms>>,
}

/// The memberships of a replica, before its threads are started.
pub(crate) struct Groups {
    pub agreement: Member,
    pub gradients: Member,
    pub norms: Option<Member>,
}

/// What all replicas need to know of a minibatch.
pub(crate) struct Minibatch {
    pub loss: Arc<Loss>,
    pub rule: UpdateRule,
    /// The steps before this one, and the minibatches of this step before this one.
    pub number: (usize, usize),
    /// Whether another trainer used the replicas before this one.
    pub fresh: bool,
    /// The examples of this step if this is its last minibatch; otherwise the gradients wait.
    pub step_with: Option<usize>,
}

/// The optimizer state of each parameter by the names of both, and the steps of each parameter.
pub(crate) type NamedState = (Vec<(String, Tensor)>, Vec<u64>);

/// The result of a minibatch: the sum of the shard's losses, outputs and labels.
pub(crate) type Shard = (Tensor, (Tensor, Tensor));

impl Replica {
    pub fn new(
        name: &str,
        (net, state): (Box<dyn Network>, State),
        drawn: (u64, usize),
        groups: Groups,
        how: &Replication,
        (cores, alone): (Arc<Cores>, bool),
    ) -> Result<Self> {
        let mut gradients = Gradients::new(state.named(), how.bucket_bytes / size_of::<f32>())?;
        gradients.allow_unused(how.allow_unused);
        let norms = |member| Arc::new(Norms::new(member, cores.clone()));
        let device = state.device();
        let members = Members {
            agreement: groups.agreement,
            reducer: Reducer::start(name, groups.gradients, &device, how.reduce_on)?,
            norms: groups.norms.map(norms),
        };
        Ok(Self {
            net,
            state,
            members: Some(members),
            overlap: how.overlap,
            gradients,
            optimizer_state: OptimizerState::default(),
            cores,
            drawn,
            in_step: false,
            alone,
        })
    }

    /// Trains on a shard: writes the computation down, and compares candle's gradients there with `checks`. It agrees with
    /// the other replicas that all could, computes, sums the gradients of all replicas while it computes them, and
    /// takes the step. A replica without an example only sums.
    ///
    /// # Errors
    /// If the minibatch does not fit: nothing was changed. In several processes the other processes wait, so training
    /// cannot go on.
    pub fn train(
        &mut self,
        minibatch: &Minibatch,
        (x, y, checks): (Tensor, Tensor, Option<Checks>),
    ) -> Result<Option<Shard>> {
        self.in_step = true;
        let examples = y.dim(0)?;
        let write =
            |replica: &mut Self| catch_panic(|| replica.write(minibatch, &x, &y, checks.as_ref()));
        let written = self.compute(write);
        let written = written.unwrap_or_else(|panicked| Err(panicked.into()));
        // outside of the replica's turn on the cores: the others may need them to come here
        if !self.all_agree(written.is_ok())? {
            self.in_step = !self.alone;
            return explained(written, examples).map(|_| None);
        }
        if minibatch.fresh {
            self.forget();
        }
        let written = written?;
        let last = minibatch.step_with.is_some();
        let computed = self.compute(|replica| match &written {
            Some((l, y_hat)) => replica.backward(l, y_hat, last).map(Some),
            None => Ok(None),
        });
        let outputs = explained(computed, examples)?;
        if let Some(examples) = minibatch.step_with {
            if outputs.is_none() {
                self.reduce()?;
            }
            self.update(&minibatch.rule, examples)?;
        }
        Ok(outputs.map(|(l, y_hat)| (l, (y_hat, y))))
    }

    /// Sums the gradients that wait, and takes the step with them.
    pub fn flush(&mut self, rule: &UpdateRule, examples: usize) -> Result<()> {
        self.in_step = true;
        self.reduce()?;
        self.update(rule, examples)
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free.
    fn compute<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let cores = self.cores.clone();
        cores.compute(|| f(self))
    }

    /// The sum of the losses and the outputs, not yet computed: here shapes are checked. None without an example, unless
    /// the norms of all replicas are synchronized.
    fn write(
        &self,
        minibatch: &Minibatch,
        x: &Tensor,
        y: &Tensor,
        checks: Option<&Checks>,
    ) -> Result<Option<(Value, Value)>> {
        let examples = y.dim(0)?;
        if examples == 0 && self.members()?.norms.is_none() {
            return Ok(None);
        }
        let (x, (seed, replica), number) = (Value::new(x)?, self.drawn, minibatch.number);
        let pass = Pass {
            seed,
            replica,
            number,
        };
        let forward = || {
            let y_hat = pass.run(|| self.net.forward(&x, true))?;
            let ls = (minibatch.loss)(&y_hat, y)?;
            Ok((ls, y_hat))
        };
        let (ls, y_hat) = match checks {
            Some(checks) => lock(checks).run(forward)?,
            None => forward()?,
        };
        let found = ls.dims();
        ensure!(
            found == [examples],
            "the loss has shape {found:?}, expected [{examples}]: one number for each example, no mean or sum \
             over the examples, and no second dimension"
        );
        Ok(Some((ls.sum()?, y_hat)))
    }

    /// Whether all replicas of this process say yes.
    fn all_agree(&mut self, yes: bool) -> Result<bool> {
        let members = self.members.as_mut().context(FAILED)?;
        let answers = members.agreement.all_gather(yes)?;
        Ok(answers.into_iter().all(|yes| yes))
    }

    /// Computes the loss `l` and the outputs `y_hat`, and adds the gradients of `l` to those that wait. With `last` it
    /// begins to sum the gradients of all replicas, each bucket as soon as it is complete.
    fn backward(&mut self, l: &Value, y_hat: &Value, last: bool) -> Result<(Tensor, Tensor)> {
        let members = self.members()?;
        let (buckets, norms) = (members.reducer.buckets(), members.norms.clone());
        let mut ready = |bucket| {
            check_used(norms.as_deref())?;
            send(&buckets, bucket)
        };
        let how = Backward {
            norms: norms.clone().map(|norms| norms as Arc<dyn Summation>),
            outputs: &[y_hat],
            ready: (last && self.overlap).then_some(&mut ready),
        };
        let l = self.gradients.backward_with(l, how)?;
        check_used(norms.as_deref())?;
        if last && !self.overlap {
            self.reduce()?;
        }
        Ok((l, y_hat.eval()?))
    }

    /// Begins to sum the gradients of all replicas. Without a backward pass they are zeros.
    fn reduce(&mut self) -> Result<()> {
        let buckets = self.members()?.reducer.buckets();
        Ok(self.gradients.give(&mut |bucket| send(&buckets, bucket))?)
    }

    /// Waits for all sums, and takes the optimizer's step with them, divided by `examples`.
    fn update(&mut self, rule: &UpdateRule, examples: usize) -> Result<()> {
        let reducer = &self.members()?.reducer;
        // all of them before the first is used: a step is taken as a whole or not at all
        let sums = self.gradients.layout().map(|_| reducer.sum());
        let sums = sums.collect::<Result<Vec<Bucket>>>()?;
        self.compute(|replica| {
            let _span = tracing::info_span!("update").entered();
            let params: Vec<(&str, &Var)> = replica.state.named().collect();
            let how = rule.update(examples);
            let optimizer = &*rule.optimizer;
            replica.optimizer_state.step(optimizer, &params, &sums, how)
        })?;
        for bucket in sums {
            self.gradients.put_back(bucket)?;
        }
        self.gradients.zero();
        Ok(())
    }

    /// The network's output in inference.
    pub fn infer(&mut self, x: &Tensor) -> Result<Tensor> {
        let forward = |replica: &mut Self| replica.net.forward(&Value::new(x)?, false)?.eval();
        Ok(self.compute(forward)?)
    }

    /// The elements of each bucket.
    pub fn bucket_sizes(&self) -> Vec<usize> {
        let end = |parts: &Arc<[Part]>| parts.last().map_or(0, |part| part.range.end);
        self.gradients.layout().map(end).collect()
    }

    /// The gradients of the last step, in the order of the parameters.
    pub fn gradients(&self) -> Result<Vec<Tensor>> {
        Ok(self.gradients.values()?)
    }

    /// Forgets the gradients and the optimizer state of another trainer.
    pub fn forget(&mut self) {
        self.gradients.zero();
        self.optimizer_state = OptimizerState::default();
    }

    /// The optimizer state that `names` names; nothing before the first step.
    pub fn optimizer_state(&self, names: &[&str]) -> Result<NamedState> {
        let mut named = Vec::new();
        let buckets = self.optimizer_state.buckets().iter();
        for (values, parts) in buckets.zip(self.gradients.layout()) {
            for (name, values) in names.iter().zip(values) {
                for part in parts.iter() {
                    let param = self.name_of(part.parameter)?;
                    named.push((format!("{name} {param}"), values.get(part.range.clone())?));
                }
            }
        }
        Ok((named, self.optimizer_state.steps().to_vec()))
    }

    /// Sets the state that [`optimizer_state`](Self::optimizer_state) returned.
    pub fn set_optimizer_state(
        &mut self,
        names: &[&str],
        named: &HashMap<String, Tensor>,
        steps: Vec<u64>,
    ) -> Result<()> {
        self.forget();
        let device = self.state.device();
        let of_bucket = |name: &str, parts: &[Part]| {
            let of_param = |part: &Part| {
                let name = format!("{name} {}", self.name_of(part.parameter)?);
                let missing = || format!("the checkpoint has no {name}");
                Ok(named.get(&name).with_context(missing)?.flatten_all()?)
            };
            let all = parts.iter().map(of_param).collect::<Result<Vec<_>>>()?;
            let all = Tensor::cat(&all, 0)?;
            Ok(match device.is_cpu() {
                true => Values::Floats(all.to_vec1()?),
                false => Values::Tensor(devices::to_device(&all, &device)?),
            })
        };
        let layout = self.gradients.layout();
        let buckets = layout.map(|parts| names.iter().map(|name| of_bucket(name, parts)).collect());
        self.optimizer_state = OptimizerState::new(buckets.collect::<Result<_>>()?, steps);
        Ok(())
    }

    fn name_of(&self, parameter: usize) -> Result<String> {
        let param = self.state.parameters().nth(parameter);
        Ok(param.context("there is no such parameter")?.0.clone())
    }

    fn members(&self) -> Result<&Members> {
        self.members.as_ref().context(FAILED)
    }

    /// The reason behind an error of this replica: an error of the sums, if one has failed.
    pub fn cause(&self, error: anyhow::Error) -> anyhow::Error {
        let Some(members) = &self.members else {
            return error;
        };
        let norms = members.norms.as_ref().and_then(|norms| norms.failure());
        let missed = norms.map(anyhow::Error::from);
        let missed = missed.or_else(|| members.reducer.failure());
        missed.unwrap_or(error)
    }

    /// Leaves all groups: the other replicas no longer wait for this one.
    pub fn leave(&mut self) {
        if let Some(members) = self.members.take() {
            members.reducer.leave();
            members.norms.iter().for_each(|norms| norms.leave());
        }
    }
}

const FAILED: &str = "an earlier step failed; build the network anew";

/// candle's operations forget on what a tensor without elements depends.
const NO_EXAMPLE: &str = "this replica got no example of the minibatch; with synchronized batch norm, a network \
    with candle's own operations needs at least 1 on each replica";

/// `computed`; an error of a replica without an example says so.
fn explained<T>(computed: Result<T>, examples: usize) -> Result<T> {
    match examples {
        0 => computed.context(NO_EXAMPLE),
        _ => computed,
    }
}

/// An error where norms have to be synchronized and none was.
fn check_used(norms: Option<&Norms>) -> candle_core::Result<()> {
    if norms.is_some_and(|norms| !norms.are_used()) {
        candle_core::bail!(
            "sync_bn: the network has no synchronized batch norm; use layers::BatchNorm2d or \
             functional's batch_norm2d, because candle-nn's takes the statistics of one replica's \
             part"
        )
    }
    Ok(())
}

fn send(buckets: &Sender<Bucket>, bucket: Bucket) -> candle_core::Result<()> {
    buckets.send(bucket).map_err(|SendError(bucket)| {
        let index = bucket.index;
        Error::Msg(format!(
            "cannot hand out bucket {index}: its receiver was dropped"
        ))
    })
}
