//! One replica of a network: what it does in a step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};

use anyhow::{Context, Result};
use candle_core::{Error, Tensor, Var};
use collective::Member;
use functional::{Backward, Bucket, Gradients, Network, Part, Sgd, Summation, Value, Values};

use super::cores::Cores;
use super::norms::Norms;
use super::reducer::Reducer;
use super::settings::Replication;
use super::state::State;

/// The network on one device, as its thread sees it.
pub(crate) struct Replica {
    pub net: Box<dyn Network>,
    pub state: State,
    /// Empty once it failed.
    reducer: Option<Reducer>,
    /// Where batch norm is over the whole minibatch.
    norms: Option<Arc<Norms>>,
    overlap: bool,
    /// Whether the others count on it: it has begun a step.
    pub in_step: bool,
    gradients: Gradients,
    velocity: Velocity,
    cores: Arc<Cores>,
}

/// What momentum keeps for each gradient, and the trainer that it belongs to.
#[derive(Default)]
struct Velocity {
    trainer: usize,
    /// As the gradients; none without momentum.
    of_buckets: Vec<Values>,
}

/// The seats of a replica among the others.
pub(crate) struct Seats {
    pub gradients: Member,
    /// Where batch norm is over the whole minibatch.
    pub norms: Option<Member>,
}

impl Replica {
    pub fn new(
        name: &str,
        (net, state): (Box<dyn Network>, State),
        seats: Seats,
        how: &Replication,
        cores: Arc<Cores>,
    ) -> Result<Self> {
        let params = state.parameters().map(|(name, p)| (name.as_str(), p));
        let bucket_len = how.bucket_bytes / size_of::<f32>();
        let mut gradients = Gradients::new(params, bucket_len)?;
        gradients.allow_unused(how.allow_unused);
        let norms = seats.norms.map(|member| Norms::new(member, cores.clone()));
        Ok(Self {
            gradients,
            velocity: Velocity::default(),
            net,
            state,
            reducer: Some(Reducer::start(name, seats.gradients, how.reduce_on)?),
            norms: norms.map(Arc::new),
            overlap: how.overlap,
            in_step: false,
            cores,
        })
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free.
    pub fn compute<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let cores = self.cores.clone();
        cores.compute(|| f(self))
    }

    /// The network's output in training, written down.
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Value> {
        self.net.forward(&Value::new(x)?, true)
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

    /// Whether it takes part in the batch norms of the others, also without an example.
    pub fn is_synchronized(&self) -> bool {
        self.norms.is_some()
    }

    /// Begins a job of a trainer's step, in which the others wait for this replica.
    pub fn begin(&mut self, trainer: usize) {
        self.in_step = true;
        self.belong_to(trainer);
    }

    /// Whether what is here is this trainer's.
    pub fn belongs_to(&self, trainer: usize) -> bool {
        self.velocity.trainer == trainer
    }

    /// Forgets what another trainer has left here.
    fn belong_to(&mut self, trainer: usize) {
        if !self.belongs_to(trainer) {
            self.gradients.zero();
            self.velocity = Velocity::default();
            self.velocity.trainer = trainer;
        }
    }

    /// Computes the loss `l` and the outputs `y_hat`, and adds the gradients of `l` to those that are there. With
    /// `reduce` it begins to sum the gradients of all replicas. Returns the loss.
    pub fn backward(&mut self, l: &Value, y_hat: &Value, reduce: bool) -> Result<Tensor> {
        let buckets = self.reducer()?.buckets();
        let norms = self.norms.clone();
        let mut ready = |bucket| {
            check_used(norms.as_deref())?;
            send(&buckets, bucket)
        };
        let how = Backward {
            norms: norms.clone().map(|norms| norms as Arc<dyn Summation>),
            outputs: &[y_hat],
            ready: match reduce && self.overlap {
                true => Some(&mut ready),
                false => None,
            },
        };
        let l = self.gradients.backward_with(l, how)?;
        check_used(norms.as_deref())?;
        if reduce && !self.overlap {
            self.reduce()?;
        }
        Ok(l)
    }

    /// Begins to sum the gradients of all replicas; where there are none yet, they are zeros.
    pub fn reduce(&mut self) -> Result<()> {
        let buckets = self.reducer()?.buckets();
        Ok(self.gradients.give(&mut |bucket| send(&buckets, bucket))?)
    }

    fn reducer(&self) -> Result<&Reducer> {
        let reducer = self.reducer.as_ref();
        reducer.context("an earlier step failed; build the network anew")
    }

    /// Waits for all sums, and takes the optimizer's step with them, divided by `examples`.
    pub fn step(&mut self, optimizer: Sgd, examples: usize) -> Result<()> {
        let reducer = self.reducer()?;
        // all of them before the first is used: a step is taken as a whole or not at all
        let sums = self.gradients.layout().map(|_| reducer.sum());
        let sums = sums.collect::<Result<Vec<Bucket>>>()?;
        let cores = self.cores.clone();
        cores.compute(|| self.step_with(optimizer, &sums, examples))?;
        for bucket in sums {
            self.gradients.put_back(bucket)?;
        }
        self.gradients.zero();
        Ok(())
    }

    #[tracing::instrument(skip_all, name = "update")]
    fn step_with(
        &mut self,
        optimizer: Sgd,
        sums: &[Bucket],
        examples: usize,
    ) -> candle_core::Result<()> {
        let params: Vec<&Var> = self.state.parameters().map(|(_, param)| param).collect();
        if optimizer.momentum != 0.0 {
            self.velocity.begin(sums)?;
        }
        for bucket in sums {
            let velocity = self.velocity.of_buckets.get_mut(bucket.index);
            optimizer.step_bucket(&params, bucket, examples, velocity)?;
        }
        Ok(())
    }

    /// The gradients of the last step, in the order of the parameters.
    pub fn gradients(&self) -> Result<Vec<Tensor>> {
        Ok(self.gradients.values()?)
    }

    /// What momentum remembers of each parameter, by its name; nothing without momentum, or after another
    /// trainer.
    pub fn velocity(&self, trainer: usize) -> Result<Vec<(String, Tensor)>> {
        let mut velocity = Vec::new();
        if !self.belongs_to(trainer) {
            return Ok(velocity);
        }
        for (values, parts) in self.velocity.of_buckets.iter().zip(self.gradients.layout()) {
            for part in parts.iter() {
                let name = self.name_of(part.parameter)?;
                velocity.push((name, values.get(part.range.clone())?));
            }
        }
        Ok(velocity)
    }

    /// Lets `trainer` go on with a [`velocity`](Self::velocity).
    pub fn set_velocity(
        &mut self,
        trainer: usize,
        velocity: &HashMap<String, Tensor>,
    ) -> Result<()> {
        self.belong_to(trainer);
        self.velocity.of_buckets.clear();
        let device = self.state.device();
        let layout: Vec<_> = self.gradients.layout().cloned().collect();
        for parts in layout {
            let of_param = |part: &Part| {
                let name = self.name_of(part.parameter)?;
                let missing = || format!("the checkpoint has none for {name}");
                let of_param = velocity.get(&name).with_context(missing)?;
                Ok(of_param.flatten_all()?)
            };
            let bucket = parts.iter().map(of_param).collect::<Result<Vec<_>>>()?;
            let bucket = Tensor::cat(&bucket, 0)?;
            self.velocity.of_buckets.push(match device.is_cpu() {
                true => Values::Floats(bucket.to_vec1()?),
                false => Values::Tensor(d2l::to_device(&bucket, &device)?),
            });
        }
        Ok(())
    }

    fn name_of(&self, parameter: usize) -> Result<String> {
        let param = self.state.parameters().nth(parameter);
        Ok(param.context("there is no such parameter")?.0.clone())
    }

    /// What is behind an error of this replica: another one that it missed, if it did.
    pub fn cause(&self, error: anyhow::Error) -> anyhow::Error {
        let norms = self.norms.as_ref().and_then(|norms| norms.failure());
        let reducer = || self.reducer.as_ref().and_then(Reducer::failure);
        let missed = norms.map(anyhow::Error::from).or_else(reducer);
        missed.unwrap_or(error)
    }

    /// Leaves the group: the other replicas no longer wait for this one.
    pub fn leave(&mut self) {
        if let Some(reducer) = self.reducer.take() {
            reducer.leave();
        }
        self.norms.iter().for_each(|norms| norms.leave());
    }
}

impl Velocity {
    /// Zeros, where there is nothing yet.
    fn begin(&mut self, buckets: &[Bucket]) -> candle_core::Result<()> {
        for bucket in &buckets[self.of_buckets.len()..] {
            self.of_buckets.push(match &bucket.values {
                Values::Floats(sums) => Values::Floats(vec![0.0; sums.len()]),
                Values::Tensor(sums) => Values::Tensor(sums.zeros_like()?),
            });
        }
        Ok(())
    }
}

/// An error where norms have to be synchronized and none was.
fn check_used(norms: Option<&Norms>) -> candle_core::Result<()> {
    if norms.is_some_and(|norms| !norms.are_used()) {
        candle_core::bail!(
            "--sync-bn: the network has no synchronized batch norm; use concise's BatchNorm2d or \
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
