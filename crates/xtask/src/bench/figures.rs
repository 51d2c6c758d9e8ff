//! Figures of ours that are no single step: what an epoch costs beside its steps, and how much
//! faster evaluation is than training. Each is taken in a process of its own.

use std::env;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};
use clap::{Args, ValueEnum};
use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus, resnet18};
use d2l::{DeviceKind, synchronize};
use dataset::{Data, DataIter};
use functional::cross_entropy;
use run::Run;

use super::stats::{Summary, short};
use super::{Options, Part};

/// Which figure.
#[derive(Args, Debug)]
pub struct Job {
    name: Name,
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    data: Data,
    /// Training examples, and so many for an evaluation
    #[arg(long)]
    examples: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Epoch,
    EvaluateLenet,
    EvaluateResnet18,
    LossesLenet,
    LossesResnet18,
}

/// A figure of ours: what it is, what it should be, what it is here.
pub struct Figure {
    /// What it is.
    pub what: &'static str,
    /// Where it should be.
    pub goal: &'static str,
    /// Where it is.
    pub found: String,
}

/// Takes the figures that were asked for, in processes of their own.
pub fn all(options: &Options, threads: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if options.has(Part::Epoch) {
        let pairs = take(
            options,
            threads,
            Name::Epoch,
            if options.quick { 10 } else { 235 },
        )?;
        let share = |(epoch, steps): (f64, f64)| 100.0 * (epoch - steps) / epoch;
        let (epoch, steps) = pairs;
        figures.push(Figure {
            what: "time of an epoch of `scratch` outside its steps, such as loading data",
            goal: "at most 5%",
            found: format!(
                "{:.1}% ({} s, of which {} s in steps)",
                share(pairs),
                short(epoch),
                short(steps)
            ),
        });
    }
    if options.has(Part::Evaluation) {
        for (name, what, batches) in [
            (
                Name::EvaluateLenet,
                "LeNet: examples evaluated per second, divided by examples trained per second",
                40,
            ),
            (
                Name::EvaluateResnet18,
                "ResNet-18: examples evaluated per second, divided by examples trained per second",
                4,
            ),
        ] {
            let batches = if options.quick { batches / 4 } else { batches };
            let (evaluated, trained) = take(options, threads, name, batches)?;
            figures.push(Figure {
                what,
                goal: "at least 3",
                found: format!(
                    "{} ({} and {} examples/s)",
                    short(evaluated / trained),
                    short(evaluated),
                    short(trained)
                ),
            });
        }
    }
    if options.has(Part::Losses) {
        for (name, what) in [
            (
                Name::LossesLenet,
                "losses of 20 steps of LeNet, batch 256, lr 0.02, weights ten times the book's, Winograd compared with plain sums",
            ),
            (
                Name::LossesResnet18,
                "losses of 20 steps of ResNet-18, batch 64, Winograd compared with im2col",
            ),
        ] {
            let (winograd, moved) = take(options, threads, name, 20)?;
            figures.push(Figure {
                what,
                goal: "within 0.1%",
                found: format!(
                    "{} apart at most; without Winograd, after a change of the weights in the last place: {}",
                    percent(winograd),
                    percent(moved)
                ),
            });
        }
    }
    Ok(figures)
}

/// Two digits of a share.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let digits = (1.0 - percent.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{percent:.digits$}%")
}

/// Runs a process that prints a figure's two numbers in its last line.
fn take(options: &Options, threads: usize, name: Name, batches: usize) -> Result<(f64, f64)> {
    let word = name.to_possible_value().context("no such figure")?;
    eprintln!("{}", word.get_name());
    let named = || dataset::Options::default().names_a_source();
    let data = match &options.data {
        Some(Data::Dir(dir)) => Some(dir.clone().into_os_string()),
        None if named() => env::var_os(dataset::Name::FashionMnist.env_var()),
        _ => None,
    };
    let mut command = Command::new(env::current_exe()?);
    command.args(["figure", word.get_name()]);
    command.args(["--threads", &threads.to_string(), "--data"]);
    command.arg(data.unwrap_or("synthetic".into()));
    command.args(["--examples", &(256 * batches).to_string()]);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        word.get_name(),
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().and_then(|line| line.split_once(' '));
    let (a, b) = last.with_context(|| format!("it said {text:?}"))?;
    Ok((a.parse()?, b.parse()?))
}

/// Takes a figure and prints its two numbers.
///
/// # Errors
/// If the data cannot be read or a step fails.
pub fn figure(job: &Job) -> Result<()> {
    let options = run::Options {
        gpus: Some(job.threads),
        threads: Some(job.threads),
        data: Some(job.data.clone()),
        limit_train: job.examples,
        limit_test: job.examples,
        device: DeviceKind::Cpu,
        batch_size: Some(256),
        lr: Some(0.05),
        epochs: 3,
        ..run::Options::default()
    };
    let (a, b) = match job.name {
        Name::Epoch => epoch(&options)?,
        Name::EvaluateLenet => evaluate_lenet(&options)?,
        Name::EvaluateResnet18 => evaluate_resnet18(&options)?,
        Name::LossesLenet => losses_lenet(&options)?,
        Name::LossesResnet18 => losses_resnet18(&options)?,
    };
    println!("{a} {b}");
    Ok(())
}

/// Seconds of an epoch of `scratch::train` without its evaluation, and of the steps in it. Runs the
/// same loop with a stopwatch around the steps. Returns the times of the epoch with the median ratio
/// of the two.
fn epoch(options: &run::Options) -> Result<(f64, f64)> {
    let mut run = Run::start(options, &scratch::BOOK)?;
    let params = scratch::init_params(run.seed)?;
    run.init(Vec::new())?;
    let devices = run.devices.clone();
    let copies = devices
        .iter()
        .map(|device| scratch::get_params(&params, device));
    let device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
    let mut epochs = Vec::new();
    for epoch in run.epochs() {
        let mut in_steps = 0.0;
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let start = Instant::now();
            let l = scratch::train_batch(&x, &y, &device_params, &devices, run.lr)?;
            in_steps += start.elapsed().as_secs_f64();
            run.step(l, &device_params)?;
        }
        synchronize(&devices)?;
        epochs.push((run.timer.stop(), in_steps));
        run.epoch(0.0, &device_params)?;
    }
    epochs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    Ok(epochs[epochs.len() / 2])
}

/// Examples a second that LeNet evaluates, and that it trains.
fn evaluate_lenet(options: &run::Options) -> Result<(f64, f64)> {
    let run = Run::start(options, &scratch::BOOK)?;
    let (params, devices) = (scratch::init_params(run.seed)?, &run.devices);
    let copies = devices
        .iter()
        .map(|device| scratch::get_params(&params, device));
    let device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
    let trained = rate(&run.train_iter, || {
        each(&run.train_iter, |x, y| {
            scratch::train_batch(x, y, &device_params, devices, run.lr)?;
            Ok(())
        })
    })?;
    let evaluated = rate(&run.test_iter, || {
        let net = |x: &Tensor| scratch::lenet(x, &device_params[0]);
        d2l::evaluate_accuracy_gpu(net, &run.test_iter, &devices[0])?;
        Ok(())
    })?;
    Ok((evaluated, trained))
}

/// Examples a second that ResNet-18 evaluates, and that it trains.
fn evaluate_resnet18(options: &run::Options) -> Result<(f64, f64)> {
    let run = Run::start(options, &concise::BOOK)?;
    let init = Initializer::Normal(0.01);
    let net = DataParallel::new(&run.devices, init, run.seed, |vb| resnet18(10, vb))?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(run.lr));
    let trained = rate(&run.train_iter, || {
        each(&run.train_iter, |x, y| {
            trainer.step(x, y)?;
            Ok(())
        })
    })?;
    let evaluated = rate(&run.test_iter, || {
        evaluate_accuracy_gpus(&net, &run.test_iter)?;
        Ok(())
    })?;
    Ok((evaluated, trained))
}

/// LeNet's [`apart`], from weights ten times the book's, with which it learns from the first step on.
fn losses_lenet(options: &run::Options) -> Result<(f64, f64)> {
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

/// ResNet-18's [`apart`].
fn losses_resnet18(options: &run::Options) -> Result<(f64, f64)> {
    let options = run::Options {
        batch_size: Some(64),
        limit_train: Some(20 * 64),
        ..options.clone()
    };
    let run = Run::start(&options, &concise::BOOK)?;
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

/// Examples a second of passes over `data`: the middle of three, after one that warms up.
fn rate(data: &DataIter, mut pass: impl FnMut() -> Result<()>) -> Result<f64> {
    pass()?;
    let mut seconds = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        pass()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(data.num_examples() as f64 / Summary::of(&seconds).median)
}
