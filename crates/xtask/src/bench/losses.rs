//! How much Winograd's algorithm changes the losses of twenty steps, compared with a change of each weight in its last
//! place. Each network trains in a process of its own.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use clap::Args;
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
use d2l::DeviceKind;
use dataset::{Data, DataIter};
use functional::cross_entropy;
use run::Run;

use super::Options;
use super::work::Network;

/// Which losses.
#[derive(Args, Debug)]
pub struct Job {
    network: Network,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    data: Data,
}

/// The table of the report, of losses in processes of their own.
///
/// # Errors
/// If a process fails.
pub fn table(options: &Options, threads: usize) -> Result<String> {
    let mut text = String::from(
        "\n## Losses with Winograd's algorithm\n\n\
         The largest relative difference of a loss in 20 steps. LeNet: batch 256, lr 0.02, weights ten times the \
         book's. ResNet-18: batch 64, lr 0.01.\n\n\
         | | goal | compared with im2col | im2col, after a change of the weights in the last place |\n\
         |---|--:|--:|--:|\n",
    );
    for (network, name) in [(Network::Lenet, "LeNet"), (Network::Resnet18, "ResNet-18")] {
        let (winograd, moved) = in_a_process(options, threads, network)?;
        let (winograd, moved) = (percent(winograd), percent(moved));
        text += &format!("| {name} | 0.1% | {winograd} | {moved} |\n");
    }
    Ok(text)
}

/// Two digits of a share.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let digits = (1.0 - percent.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{percent:.digits$}%")
}

/// Starts a process that prints two shares in its last line.
fn in_a_process(options: &Options, threads: usize, network: Network) -> Result<(f64, f64)> {
    let named = || dataset::Options::default().names_a_source();
    let data = match &options.data {
        Some(Data::Dir(dir)) => Some(dir.clone().into_os_string()),
        None if named() => env::var_os(dataset::Name::FashionMnist.env_var()),
        _ => None,
    };
    let mut command = Command::new(env::current_exe()?);
    command.args(["losses", network.word(), "--threads", &threads.to_string()]);
    command
        .arg("--data")
        .arg(data.unwrap_or("synthetic".into()));
    let output = command.stderr(Stdio::inherit()).output()?;
    let word = network.word();
    ensure!(
        output.status.success(),
        "losses of {word}: {}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| line.split_once(' '));
    let (a, b) = last.with_context(|| format!("losses of {word}: printed {text:?}"))?;
    Ok((a.parse()?, b.parse()?))
}

/// Trains, and prints the two shares.
///
/// # Errors
/// If the data cannot be read or a step fails.
pub fn losses(job: &Job) -> Result<()> {
    let options = |batch_size| run::Options {
        gpus: Some(job.threads),
        threads: Some(job.threads),
        data: Some(job.data.clone()),
        limit_train: Some(20 * batch_size),
        limit_test: Some(batch_size),
        device: DeviceKind::Cpu,
        batch_size: Some(batch_size),
        ..run::Options::default()
    };
    let (winograd, moved) = match job.network {
        Network::Lenet => lenet(&options(256))?,
        Network::Resnet18 => resnet(&options(64))?,
    };
    println!("{winograd} {moved}");
    Ok(())
}

/// From weights ten times the book's, with which it learns from the first step on.
fn lenet(options: &run::Options) -> Result<(f64, f64)> {
    let run = Run::start(options, &scratch::BOOK)?;
    apart(|noise| {
        let params = scratch::init_params(run.seed)?;
        let params = params.iter().map(|p| noisy(&(p * 10.0)?, noise));
        let params = params.collect::<candle_core::Result<Vec<_>>>()?;
        let copies = run.devices.iter().map(|d| scratch::get_params(&params, d));
        let device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
        let mut losses = Vec::new();
        each(&run.train_iter, |x, y| {
            let l = scratch::train_batch(x, y, &device_params, &run.devices, 0.02)?;
            losses.push(l.mean()?);
            Ok(())
        })?;
        Ok(losses)
    })
}

fn resnet(options: &run::Options) -> Result<(f64, f64)> {
    let run = Run::start(options, &concise::BOOK)?;
    apart(|noise| {
        let init = Initializer::Xavier(3.0);
        let net = DataParallel::new(&run.devices, init, run.seed, |vb| resnet18(10, vb))?;
        let noisy = |(_, t): (String, Tensor)| match t.dtype() {
            DType::F32 => noisy(&t, noise),
            _ => Ok(t),
        };
        let state = net.state_dict()?.into_iter().map(noisy);
        net.load_state_dict(&state.collect::<candle_core::Result<Vec<_>>>()?)?;
        let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
        let mut losses = Vec::new();
        each(&run.train_iter, |x, y| {
            losses.push(trainer.step(x, y)?.loss.mean()?);
            Ok(())
        })?;
        Ok(losses)
    })
}

/// How far apart the losses of the same steps are, at most and relatively: with Winograd's algorithm
/// from those without, and, to compare, those without from themselves after each weight moved by
/// about one in its last place. `steps` takes the relative size of that noise.
fn apart(steps: impl Fn(f64) -> Result<Vec<f32>>) -> Result<(f64, f64)> {
    let winograd = steps(0.0)?;
    functional::set_winograd(false);
    let plain = steps(0.0)?;
    let moved = steps(f64::from(f32::EPSILON))?;
    let most = |others: Vec<f32>| {
        let pairs = others.iter().zip(&plain);
        let apart = pairs.map(|(a, b)| f64::from((a - b).abs() / b));
        // not `max`, which would pass over NaN
        apart.fold(0.0, |most, v| if v <= most { most } else { v })
    };
    Ok((most(winograd), most(moved)))
}

/// A tensor with relative noise of this standard deviation.
fn noisy(t: &Tensor, noise: f64) -> candle_core::Result<Tensor> {
    t + (t * d2l::normal(&mut d2l::rng(1), noise, t.shape())?)?
}

fn each(data: &DataIter, mut step: impl FnMut(&Tensor, &Tensor) -> Result<()>) -> Result<()> {
    for batch in data.epoch(1) {
        let (x, y) = batch?;
        step(&x, &y)?;
    }
    Ok(())
}
