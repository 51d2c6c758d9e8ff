//! Our contender on a GPU: steps of `scratch` or `concise`, called as a user calls them. It does as many as it is asked
//! to and waits for the GPU at the end, not after each.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use clap::Args;
use devices::{DeviceKind, devices_of_kind, synchronize};
use run::BatchLoss;

use crate::bench::ours::{minibatch_on, version, with_step};
use crate::bench::serve::serve_turns;
use crate::bench::work::Network;

/// Which steps.
#[derive(Args, Debug)]
pub struct ContendGpu {
    #[arg(long)]
    replicas: usize,
    #[arg(long, value_parser = run::precision())]
    precision: run::Precision,
    /// cuDNN's first choice of algorithms, as with `--deterministic` of the programs.
    #[arg(long)]
    deterministic: bool,
    network: Network,
    batch: usize,
}

/// Does steps on request.
///
/// # Errors
/// If a step fails.
pub fn contend(job: &ContendGpu) -> Result<()> {
    functional::set_precision(job.precision);
    functional::set_deterministic(job.deterministic);
    let devices = devices_of_kind(DeviceKind::Cuda, Some(job.replicas))?;
    let (x, y) = minibatch_on(&devices[0], job.network, job.batch)?;
    with_step(job.network, &devices, |step| {
        serve_turns(&version(), |n| {
            Ok(vec![timed(&devices, n, || step(&x, &y))?])
        })
    })
}

/// The milliseconds of one of `n` steps.
///
/// # Errors
/// If a step fails, or the last loss is no finite number.
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
    let milliseconds = start.elapsed().as_secs_f64() * 1e3 / n as f64;
    let loss = loss.context("no step was asked for")?.mean()?;
    ensure!(loss.is_finite(), "the loss is {loss}");
    Ok(milliseconds)
}
