//! One replica of a network: what it does in a step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::{Error, Tensor, Var};
use collective::Member;
use functional::{
    Backward, Bucket, Gradients, Network, OptimizerState, Part, Summation, Value, Values,
    check_gradients,
};

use super::cores::Cores;
use super::descent::Descent;
use super::norms::Norms;
use super::reducer::Reducer;
use super::settings::Replication;
use super::state::State;
use super::trainer::Loss;
use crate::layers::Pass;

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
    /// What the optimizer keeps, and the trainer that it belongs to.
    kept: OptimizerState,
    trainer: usize,
    cores: Arc<Cores>,
    /// The sum of the losses and the outputs, until they are computed.
    pub written: Option<(Value, Value)>,
    /// How long it took to write them down.
    pub writing: Duration,
    /// The seed of what is drawn in training, and the replica's number among those of all processes.
    drawn: (u64, usize),
}

/// Which minibatch of a trainer it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub step: usize,
    /// Among those of the step.
    pub minibatch: usize,
    /// Whether the gradients of candle's operations are compared with finite differences.
    pub checks: bool,
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
        drawn: (u64, usize),
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
            kept: OptimizerState::default(),
            trainer: 0,
            net,
            reducer: Some(Reducer::start(
                name,
                seats.gradients,
                &state.device(),
                how.reduce_on,
            )?),
            state,
            norms: norms.map(Arc::new),
            overlap: how.overlap,
            in_step: false,
            cores,
            written: None,
            writing: Duration::ZERO,
            drawn,
        })
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free.
    pub fn compute<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let cores = self.cores.clone();
        cores.compute(|| f(self))
    }

    /// Writes the network and the sum of its losses down, for `backward`; nothing for no examples, unless its norms are
    /// synchronized.
    pub fn write(&mut self, loss: &Loss, (x, y): (&Tensor, &Tensor), turn: Turn) -> Result<()> {
        let start = Instant::now();
        self.written = None;
        if y.dim(0)? > 0 || self.is_synchronized() {
            let written = self.compute(|replica| {
                let y_hat = replica.forward(x, turn)?;
                let l = of_each(loss(&y_hat, y)?, y)?.sum()?;
                anyhow::Ok((l, y_hat))
            });
            self.written = Some(written?);
        }
        self.writing = start.elapsed();
        Ok(())
    }

    /// The network's output in training.
    fn forward(&self, x: &Tensor, turn: Turn) -> candle_core::Result<Value> {
        let (x, (seed, replica)) = (Value::new(x)?, self.drawn);
        let Turn {
            step,
            minibatch,
            checks,
        } = turn;
        let pass = Pass {
            seed,
            replica,
            step,
            minibatch,
        };
        pass.run(|| match checks {
            true => check_gradients(|| self.net.forward(&x, true)),
            false => self.net.forward(&x, true),
        })
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
        self.trainer == trainer
    }

    /// Forgets what another trainer has left here.
    fn belong_to(&mut self, trainer: usize) {
        if !self.belongs_to(trainer) {
            self.gradients.zero();
            self.kept = OptimizerState::default();
            self.trainer = trainer;
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
    pub fn step(&mut self, descent: &Descent, examples: usize) -> Result<()> {
        let reducer = self.reducer()?;
        // all of them before the first is used: a step is taken as a whole or not at all
        let sums = self.gradients.layout().map(|_| reducer.sum());
        let sums = sums.collect::<Result<Vec<Bucket>>>()?;
        let cores = self.cores.clone();
        cores.compute(|| self.step_with(descent, &sums, examples))?;
        for bucket in sums {
            self.gradients.put_back(bucket)?;
        }
        self.gradients.zero();
        Ok(())
    }

    #[tracing::instrument(skip_all, name = "update")]
    fn step_with(
        &mut self,
        descent: &Descent,
        sums: &[Bucket],
        examples: usize,
    ) -> candle_core::Result<()> {
        let params = self.state.parameters();
        let params: Vec<(&str, &Var)> = params.map(|(name, param)| (&name[..], param)).collect();
        let how = descent.update(examples);
        self.kept.step(&*descent.optimizer, &params, sums, how)
    }

    /// The gradients of the last step, in the order of the parameters.
    pub fn gradients(&self) -> Result<Vec<Tensor>> {
        Ok(self.gradients.values()?)
    }

    /// What the optimizer keeps of each parameter, by the names of both; nothing before the first step, or after
    /// another trainer.
    pub fn kept(&self, trainer: usize, names: &[&str]) -> Result<Vec<(String, Tensor)>> {
        let mut kept = Vec::new();
        if !self.belongs_to(trainer) {
            return Ok(kept);
        }
        for (state, parts) in self.kept.buckets().iter().zip(self.gradients.layout()) {
            for (name, values) in names.iter().zip(state) {
                for part in parts.iter() {
                    let param = self.name_of(part.parameter)?;
                    kept.push((format!("{name} {param}"), values.get(part.range.clone())?));
                }
            }
        }
        Ok(kept)
    }

    /// The steps that each parameter has taken under this trainer.
    pub fn steps(&self, trainer: usize) -> Vec<u64> {
        let own = Some(&self.kept).filter(|_| self.belongs_to(trainer));
        own.map_or(Vec::new(), |kept| kept.steps().to_vec())
    }

    /// Lets `trainer` go on with what was [`kept`](Self::kept).
    pub fn go_on(
        &mut self,
        trainer: usize,
        names: &[&str],
        kept: &HashMap<String, Tensor>,
        steps: Vec<u64>,
    ) -> Result<()> {
        self.belong_to(trainer);
        let device = self.state.device();
        let of_bucket = |name: &str, parts: &[Part]| {
            let of_param = |part: &Part| {
                let name = format!("{name} {}", self.name_of(part.parameter)?);
                let missing = || format!("the checkpoint has no {name}");
                Ok(kept.get(&name).with_context(missing)?.flatten_all()?)
            };
            let all = parts.iter().map(of_param).collect::<Result<Vec<_>>>()?;
            let all = Tensor::cat(&all, 0)?;
            Ok(match device.is_cpu() {
                true => Values::Floats(all.to_vec1()?),
                false => Values::Tensor(d2l::to_device(&all, &device)?),
            })
        };
        let layout = self.gradients.layout();
        let buckets = layout.map(|parts| names.iter().map(|name| of_bucket(name, parts)).collect());
        self.kept = OptimizerState::new(buckets.collect::<Result<_>>()?, steps);
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

/// The losses, unless they are not those of each example.
fn of_each(ls: Value, y: &Tensor) -> Result<Value> {
    let (found, n) = (ls.dims(), y.dim(0)?);
    ensure!(
        found == [n],
        "the loss has shape {found:?}, expected [{n}]: one number for each example, no mean or sum \
         over the examples, and no second dimension"
    );
    Ok(ls)
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
