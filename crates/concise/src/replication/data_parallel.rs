//! A network replicated over devices.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_nn::VarBuilder;
use collective::Algorithm;
use functional::Network;
use run::BadInput;

use super::cores::Cores;
use super::processes::Processes;
use super::replica::{Replica, Seats};
use super::settings::{ReduceOn, Replication};
use super::split::{Split, split_by_weights};
use super::state::{Initializer, Origin, State, build};
use super::worker::{Worker, Workers};

/// Replicas of one network, one on each device, with the same parameters. Each has batch-norm
/// statistics of its own, as the book says.
///
/// The network is initialized on these devices and nowhere else:
///
/// ```
/// use concise::{DataParallel, Initializer, resnet18};
///
/// let devices = d2l::devices(2)?;
/// let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| resnet18(10, vb))?;
/// assert_eq!(net.num_parameters(), 11_175_818);
/// let weight = [net.parameter("0.weight", 0)?, net.parameter("0.weight", 1)?];
/// assert_eq!(weight[0].flatten_all()?.to_vec1::<f32>()?, weight[1].flatten_all()?.to_vec1::<f32>()?);
/// assert!(net.parameter("0.weight", 2).is_err()); // there is no third replica
/// # anyhow::Ok(())
/// ```
///
/// A clone is the same network, not a copy of it.
#[derive(Clone)]
pub struct DataParallel {
    workers: Arc<Workers>,
    pub(crate) states: Arc<[State]>,
    devices: Arc<[Device]>,
    /// What each gets of a minibatch, in proportion.
    weights: Arc<Mutex<Vec<f64>>>,
    /// The number of trainers so far.
    trainers: Arc<AtomicUsize>,
    /// How the replicas work together.
    pub(crate) how: Replication,
    /// Those that have replicas of this network as well.
    pub(crate) processes: Arc<Processes>,
}

impl DataParallel {
    /// Builds `network` on each of `devices`. The weights are drawn once, from `seed`, and
    /// copied to all.
    ///
    /// # Errors
    /// If there is no device, or the network cannot be built; the message names the replica.
    pub fn new<N: Network + 'static>(
        devices: &[Device],
        initializer: Initializer,
        seed: u64,
        network: impl Fn(VarBuilder<'_>) -> candle_core::Result<N> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with(Replication::default(), devices, initializer, seed, network)
    }

    /// As [`new`](Self::new), with replicas that work together as `how` says.
    ///
    /// # Errors
    /// As [`new`](Self::new); and if the split does not fit the devices.
    pub fn with<N: Network + 'static>(
        how: Replication,
        devices: &[Device],
        initializer: Initializer,
        seed: u64,
        network: impl Fn(VarBuilder<'_>) -> candle_core::Result<N> + Send + Sync + 'static,
    ) -> Result<Self> {
        let alone = Arc::new(Processes::alone());
        Self::among(&alone, how, devices, initializer, seed, network)
    }

    /// As [`with`](Self::with), in one of several processes, each of which has as many replicas: the
    /// minibatches that it trains on are its parts of the whole ones.
    ///
    /// # Errors
    /// As [`with`](Self::with); and if the processes do not reach each other, or draw other weights.
    pub fn among<N: Network + 'static>(
        processes: &Arc<Processes>,
        mut how: Replication,
        devices: &[Device],
        initializer: Initializer,
        seed: u64,
        network: impl Fn(VarBuilder<'_>) -> candle_core::Result<N> + Send + Sync + 'static,
    ) -> Result<Self> {
        let k = devices.len();
        ensure!(k > 0, "there are no devices; give at least 1");
        how.check(k)?;
        how.allreduce = processes.choose(&how, devices)?;
        warn_once();
        if devices.iter().any(Device::is_cpu) && !devices.iter().all(Device::is_cpu) {
            how.reduce_on = ReduceOn::Host; // where both can be
        }
        let network = Arc::new(network);
        let cores = Arc::new(Cores::new(k));
        let mut workers = Workers::new(how.timeout, processes.are_one());
        let mut states: Vec<State> = Vec::new();
        for (rank, seats) in seats(processes, &how, devices)?.into_iter().enumerate() {
            let (network, cores, how) = (network.clone(), cores.clone(), how.clone());
            let (device, first) = (devices[rank].clone(), states.first().cloned());
            let even = how.split == Split::Even;
            let drawn = (seed, processes.rank() * k + rank);
            let make = move |name: &str| {
                devices::threads::set_together(if even { k.min(d2l::cores()) } else { 1 });
                let draw = || Origin::Drawn(initializer, Box::new(d2l::rng(seed)));
                let origin = first.map_or_else(draw, Origin::Copy);
                let (built, state) = build(&device, origin, |vb| network(vb))?;
                Replica::new(name, (Box::new(built), state), drawn, seats, &how, cores)
            };
            let (worker, state) = Worker::start(d2l::device_name(rank, &devices[rank]), make)?;
            if rank == 0 && devices[0].is_cpu() {
                // the parameters of the others and their gradients
                let floats = 2 * (k - 1) * state.num_parameters();
                functional::check_memory(&format!("a network on {k} devices"), floats, || 0)?;
            }
            workers.add(worker);
            states.push(state);
        }
        let weights = how.split.weights().unwrap_or_else(|| vec![1.0; k]);
        let net = Self {
            workers: Arc::new(workers),
            states: states.into(),
            devices: devices.into(),
            weights: Arc::new(Mutex::new(weights)),
            trainers: Arc::default(),
            how,
            processes: processes.clone(),
        };
        net.begin_alike()?;
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
        let devices = d2l::device_names(&self.devices);
        let state = self.states.get(i).with_context(|| {
            format!("{name} was not initialized on replica {i}: the network is on {devices}")
        })?;
        let var = state.get(name);
        let var = var.with_context(|| format!("the network has no parameter {name}"))?;
        Ok(var.copy()?.detach())
    }

    /// The network's outputs for `x` (B, …) as in inference, shard by shard, each on the device that
    /// computed it; replicas without an example are left out.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use concise::{DataParallel, Initializer, layers::Linear};
    /// let net = DataParallel::new(&d2l::devices(2)?, Initializer::Normal(0.01), 0, |vb| {
    ///     Linear::new(3, 2, vb)
    /// })?;
    /// let y_hat = net.forward(&Tensor::ones((5, 3), DType::F32, &Device::Cpu)?)?;
    /// assert_eq!([y_hat[0].dims(), y_hat[1].dims()], [[3, 2], [2, 2]]);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If a replica fails; the message names it. The network can train on.
    pub fn forward(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let outputs = self.on_each(self.scatter(x, x)?, |replica, (x, _)| match x.dim(0)? {
            0 => Ok(None),
            _ => replica.infer(&x).map(Some),
        })?;
        Ok(outputs.into_iter().flatten().collect())
    }

    /// Everything that device 0 holds, parameters and buffers, in the network's order and under
    /// PyTorch's names.
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        let entries = self.states[0].all().iter();
        entries
            .map(|(name, var)| Ok((name.clone(), devices::with_room(|| var.copy())?.detach())))
            .collect()
    }

    /// Sets parameters and buffers of all replicas by their names, as [`state_dict`](Self::state_dict) has them.
    ///
    /// ```
    /// # use candle_core::Tensor;
    /// # use concise::{DataParallel, Initializer, layers::Linear};
    /// let net = DataParallel::new(&d2l::devices(2)?, Initializer::Normal(0.01), 0, |vb| {
    ///     Linear::new(2, 1, vb.pp("fc"))
    /// })?;
    /// let mut state = net.state_dict()?;
    /// state[0].1 = state[0].1.zeros_like()?; // fc.weight
    /// net.load_state_dict(&state)?;
    /// assert_eq!(net.parameter("fc.weight", 1)?.to_vec2::<f32>()?, [[0.0, 0.0]]);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// Names a tensor that is missing, that the network does not have, or that has another shape. Then nothing was
    /// changed.
    pub fn load_state_dict(&self, state: &[(String, Tensor)]) -> Result<()> {
        let own = self.states[0].all().iter();
        let own = own.map(|(name, var)| (name.clone(), var.as_tensor().clone()));
        let own = own.collect::<Vec<_>>();
        let tensors = training::weights::take(state.iter().cloned().collect(), &own)?;
        for state in &*self.states {
            for ((name, var), tensor) in state.all().iter().zip(&tensors) {
                let tensor = d2l::to_device(tensor, var.device())?;
                var.set(&tensor).with_context(|| name.clone())?;
            }
        }
        self.begin_alike()
    }

    /// Writes parameters and buffers to a safetensors file, under PyTorch's names.
    ///
    /// ```
    /// # use concise::{DataParallel, Initializer, layers::Linear};
    /// let net = |seed| {
    ///     let devices = d2l::devices(2)?;
    ///     DataParallel::new(&devices, Initializer::Normal(0.01), seed, |vb| Linear::new(2, 1, vb))
    /// };
    /// let (folder, first, second) = (tempfile::tempdir()?, net(0)?, net(1)?);
    /// let best = folder.path().join("best.safetensors");
    /// first.save(&best)?;
    /// second.load(&best)?;
    /// let weight = |net: &DataParallel| anyhow::Ok(net.parameter("weight", 1)?.to_vec2::<f32>()?);
    /// assert_eq!(weight(&first)?, weight(&second)?);
    /// # anyhow::Ok(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        training::weights::save(path.as_ref(), &self.state_dict()?)
    }

    /// Reads what [`save`](Self::save) wrote, or PyTorch's `safetensors.torch.save_file`.
    ///
    /// # Errors
    /// If the file cannot be read; and as [`load_state_dict`](Self::load_state_dict).
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        let own = self.state_dict()?;
        let names = own.iter().map(|(name, _)| name.clone());
        let tensors = training::weights::load(path.as_ref(), &own)?;
        self.load_state_dict(&names.zip(tensors).collect::<Vec<_>>())
    }

    /// [`BadInput`], if processes that can speak to each other begin with other parameters.
    fn begin_alike(&self) -> Result<()> {
        self.check_processes()
            .map_err(|error| match error.is::<collective::Error>() {
                true => error,
                false => BadInput::from(error).into(),
            })
    }

    /// What each replica gets of a minibatch, in proportion; they add up to 1.
    pub fn split(&self) -> Vec<f64> {
        let weights = self.weights();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    pub(crate) fn set_split(&self, weights: Vec<f64>) {
        *self.weights() = weights;
    }

    fn weights(&self) -> MutexGuard<'_, Vec<f64>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the next trainer, from 1.
    pub(crate) fn next_trainer(&self) -> usize {
        1 + self.trainers.fetch_add(1, Ordering::Relaxed)
    }

    /// Splits a minibatch into a shard (X, y) for each replica, on its device.
    pub(crate) fn scatter(&self, x: &Tensor, y: &Tensor) -> Result<Vec<(Tensor, Tensor)>> {
        let weights = self.weights().clone();
        let split = || split_by_weights(x, y, &self.devices, &weights);
        let (x_shards, y_shards) = d2l::on_devices("split", &self.devices, split)?;
        Ok(x_shards.into_iter().zip(y_shards).collect())
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

    /// Runs `job` on the first replica.
    pub(crate) fn on_first<T: Send + 'static>(
        &self,
        job: impl Fn(&mut Replica) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let mut results = self.on_each(vec![()], move |replica, ()| job(replica))?;
        results.pop().context("there is no replica")
    }
}

/// Says once that a build is slow.
fn warn_once() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        if !functional::OPTIMIZED {
            eprintln!(
                "concise: compiled without optimization, so training takes many times as long. Build with \
                 --release, or with the lines for Cargo.toml in notebooks-md/your-own-project.md"
            );
        }
    });
}

/// The seats of each replica among the others, those of other processes as well.
fn seats(processes: &Processes, how: &Replication, devices: &[Device]) -> Result<Vec<Seats>> {
    if how.allreduce != Algorithm::Nccl
        && how.reduce_on == ReduceOn::Device
        && let Some(line) = collective::connect(devices)
    {
        eprintln!("concise: {line}");
    }
    let k = devices.len();
    let options = collective::Options {
        algorithm: how.allreduce,
        timeout: how.timeout,
        link: how.link,
        make_room: Some(devices::give_back_memory),
    };
    let group = || {
        let members = match processes.channel()? {
            None => collective::group(k, options),
            Some(world) => collective::group_in(world, k, options),
        };
        anyhow::Ok(members.into_iter())
    };
    let mut norms = how.sync_bn.then(group).transpose()?;
    let seats = group()?.map(|gradients| Seats {
        gradients,
        norms: norms.as_mut().and_then(Iterator::next),
    });
    Ok(seats.collect())
}
