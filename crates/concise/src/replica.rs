//! One replica of a network, on a thread of its own for as long as the network lives: replicas
//! wait for each other in the all-reduce, and a GPU's handles belong to a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use candle_core::{ModuleT, Tensor, Var};
use collective::Member;
use functional::threads::with_budget;
use functional::{Gradients, Sgd, Values};

use crate::state::State;

/// The network on one device, as its thread sees it.
pub(crate) struct Replica {
    pub net: Box<dyn ModuleT>,
    pub state: State,
    /// Its seat among the replicas; empty once it failed.
    member: Option<Member>,
    gradients: Gradients,
    velocity: Velocity,
    cores: Arc<Cores>,
}

/// What momentum remembers of each gradient, nothing without it, and the trainer whose it is.
#[derive(Default)]
struct Velocity {
    trainer: usize,
    /// On the CPU.
    floats: Vec<f32>,
    /// On a GPU.
    tensor: Option<Tensor>,
}

type Job = Box<dyn FnOnce(&mut Replica) + Send>;

/// The thread of one replica; it ends when this is dropped.
pub(crate) struct Worker {
    name: String,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Replica {
    pub fn new(
        (net, state): (Box<dyn ModuleT>, State),
        member: Member,
        cores: Arc<Cores>,
    ) -> Result<Self> {
        let params = state.parameters().map(|(name, p)| (name.as_str(), p));
        Ok(Self {
            gradients: Gradients::new(params, usize::MAX)?,
            velocity: Velocity::default(),
            net,
            state,
            member: Some(member),
            cores,
        })
    }

    /// Runs `f` on this replica's share of the cores, as soon as one of them is free.
    pub fn compute<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        let cores = self.cores.clone();
        let _core = cores.acquire();
        with_budget(cores.share, || f(self))
    }

    /// Replaces the gradients by those of `l`.
    pub fn backward(&mut self, l: &Tensor) -> Result<()> {
        self.gradients.zero();
        Ok(self.gradients.backward(l)?)
    }

    /// A replica without an example adds nothing.
    pub fn zero_grad(&mut self) {
        self.gradients.zero();
    }

    /// Sums the gradients of all replicas, and takes the optimizer's step with the sum divided by
    /// `batch_size`. Each element of the sum is read once, as it comes.
    pub fn reduce_and_step(
        &mut self,
        trainer: usize,
        optimizer: Sgd,
        batch_size: usize,
    ) -> Result<()> {
        if self.velocity.trainer != trainer {
            self.velocity = Velocity::default(); // another trainer's steps
            self.velocity.trainer = trainer;
        }
        let Self {
            state,
            gradients,
            velocity,
            member,
            cores,
            ..
        } = self;
        let member = member.as_mut().context("it failed before")?;
        let (ready, buckets) = channel();
        gradients.give(&ready)?;
        let Ok(bucket) = buckets.try_recv() else {
            return Ok(()); // a network without parameters
        };
        let floats = match &bucket.values {
            Values::Floats(floats) => floats,
            Values::Tensor(tensor) => {
                let sum = member.all_reduce_tensor(tensor)?;
                gradients.put_back(bucket)?;
                return Ok(step_on_gpu(optimizer, state, &sum, batch_size, velocity)?);
            }
        };
        let velocity = &mut velocity.floats;
        if optimizer.momentum != 0.0 {
            velocity.resize(state.num_parameters(), 0.0);
        }
        let mut stepped = Ok(());
        member.all_reduce_with(floats, |start, sum| {
            let _core = cores.acquire();
            let step = || step(optimizer, state, start, sum, batch_size, velocity);
            if stepped.is_ok() {
                stepped = with_budget(cores.share, step);
            }
        })?;
        gradients.put_back(bucket)?;
        Ok(stepped?)
    }
}

/// Takes the step with a piece of the gradient that begins at element `start` of all.
fn step(
    optimizer: Sgd,
    state: &State,
    start: usize,
    piece: &[f32],
    batch_size: usize,
    velocity: &mut [f32],
) -> candle_core::Result<()> {
    let end = start + piece.len();
    let mut first = 0;
    for (_, param) in state.parameters() {
        let next = first + param.elem_count();
        let (from, to) = (first.max(start), next.min(end));
        if from < to {
            let grad = &piece[from - start..to - start];
            let velocity = velocity.get_mut(from..to);
            optimizer.step(param, from - first, grad, batch_size, velocity)?;
        }
        first = next;
    }
    Ok(())
}

/// Takes the step with the sum of all gradients, which are on the parameters' GPU.
fn step_on_gpu(
    optimizer: Sgd,
    state: &State,
    sum: &Tensor,
    batch_size: usize,
    velocity: &mut Velocity,
) -> candle_core::Result<()> {
    if optimizer.momentum != 0.0 && velocity.tensor.is_none() {
        velocity.tensor = Some(sum.zeros_like()?);
    }
    let params: Vec<&Var> = state.parameters().map(|(_, param)| param).collect();
    let (mut sums, mut first) = (Vec::new(), 0);
    for param in &params {
        sums.push(sum.narrow(0, first, param.elem_count())?);
        first += param.elem_count();
    }
    optimizer.step_all(&params, &sums, batch_size, velocity.tensor.as_ref())
}

impl Worker {
    /// Starts a thread, makes the replica on it, and returns what the replica holds.
    pub fn start(
        name: String,
        make: impl FnOnce() -> Result<Replica> + Send + 'static,
    ) -> Result<(Self, State)> {
        let (jobs, inbox) = channel::<Job>();
        let (made, state) = channel();
        let serve = move || {
            let replica = make();
            let _ = made.send(replica.as_ref().map(|r| r.state.clone()).map_err(cause));
            if let Ok(mut replica) = replica {
                inbox.iter().for_each(|job| job(&mut replica));
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(serve)?;
        let state = state.recv().unwrap_or_else(|_| Err(anyhow!("it panicked")));
        let state = state.with_context(|| format!("replica {name} cannot be built"))?;
        let worker = Self {
            name,
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok((worker, state))
    }

    /// Gives the replica something to do; the result comes through the channel. A replica that
    /// fails leaves the group, so that the others do not wait for it.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Replica) -> Result<T> + Send + 'static,
    ) -> Receiver<Result<T>> {
        let (done, result) = channel();
        let name = self.name.clone();
        let job: Job = Box::new(move |replica| {
            let result = catch_unwind(AssertUnwindSafe(|| job(replica)));
            let result = result.unwrap_or_else(|_| Err(anyhow!("it panicked")));
            if result.is_err() {
                replica.member = None;
            }
            let _ = done.send(result.with_context(|| format!("replica {name}")));
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job); // where the thread has ended, the result never comes
        }
        result
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was reported with its job
        }
    }
}

fn cause(error: &anyhow::Error) -> anyhow::Error {
    anyhow!("{error:#}")
}

/// The cores of the whole run: no more replicas run the network or take the step at a time than there are.
pub(crate) struct Cores {
    free: Mutex<usize>,
    freed: Condvar,
    /// The threads that one replica may use.
    share: usize,
}

struct Core<'a>(&'a Cores);

impl Cores {
    pub fn new(replicas: usize) -> Self {
        Self {
            free: Mutex::new(d2l::cores()),
            freed: Condvar::new(),
            share: d2l::cores_each(replicas),
        }
    }

    fn acquire(&self) -> Core<'_> {
        let free = self.free.lock().unwrap_or_else(|e| e.into_inner());
        let wait = self.freed.wait_while(free, |free| *free == 0);
        *wait.unwrap_or_else(|e| e.into_inner()) -= 1;
        Core(self)
    }
}

impl Drop for Core<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        self.0.freed.notify_one();
    }
}
