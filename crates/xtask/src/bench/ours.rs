//! Our contender: a step of `scratch` or of `concise`, called as a user of the library calls it.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use clap::Args;
use concise::{DataParallel, Initializer, Sgd, Trainer};
use d2l::share_cores;
use devices::{DeviceKind, devices_of_kind, synchronize};
use run::BatchLoss;

use super::networks::layers;
use super::serve::serve;
use super::work::{Example, Network};

/// A learning rate so small that the weights stay small numbers for as long as it takes.
pub const LR: f64 = 0.01;

/// Which step.
#[derive(Args, Debug)]
pub struct Contend {
    #[arg(long, default_value_t = DeviceKind::Cpu)]
    device: DeviceKind,
    #[arg(long)]
    replicas: usize,
    #[arg(long)]
    threads: Option<usize>,
    #[arg(long, default_value = "tf32", value_parser = run::precision())]
    precision: run::Precision,
    /// cuDNN's first choice of algorithms, as with `--deterministic` of the programs.
    #[arg(long)]
    deterministic: bool,
    network: Network,
    batch: usize,
}

/// Does steps on request. On GPUs it waits for them at the end of a turn, not after each step.
///
/// # Errors
/// If a step fails.
pub fn contend(job: &Contend) -> Result<()> {
    functional::set_precision(job.precision);
    functional::set_deterministic(job.deterministic);
    share_cores(job.threads, job.replicas);
    let devices = devices_of_kind(job.device, Some(job.replicas))?;
    let (x, y) = minibatch_on(&devices[0], job.network, job.batch)?;
    with_step(job.network, &devices, |step| {
        serve(&version(), |steps| {
            let mut timed = |n| timed(&devices, n, || step(&x, &y));
            if devices[0].is_cpu() {
                (0..steps).map(|_| timed(1)).collect()
            } else {
                Ok(vec![timed(steps)?])
            }
        })
    })
}

/// The milliseconds of one of `n` steps.
///
/// # Errors
/// If a step fails, or the last loss is no finite number: then what is timed is not training.
pub fn timed(
    devices: &[Device],
    n: usize,
    mut step: impl FnMut() -> Result<BatchLoss>,
) -> Result<f64> {
    synchronize(devices)?;
    let start = Instant::now();
    let mut loss = None;
    for _ in 0..n {
        loss = Some(step()?);
    }
    synchronize(devices)?;
    let loss = loss.context("no step was asked for")?.mean()?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3 / n as f64;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok(milliseconds)
}

/// A training step on a minibatch (X, y).
pub type TrainStep<'a> = dyn FnMut(&Tensor, &Tensor) -> Result<BatchLoss> + 'a;

/// Hands `f` the training step of a network with a replica on each device.
///
/// # Errors
/// If the network cannot be made, or `f` fails.
pub fn with_step(
    network: Network,
    devices: &[Device],
    f: impl FnOnce(&mut TrainStep<'_>) -> Result<()>,
) -> Result<()> {
    match network {
        Network::Lenet => {
            let params = scratch::init_params(0)?;
            let device_params = scratch::replicas(&params, devices)?;
            f(&mut |x, y| {
                let ls = scratch::train_batch(x, y, &device_params, devices, LR)?;
                Ok(BatchLoss::new(ls, x.dim(0)?))
            })
        }
        _ => {
            let init = Initializer::Layers;
            let net = DataParallel::new(devices, init, 0, move |vb| layers(network, vb))?;
            let mut trainer = Trainer::new(&net, network.loss(), Sgd::new(LR));
            f(&mut |x, y| Ok(trainer.step(x, y)?.loss))
        }
    }
}

/// The project's version and candle's.
pub fn version() -> String {
    let lock = include_str!("../../../../Cargo.lock");
    let entry = lock.split_once("name = \"candle-core\"\nversion = \"");
    let candle = entry.and_then(|(_, rest)| rest.split('"').next());
    let version = env!("CARGO_PKG_VERSION");
    format!("ours {version} on candle {}", candle.unwrap_or("?"))
}

/// A [`minibatch`] on a device.
///
/// # Errors
/// If the device fails.
pub fn minibatch_on(
    device: &Device,
    network: Network,
    batch: usize,
) -> candle_core::Result<(Tensor, Tensor)> {
    let (x, y) = minibatch(network, batch)?;
    Ok((x.to_device(device)?, y.to_device(device)?))
}

/// A minibatch of noise for a network.
pub fn minibatch(network: Network, batch: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let rng = &mut d2l::rng(1);
    match network.example() {
        Example::Image(channels, rows, columns) => {
            let x = d2l::normal(rng, 1.0, (batch, channels, rows, columns))?;
            let y = d2l::uniform(rng, 0.0, 10.0, batch)?.to_dtype(DType::U32)?;
            Ok((x, y))
        }
        Example::Characters(count) => {
            let mut characters =
                || d2l::uniform(rng, 0.0, 128.0, (batch, count))?.to_dtype(DType::U32);
            Ok((characters()?, characters()?))
        }
        Example::Noise => {
            let x = d2l::normal(rng, 1.0, (batch, 1, 28, 28))?;
            Ok((x, d2l::normal(rng, 1.0, (batch, 28, 28, 1))?))
        }
    }
}
