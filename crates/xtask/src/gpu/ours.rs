//! Our contender on a GPU: steps or epochs of `scratch` or `concise`, called as a user calls them. It
//! does as many as it is asked to and waits for the GPU at the end, not after each.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use clap::{Args, ValueEnum};
use dataset::Data;
use devices::{DeviceKind, devices_of_kind, synchronize};
use run::{BatchLoss, Gpu, gpu};

use crate::bench::ours::{TrainStep, minibatch, version, with_step};
use crate::bench::serve::serve_turns;
use crate::bench::stats::Summary;
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
    how: How,
    network: Network,
    batch: usize,
}

/// Kind of work.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// Steps on request.
    Steps,
    /// Whole epochs of 60,000 images on request, loading and all.
    Epochs,
    /// Thirty steps, and what they took of the GPU's memory and of the host's time.
    Alone,
}

/// Does steps or epochs on request.
///
/// # Errors
/// If a step fails.
pub fn contend(job: &ContendGpu) -> Result<()> {
    functional::set_precision(job.precision);
    functional::set_deterministic(job.deterministic);
    let devices = devices_of_kind(DeviceKind::Cuda, Some(job.replicas))?;
    with_step(job.network, &devices, |step| run(job, &devices, step))
}

fn run(job: &ContendGpu, devices: &[Device], step: &mut TrainStep<'_>) -> Result<()> {
    let (x, y) = minibatch(job.network, job.batch)?;
    let x = x.to_device(&devices[0])?;
    let y = y.to_device(&devices[0])?;
    match job.how {
        How::Alone => alone(devices, || step(&x, &y)),
        How::Steps => serve_turns(&version(), |n| timed(devices, n, || step(&x, &y))),
        How::Epochs => {
            let options = dataset::Options {
                data: Some(Data::Synthetic),
                ..dataset::Options::default()
            };
            let (train_iter, _) = dataset::load(&options)?.iters(job.batch)?;
            let train_iter = train_iter.on_device(&devices[0])?;
            let mut number = 0;
            let mut epoch = || {
                number += 1;
                let mut loss = None;
                for batch in train_iter.epoch(number) {
                    let (x, y) = batch?;
                    loss = Some(step(&x, &y)?);
                }
                loss.context("an epoch without a step")
            };
            serve_turns(&version(), |n| timed(devices, n, &mut epoch))
        }
    }
}

/// The milliseconds of one of `n`.
fn timed(
    devices: &[Device],
    n: usize,
    mut step: impl FnMut() -> Result<BatchLoss>,
) -> Result<Vec<f64>> {
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
    Ok(vec![milliseconds])
}

/// Says how many MiB of the GPU are taken, and the milliseconds for which a step keeps the host busy.
fn alone(devices: &[Device], mut step: impl FnMut() -> Result<BatchLoss>) -> Result<()> {
    let mut busy = Vec::new();
    for _ in 0..30 {
        synchronize(devices)?;
        let start = Instant::now();
        step()?;
        busy.push(start.elapsed().as_secs_f64() * 1e3);
    }
    synchronize(devices)?;
    let Gpu { free, total, .. } = gpu(&devices[0]).context("no GPU")?;
    let busy = Summary::of(&busy[10..]).median; // the first ones loaded libraries
    println!("{} {busy}", (total - free) >> 20);
    Ok(())
}
