//! `bench checks`: what it takes to compare the parameters of all replicas after an epoch, beside the epoch.

use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use clap::Args;
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
use functional::cross_entropy;
use run::Trained;

use super::machine::Load;
use super::stats::Summary;

/// What `bench checks` can be told.
#[derive(Args, Debug)]
pub struct Options {
    /// Number of timed steps; a comparison follows each step
    #[arg(long, value_name = "N", default_value_t = 15)]
    steps: usize,
}

/// Training examples of Fashion-MNIST.
const EXAMPLES: usize = 60_000;

/// Measures and prints a table.
///
/// # Errors
/// If a step fails.
pub fn checks(options: &Options) -> Result<()> {
    Load::now().warn();
    println!("| network | replicas | step (ms) | comparison (ms) | of an epoch |");
    println!("|---|---|---|---|---|");
    for k in [2, 4] {
        d2l::share_cores(None, k);
        row("LeNet, 256", k, 256, &lenet(k, 256, options.steps)?);
        row("ResNet-18, 64", k, 64, &resnet(k, 64, options.steps)?);
    }
    Ok(())
}

/// Seconds of steps, and of comparisons between them.
type Times = (Vec<f64>, Vec<f64>);

fn row(network: &str, k: usize, batch_size: usize, (steps, checks): &Times) {
    let (step, check) = (Summary::of(steps), Summary::of(checks));
    let epoch = step.median * EXAMPLES.div_ceil(batch_size) as f64;
    println!(
        "| {network} | {k} | {:.2} ({:.2}–{:.2}) | {:.3} ({:.3}–{:.3}) | {:.4}% |",
        step.median * 1e3,
        step.min * 1e3,
        step.max * 1e3,
        check.median * 1e3,
        check.min * 1e3,
        check.max * 1e3,
        check.median / epoch * 100.0
    );
}

fn minibatch(batch_size: usize) -> Result<(Tensor, Tensor)> {
    let x = d2l::uniform(&mut d2l::rng(0), 0.0, 1.0, (batch_size, 1, 28, 28))?;
    Ok((x, Tensor::zeros(batch_size, DType::U32, &Device::Cpu)?))
}

/// Takes steps with a comparison after each, of which the first of both warms up.
fn alternate<T: Trained>(
    steps: usize,
    trained: &mut T,
    mut step: impl FnMut(&mut T) -> Result<()>,
) -> Result<Times> {
    let names: Vec<String> = (0..trained.tensors()?.len())
        .map(|i| i.to_string())
        .collect();
    let mut times = Times::default();
    for i in 0..=steps {
        let start = Instant::now();
        step(trained)?;
        let stepped = start.elapsed().as_secs_f64();
        trained.check_replicas(&names)?;
        if i > 0 {
            times.0.push(stepped);
            times.1.push(start.elapsed().as_secs_f64() - stepped);
        }
    }
    Ok(times)
}

fn lenet(k: usize, batch_size: usize, steps: usize) -> Result<Times> {
    let devices = vec![Device::Cpu; k];
    let params = scratch::init_params(0)?;
    let copies = devices
        .iter()
        .map(|device| scratch::get_params(&params, device));
    let mut device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
    let (x, y) = minibatch(batch_size)?;
    alternate(steps, &mut device_params, |device_params| {
        scratch::train_batch(&x, &y, device_params, &devices, 0.01)?;
        Ok(())
    })
}

fn resnet(k: usize, batch_size: usize, steps: usize) -> Result<Times> {
    let devices = vec![Device::Cpu; k];
    let net = DataParallel::new(&devices, Initializer::Normal(0.01), 0, |vb| {
        resnet18(10, vb)
    })?;
    let (x, y) = minibatch(batch_size)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
    alternate(steps, &mut trainer, |trainer| {
        trainer.step(&x, &y)?;
        Ok(())
    })
}
