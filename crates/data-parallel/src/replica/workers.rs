//! The threads of the replicas, one for each for as long as the network lives: replicas wait for each other in the
//! all-reduce, and a GPU's handles belong to a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use candle_core::Result;
use collective::Deadline;
use devices::{Context, bail, find, lock, message, or_panic};

use super::receive::receive;
use super::replica::Replica;
use super::waits::{NetworkId, Waits};
use crate::network_state::NetworkState;

type Job = Box<dyn FnOnce(&mut Replica) + Send>;

/// The thread of one replica; it ends when this is dropped.
pub(crate) struct Worker {
    pub name: String,
    /// True if the replica stands still: `drop` no longer waits for its thread.
    given_up: AtomicBool,
    /// True if the replica has left the groups, after an error: it takes no step any more.
    left: Arc<AtomicBool>,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread, makes the replica on it, and returns what the replica holds. `replicas` is the number of those in
    /// this process.
    pub fn start(
        name: String,
        network: NetworkId,
        replicas: usize,
        make: impl FnOnce(&str) -> Result<Replica> + Send + 'static,
    ) -> Result<(Self, NetworkState)> {
        let (jobs, inbox) = channel::<Job>();
        let (made, state) = channel();
        let own_name = name.clone();
        let serve = move || {
            network.is_served_here();
            let replica = or_panic(|| make(&own_name));
            let state = replica.as_ref().map(|replica| replica.state.clone());
            let _ = made.send(state.map_err(|error| message(error.to_string())));
            if let Ok(mut replica) = replica {
                // a replica alone sleeps at once: its helpers keep the other cores, and the thread that hands out jobs needs one
                let next = || {
                    if replicas == 1 {
                        inbox.recv()
                    } else {
                        receive(&inbox)
                    }
                };
                while let Ok(job) = next() {
                    job(&mut replica);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .stack_size(stack_size(replicas))
            .spawn(serve)
            .context("a thread could not be started")?;
        let made = state.recv().ok().context("its thread has ended")?;
        let state = made.with_context(|| format!("replica {name} cannot be built"))?;
        let worker = Self {
            name,
            given_up: AtomicBool::new(false),
            left: Arc::default(),
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok((worker, state))
    }

    /// Gives the replica something to do; the result goes to `done`. A replica that fails in a step leaves the
    /// group, so that the others do not wait for it. In inference they do not.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Replica) -> Result<T> + Send + 'static,
        done: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let name = self.name.clone();
        let left = self.left.clone();
        let job: Job = Box::new(move |replica| {
            replica.in_step = false;
            let result = or_panic(|| job(replica)).map_err(|error| {
                let cause = replica.cause(error);
                if replica.in_step {
                    replica.leave();
                    left.store(true, Ordering::Relaxed);
                }
                cause
            });
            done(result.with_context(|| format!("replica {name}")));
        });
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job); // where the thread has ended, the result never comes
        }
    }
}

/// The stack of the thread of each of n `replicas`, in bytes.
///
/// candle calls itself for each operation before an operation: 10,000 steps of candle-nn's LSTM take up to 128 MiB if candle
/// is compiled without optimization. The system reserves addresses, and gives memory when it is used. But a limit of
/// addresses, such as `ulimit -v`, counts them: so all stacks take at most an eighth of the memory that is left.
fn stack_size(replicas: usize) -> usize {
    let default = 2 << 20; // of Rust's threads
    let largest = if cfg!(target_pointer_width = "64") {
        256 << 20
    } else {
        default
    };
    let halved = |size: &usize| Some(size / 2).filter(|half| *half > default);
    let is_there = |size: &usize| {
        let floats = 8 * size * replicas / size_of::<f32>();
        functional::check_memory("the stacks of the replicas", floats, || 0).is_ok()
    };
    let size = std::iter::successors(Some(largest), halved).find(is_there);
    let variable = std::env::var("RUST_MIN_STACK").ok();
    let wanted = variable.and_then(|bytes| bytes.parse().ok());
    size.unwrap_or(default).max(wanted.unwrap_or(0))
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        let given_up = self.given_up.load(Ordering::Relaxed);
        if let Some(thread) = self.thread.take().filter(|_| !given_up) {
            let _ = thread.join(); // a panic was reported with its job
        }
    }
}

/// The threads of all replicas of this process.
pub(crate) struct Workers {
    pub network: NetworkId,
    pub all: Vec<Worker>,
    /// The longest time that replicas wait for each other.
    pub timeout: Option<Duration>,
    /// True if no other process has replicas of this network.
    pub one_process: bool,
    /// Held while a job is handed out, so that all replicas get the jobs of several threads in one order.
    pub order: Mutex<()>,
}

impl Workers {
    /// Runs `job` on all replicas at once, each with its own of `inputs`, and waits for all; after the first answer no
    /// longer than replicas wait for each other.
    ///
    /// # Errors
    /// The first cause: that a replica failed or stands still, not that the others then missed it. And if this thread is a
    /// replica for which the network waits.
    pub fn on_each<S: Send + 'static, T: Send + 'static>(
        &self,
        inputs: Vec<S>,
        job: impl Fn(&mut Replica, S) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        let _waits = Waits::for_network(self.network)?;
        let job = Arc::new(job);
        let (done, inbox) = channel();
        let mut results = Vec::new();
        let order = lock(&self.order);
        for (i, (worker, input)) in self.all.iter().zip(inputs).enumerate() {
            let job = job.clone();
            let done = done.clone();
            let answer = move |result| _ = done.send((i, result)); // fails where `on_each` gave up
            worker.run(move |replica| job(replica, input), answer);
            results.push(None);
        }
        drop(order);
        drop(done);
        let end = self.collect(&inbox, &mut results);
        let mut missing: Vec<&Worker> = Vec::new();
        for (result, worker) in results.iter().zip(&self.all) {
            if result.is_none() {
                worker.given_up.store(true, Ordering::Relaxed);
                missing.push(worker);
            }
        }
        let came = first_cause(results.into_iter().flatten().collect())
            .map_err(|error| self.name_the_missing(error))?;
        match (missing.is_empty(), end, self.timeout) {
            (true, ..) => Ok(came),
            (_, RecvTimeoutError::Timeout, Some(limit)) => Err(late(&missing, limit)),
            _ => bail!("the thread of a replica has ended"),
        }
    }

    /// True if a replica takes no step any more.
    pub fn have_failed(&self) -> bool {
        let has_failed = |worker: &Worker| {
            worker.left.load(Ordering::Relaxed) || worker.given_up.load(Ordering::Relaxed)
        };
        self.all.iter().any(has_failed)
    }

    /// Puts each answer in its place, and returns why no more come: all are there, or the time is over.
    ///
    /// The first answer may take any time. After each answer the next one has the time for which replicas wait for each
    /// other; after an error at most [`ENDING`], because then the others need not wait.
    fn collect<T>(
        &self,
        inbox: &Receiver<(usize, Result<T>)>,
        answers: &mut [Option<Result<T>>],
    ) -> RecvTimeoutError {
        let mut deadline: Option<Deadline> = None;
        loop {
            let next = match &deadline {
                None => inbox.recv().map_err(RecvTimeoutError::from),
                Some(deadline) => deadline.nap(|time| inbox.recv_timeout(time)),
            };
            match (next, &deadline) {
                (Ok((i, came)), _) => {
                    let most = if came.is_ok() { Duration::MAX } else { ENDING };
                    deadline = self.timeout.map(|limit| Deadline::after(limit.min(most)));
                    answers[i] = Some(came);
                }
                (Err(RecvTimeoutError::Timeout), Some(deadline)) if !deadline.is_over() => {}
                (Err(end), _) => return end,
            }
        }
    }

    /// Names the devices of the replicas that did not come, where all replicas are in this process.
    fn name_the_missing(&self, error: candle_core::Error) -> candle_core::Error {
        match of_the_group(&error) {
            Some(collective::Error::TimedOut { limit, missing }) if self.one_process => {
                let workers = missing.iter().map(|i| &self.all[*i]);
                late(&workers.collect::<Vec<_>>(), *limit)
            }
            _ => error,
        }
    }
}

/// The time that the other replicas have to answer after one has failed.
const ENDING: Duration = Duration::from_secs(5);

/// What a run says of replicas that stand still.
fn late(missing: &[&Worker], limit: Duration) -> candle_core::Error {
    let names: Vec<&str> = missing.iter().map(|worker| worker.name.as_str()).collect();
    let names = names.join(", ");
    message(format!("replica {names} did not arrive within {limit:?}"))
}

/// The name of the group of replicas in an error.
fn of_the_group(error: &candle_core::Error) -> Option<&collective::Error> {
    find(error)
}

/// True if the error says only that another replica is gone or late.
fn missed_a_peer(error: &candle_core::Error) -> bool {
    use collective::Error::{PeerLeft, TimedOut};
    matches!(of_the_group(error), Some(PeerLeft { .. } | TimedOut { .. }))
}

/// All results, or the error that made the others miss a peer.
fn first_cause<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (good, errors): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    let errors = errors.into_iter().filter_map(Result::err);
    match errors.min_by_key(missed_a_peer) {
        Some(error) => Err(error),
        None => good.into_iter().collect(),
    }
}
