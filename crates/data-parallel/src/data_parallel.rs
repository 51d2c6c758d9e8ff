//! A network replicated over devices.

mod state;

use std::any::TypeId;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use candle_core::{Device, Result, Tensor};
use candle_nn::VarBuilder;
use collective::{Algorithm, Member};
use devices::{Context, bail, ensure, lock};
use functional::Network;
use training::{Batch, DataIter, rng, shares, weights};

use crate::agreement::{
    AtTheEnd, check_networks, check_processes, check_replicas, checksum, checksums,
};
use crate::batch_tensors::{BatchTensors, Sent};
use crate::finite::Finite;
use crate::network_state::{Initializer, NetworkState, Origin, build};
use crate::place::Place;
use crate::processes::Processes;
use crate::replica::{
    Built, Cores, Memberships, NetworkId, Replica, Shared, Twin, Worker, Workers,
};
use crate::replication::{ReduceOn, Replication};
use crate::resumed::Resumed;
use crate::statistics::Statistics;
use crate::watchers::Watchers;

/// Replicas of one network, one on each device, with the same parameters. Each has batch-norm
/// statistics of its own, as the book says.
///
/// The network is initialized on these devices and nowhere else:
///
/// ```
/// use data_parallel::prelude::*;
///
/// let devices = devices(2)?;
/// let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| Linear::new(784, 10, vb))?;
/// assert_eq!(net.num_parameters(), 7850);
/// let weight = [net.parameter("weight", 0)?, net.parameter("weight", 1)?];
/// assert_eq!(weight[0].to_vec2::<f32>()?, weight[1].to_vec2::<f32>()?);
/// assert!(net.parameter("weight", 2).is_err()); // there is no third replica
/// # data_parallel::Result::Ok(())
/// ```
///
/// A clone is the same network, not a copy of it.
///
/// A network may have any number of layers, or steps in a row. Only inside of a module of candle's there is a limit, because
/// candle calls itself for each operation that follows another. The stack of a replica's thread, at most 256 MiB, has room
/// for 200,000 of them or more. The variable `RUST_MIN_STACK` makes it larger. All stacks together take at most an eighth
/// of the memory that is left.
#[derive(Clone)]
pub struct DataParallel {
    workers: Arc<Workers>,
    pub(crate) states: Arc<[NetworkState]>,
    devices: Arc<[Device]>,
    /// The part of a minibatch that each gets, in proportion.
    weights: Arc<Mutex<Vec<f64>>>,
    /// The settings of the data that was divided since the last step.
    divided: Arc<Mutex<Vec<String>>>,
    /// What the network was built as.
    pub(crate) network_type: NetworkType,
    /// The number of its trainers, with those that are gone.
    pub(crate) trainers: Arc<AtomicUsize>,
    pub(crate) statistics: Arc<Statistics>,
    /// Who sees the minibatches of its trainers.
    pub(crate) watchers: Arc<Watchers>,
    /// The parameters with which a run goes on, until its first step.
    pub(crate) resumed: Arc<Resumed>,
    pub(crate) finite: Arc<Finite>,
    /// How the replicas work together.
    pub(crate) how: Replication,
    seed: u64,
    /// The processes that have replicas of this network.
    pub(crate) processes: Arc<Processes>,
    /// The number of the first replica of this process among those of all.
    pub(crate) first_rank: usize,
    warnings: Arc<[String]>,
    /// The last of the clones drops it.
    _at_the_end: Arc<AtTheEnd>,
}

/// The type of a network, and its name.
#[derive(Clone, Copy)]
pub(crate) struct NetworkType {
    pub id: TypeId,
    pub name: &'static str,
}

impl DataParallel {
    /// Builds `network` on each device of `place`: a list of devices, or the [`World`](crate::World) of
    /// [`launch`](crate::launch). The weights are drawn once, from `seed`, and copied to all. In the first call of the network
    /// it is built once more, for a check that its outputs follow the parameters.
    ///
    /// In several processes the replicas of process 0 come first, then those of process 1; they may have different
    /// numbers of them. A process trains on its part of each minibatch, as [`part`](Self::part) makes it. Where the
    /// replicas are changes no bit of what they learn, except with NCCL.
    ///
    /// # Errors
    /// If there is no device, or the network cannot be built; the message names the replica. If the processes do not reach
    /// each other, or draw other weights. If the initializer has a number that cannot be used. If the variable
    /// `DATA_PARALLEL_MAX_CPU_ISA` names no instruction set.
    pub fn new<N: Network + 'static>(
        place: &(impl Place + ?Sized),
        initializer: Initializer,
        seed: u64,
        network: impl Fn(VarBuilder<'_>) -> Result<N> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with(Replication::default(), place, initializer, seed, network)
    }

    /// As [`new`](Self::new), with replicas that work together as `how` says.
    ///
    /// # Errors
    /// As [`new`](Self::new); and if NCCL has to sum the gradients and cannot.
    pub fn with<N: Network + 'static>(
        mut how: Replication,
        place: &(impl Place + ?Sized),
        initializer: Initializer,
        seed: u64,
        network: impl Fn(VarBuilder<'_>) -> Result<N> + Send + Sync + 'static,
    ) -> Result<Self> {
        let devices = place.devices();
        let processes = place.processes();
        let k = devices.len();
        ensure!(k > 0, "there are no devices; give at least 1");
        initializer.check()?;
        devices::check_max_cpu_isa()?;
        let candle_is_limited = functional::threads::leave_the_cores_to_us();
        how.allreduce = processes.choose(&how, devices)?;
        if devices.iter().any(Device::is_cpu) && !devices.iter().all(Device::is_cpu) {
            how.reduce_on = ReduceOn::Host; // where both can be
        }
        let warnings = how.warnings(devices, candle_is_limited);
        let network = Arc::new(network);
        let shared = Shared {
            cores: Arc::new(Cores::new(k)),
            one_process: processes.are_one(),
        };
        let mut workers = Vec::new();
        let mut states = Vec::<NetworkState>::new();
        let id = NetworkId::new();
        let all_memberships = Memberships::of_each(&processes, &how, k)?;
        let first = &all_memberships[0].gradients;
        let first_rank = first.rank();
        let all = first.size();
        for (i, (memberships, device)) in all_memberships.into_iter().zip(devices).enumerate() {
            let network = network.clone();
            let how = how.clone();
            let device = device.clone();
            let shared = shared.clone();
            let first = states.first().cloned();
            let name = devices::device_name(i, &device);
            let make = move |name: &str| {
                devices::threads::set_passes_at_once(k.min(devices::cores()));
                let draw = || Origin::Drawn(initializer, Box::new(rng(seed)));
                let origin = first.map_or_else(draw, Origin::Copy);
                let (net, state) = build(&device, origin, |vb| network(vb))?;
                let twin = match i {
                    0 => Twin::new(device, move |vb| network(vb)),
                    _ => Twin::default(),
                };
                let net = Box::new(net);
                let built = Built { net, state, twin };
                Replica::new(name, built, seed, memberships, &how, shared)
            };
            let (worker, state) = Worker::start(name, id, k, make)?;
            if i == 0 && devices[0].is_cpu() {
                // the parameters of the others and their gradients
                let floats = 2 * (k - 1) * state.num_parameters();
                functional::check_memory(&format!("a network on {k} devices"), floats, || 0)?;
            }
            workers.push(worker);
            states.push(state);
        }
        let workers = Workers {
            network: id,
            all: workers,
            timeout: how.timeout,
            one_process: processes.are_one(),
            order: Mutex::default(),
        };
        let at_the_end = AtTheEnd {
            processes: processes.clone(),
            state: states[0].clone(),
        };
        let net = Self {
            workers: Arc::new(workers),
            finite: Arc::new(Finite::new(&states[0])?),
            states: states.into(),
            devices: devices.into(),
            weights: Arc::new(Mutex::new(vec![1.0; all])),
            divided: Arc::default(),
            network_type: NetworkType {
                id: TypeId::of::<N>(),
                name: std::any::type_name::<N>(),
            },
            trainers: Arc::default(),
            statistics: Arc::default(),
            watchers: Arc::default(),
            resumed: Arc::default(),
            how,
            seed,
            processes,
            first_rank,
            warnings: warnings.into(),
            _at_the_end: Arc::new(at_the_end),
        };
        check_networks(&net.processes, &net.states[0], &net.how)?;
        check_processes(&net.processes, &net.states[0])?;
        Ok(net)
    }

    /// The devices of the replicas.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of elements of all parameters, buffers not counted.
    pub fn num_parameters(&self) -> usize {
        self.states[0].num_parameters()
    }

    /// A parameter or buffer by its name, as it is on the device of replica `i`.
    ///
    /// # Errors
    /// If there is no replica `i`, or nothing of that name in the network.
    pub fn parameter(&self, name: &str, i: usize) -> Result<Tensor> {
        let devices = devices::device_names(&self.devices);
        let state = self.states.get(i).with_context(|| {
            format!("{name} was not initialized on replica {i}: the network is on {devices}")
        })?;
        let var = state
            .get(name)
            .with_context(|| format!("the network has no parameter {name}"))?;
        Ok(var.copy()?.detach())
    }

    /// The network's outputs for `x` (B, …) as in inference, in the order of the examples, on the first device. All devices
    /// of this process compute them.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
    ///     Linear::new(3, 2, vb)
    /// })?;
    /// let y_hat = net.forward(&Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!(y_hat.dims(), [5, 2]);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If `x` has no example, or the first dimension of the outputs is not the examples. If a replica fails; the message
    /// names it. The network can train on.
    pub fn forward<X: Batch>(&self, x: &X) -> Result<Tensor> {
        let shards = self.forward_shards(x)?;
        let to_first = |y_hat: &Tensor| devices::to_device(y_hat, &self.devices[0]);
        let shards = shards.iter().map(to_first).collect::<Result<Vec<_>>>()?;
        ensure!(
            !shards.is_empty(),
            "forward: x has 0 examples; give at least 1"
        );
        Tensor::cat(&shards, 0)
    }

    /// As [`forward`](Self::forward), shard by shard, each on the device that computed it; replicas without an example are
    /// left out.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| {
    /// #     Linear::new(3, 2, vb)
    /// # })?;
    /// let y_hat = net.forward_shards(&Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!([y_hat[0].dims(), y_hat[1].dims()], [[3, 2], [2, 2]]);
    /// # data_parallel::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the first dimension of the outputs is not the examples. If a replica fails; the message names it. The network can
    /// train on.
    pub fn forward_shards<X: Batch>(&self, x: &X) -> Result<Vec<Tensor>> {
        self.infer_on_each(&BatchTensors::new(x, &())?, |replica, shard| {
            replica.infer_rows(&shard)
        })
    }

    /// Splits a minibatch, and runs `job` at once on all replicas that get an example of it, each with its shard.
    pub(crate) fn infer_on_each<T: Send + 'static>(
        &self,
        data: &BatchTensors,
        job: impl Fn(&mut Replica, BatchTensors) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        let shares = self.shares_here(data.examples);
        let split = || data.split_in_inference(&self.devices, &shares);
        let shards = devices::on_devices("split", &self.devices, split)?;
        let results = self.on_each(shards, move |replica, shard: Option<BatchTensors>| {
            shard.map(|shard| job(replica, shard)).transpose()
        })?;
        Ok(results.into_iter().flatten().collect())
    }

    /// What the result of training depends on, a line each, as far as the library knows it: not the network itself. In which
    /// processes the replicas are is not a setting, except with NCCL.
    pub fn settings(&self) -> String {
        let weights = lock(&self.weights);
        let k = weights.len();
        let how = &self.how;
        let split = if weights.iter().all(|weight| *weight == weights[0]) {
            "even".to_owned()
        } else {
            format!("{weights:?}")
        };
        let lines = [
            format!("replicas {k}"),
            format!(
                "device {}",
                functional::describe_arithmetic(&self.devices[0])
            ),
            format!("seed {}", self.seed),
            format!("summed in the order of {}", self.order_of_sums(k)),
            format!("reduce-on {}", how.reduce_on),
            format!("sync-bn {}", how.sync_bn),
            format!("allow-unused {}", how.allow_unused),
            format!("split {split}"),
        ];
        lines.join("\n")
    }

    /// Takes what has to be the same in all processes for a step: the data that was divided since the last step, and
    /// how minibatches are split.
    pub(crate) fn take_shared_settings(&self) -> String {
        let data = std::mem::take(&mut *lock(&self.divided));
        format!("split {:?}\ndata {}", lock(&self.weights), data.join("; "))
    }

    /// In which order the gradients of `k` replicas are summed. That of up to 3 is the same for star, owner and tree. NCCL
    /// chooses one for each layout, and a ring one for each bucket.
    fn order_of_sums(&self, k: usize) -> String {
        let bucket = self.how.bucket_bytes;
        match self.how.allreduce {
            Algorithm::Nccl => {
                let processes = self.processes.count();
                format!("nccl in {processes} processes and buckets of {bucket} bytes")
            }
            Algorithm::Ring if k > 2 => format!("ring in buckets of {bucket} bytes"),
            Algorithm::Star => "ranks".into(),
            Algorithm::Owner | Algorithm::Ring | Algorithm::Tree | Algorithm::Auto => {
                if k <= 3 { "ranks" } else { "pairs" }.into()
            }
        }
    }

    /// This process's part of each minibatch of `data`, where several processes train: the shards of its replicas. Of a
    /// process that is alone it is all of it; data that is cut already stays as it is. All processes divide the same data
    /// in the same order: with another seed in one of them, the next step is an error. What is not compared: the examples,
    /// and the numbers of the epochs.
    ///
    /// ```
    /// # use data_parallel::prelude::*;
    /// # let net = DataParallel::new(&devices(2)?, Initializer::Normal(0.01), 0, |vb| Linear::new(3, 2, vb))?;
    /// # let (x, y) = (Tensor::ones((5, 3), DType::F32, &Device::Cpu)?, Tensor::ones(5, DType::U32, &Device::Cpu)?);
    /// let test_iter = net.part(DataIter::of_tensors(&x, &y, 2, None)?);
    /// let accuracy = evaluate_accuracy(&net, &test_iter)?; // over the parts of all processes
    /// # data_parallel::Result::Ok(())
    /// ```
    pub fn part<X: Batch, Y: Batch>(&self, data: DataIter<X, Y>) -> DataIter<X, Y> {
        if self.processes.are_one() || data.is_part() {
            return data;
        }
        lock(&self.divided).push(data.settings().replace('\n', ", "));
        let weights = lock(&self.weights);
        let shards = data.shards(self.own(), weights.len());
        let part = shards.and_then(|shards| shards.split_by(&weights));
        part.expect("the replicas of a process are among all, with a weight for each")
    }

    /// True if both are the same network.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.workers, &other.workers)
    }

    /// Lines that a program should show: a build without optimization, GPUs that cannot copy directly, a candle that computes
    /// on all cores because it was used, or a thread started, before.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sets the part of a minibatch that each replica gets from now on, in proportion: for devices of different speed. Of
    /// several processes each gives the weights of all replicas, and trains on a part of each minibatch that fits, as
    /// [`DataIter::split_by`](training::DataIter::split_by) makes it.
    ///
    /// # Errors
    /// If there is not one weight above 0 for each replica, or a replica has ended.
    pub fn set_split(&self, weights: &[f64]) -> Result<()> {
        let n = weights.len();
        let all = lock(&self.weights).len();
        let k = self.devices.len();
        ensure!(
            n == all,
            "{n} weights for {all} replicas; give one for each"
        );
        let positive = weights.iter().all(|w| *w > 0.0 && w.is_finite());
        ensure!(positive, "weights {weights:?}: expected numbers above 0");
        // with shares of different size, a check of memory counts that of each replica alone
        let even = weights.iter().all(|w| *w == weights[0]);
        let together = if even { k.min(devices::cores()) } else { 1 };
        self.on_each(vec![(); k], move |_, ()| {
            devices::threads::set_passes_at_once(together);
            Ok(())
        })?;
        *lock(&self.weights) = weights.to_vec();
        Ok(())
    }

    /// The weights of [`set_split`](Self::set_split), of all replicas.
    pub(crate) fn split_weights(&self) -> Vec<f64> {
        lock(&self.weights).clone()
    }

    /// So many examples, in shares for the replicas of this process.
    fn shares_here(&self, examples: usize) -> Vec<usize> {
        shares(examples, &lock(&self.weights)[self.own()])
    }

    /// Splits a part of a minibatch that has `total` examples in all processes into a shard for each replica, on its device.
    pub(crate) fn scatter(
        &self,
        data: BatchTensors,
        total: usize,
    ) -> Result<(Sent, Vec<BatchTensors>)> {
        let mut sent = Sent::new(data, self.devices.clone());
        let shards = self.shards(&sent.data, total)?;
        sent.all()?;
        Ok((sent, shards))
    }

    fn shards(&self, data: &BatchTensors, total: usize) -> Result<Vec<BatchTensors>> {
        let n = data.examples;
        let weights = lock(&self.weights).clone();
        if weights.iter().all(|weight| *weight == weights[0]) {
            return self.split(data, &self.shares_here(n));
        }
        let shares = shares(total, &weights)[self.own()].to_vec();
        let sum: usize = shares.iter().sum();
        ensure!(
            sum == n,
            "this process has {n} examples of the minibatch, but by set_split {sum} of {total}; DataIter::split_by makes \
             the right part"
        );
        self.split(data, &shares)
    }

    /// The number of replicas of all processes.
    pub(crate) fn replicas(&self) -> usize {
        lock(&self.weights).len()
    }

    /// The numbers of the replicas of this process.
    fn own(&self) -> Range<usize> {
        self.first_rank..self.first_rank + self.devices.len()
    }

    fn split(&self, data: &BatchTensors, shares: &[usize]) -> Result<Vec<BatchTensors>> {
        devices::on_devices("split", &self.devices, || data.split(&self.devices, shares))
    }

    /// Compares the parameters of all replicas: bit by bit in a process, by checksums between processes.
    ///
    /// # Errors
    /// Names the first parameter that is not the same, with index, devices and both values.
    pub fn check_replicas(&self) -> Result<()> {
        self.check_replicas_here()?;
        check_processes(&self.processes, &self.states[0])
    }

    /// Compares the parameters of the replicas of this process, between two steps of another thread.
    fn check_replicas_here(&self) -> Result<()> {
        let k = self.devices.len();
        if k == 1 {
            return Ok(());
        }
        if self.takes_no_steps_now() {
            return check_replicas(&self.states, &self.devices);
        }
        let sums = self.on_each(vec![(); k], |replica, ()| {
            let buffers = replica.state.shared_buffers();
            let of_buffers = checksum(buffers.map(|(_, buffer, _)| buffer))?;
            Ok((checksums(&replica.state)?, of_buffers))
        })?;
        if sums.iter().all(|sum| *sum == sums[0]) {
            return Ok(());
        }
        check_replicas(&self.states, &self.devices)?;
        bail!("the replicas differ, while another thread trains")
    }

    /// An error that names a parameter or a buffer that is NaN or infinite.
    pub(crate) fn check_numbers(&self) -> Result<()> {
        self.finite.check(&self.states[0])?;
        self.check_buffers()
    }

    /// An error that names a buffer of a replica of this process, if it is NaN or infinite.
    pub(crate) fn check_buffers(&self) -> Result<()> {
        for (i, state) in self.states.iter().enumerate() {
            for (name, buffer) in state.buffers() {
                let place = || format!("replica {}", devices::device_name(i, &self.devices[i]));
                weights::check_numbers(name, buffer.as_tensor()).with_context(place)?;
            }
        }
        Ok(())
    }

    /// Runs `job` on all replicas at once, each with its own of `inputs`, and waits for all.
    ///
    /// # Errors
    /// The first cause: that a replica failed or stands still, not that the others then missed it.
    pub(crate) fn on_each<S: Send + 'static, T: Send + 'static>(
        &self,
        inputs: Vec<S>,
        job: impl Fn(&mut Replica, S) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        self.workers.on_each(inputs, job)
    }

    /// True if no replica changes its parameters while this is called: the network has failed, or this is a part of a step.
    fn takes_no_steps_now(&self) -> bool {
        self.has_failed() || self.workers.network.is_here()
    }

    /// True if a replica takes no step any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.workers.have_failed()
    }

    /// New memberships of each replica for sums within a pass, if this process is alone: a replica that could not compute
    /// its part has left the others.
    pub(crate) fn new_memberships(&self) -> Result<Vec<Option<Member>>> {
        let k = self.devices.len();
        if !self.processes.are_one() {
            return Ok((0..k).map(|_| None).collect());
        }
        let members = collective::group(k, self.how.group_options(self.how.link));
        Ok(members.into_iter().map(Some).collect())
    }

    /// Runs `job` on the first replica.
    pub(crate) fn on_first<T: Send + 'static>(
        &self,
        job: impl Fn(&mut Replica) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let mut results = self.on_each(vec![()], move |replica, ()| job(replica))?;
        results.pop().context("there is no replica")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_unequal_shares_is_counted_for_each_replica_alone() -> Result<()> {
        let linear = |vb: VarBuilder<'_>| crate::layers::Linear::new(2, 1, vb);
        let net = DataParallel::new(&devices::devices(2)?, Initializer::Xavier(3.0), 0, linear)?;
        let together = || net.on_each(vec![(); 2], |_, ()| Ok(devices::threads::passes_at_once()));
        assert_eq!(together()?, [devices::cores().min(2); 2]);
        net.set_split(&[3.0, 1.0])?;
        assert_eq!(together()?, [1; 2]);
        net.set_split(&[1.0, 1.0])?;
        assert_eq!(together()?, [devices::cores().min(2); 2]);
        Ok(())
    }
}
