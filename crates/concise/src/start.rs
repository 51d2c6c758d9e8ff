//! What a run of this section does before its first step: all processes agree on it, a reader without a GPU is told
//! how long it will take, and the network takes up what a checkpoint or `--init` has.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use functional::{Sgd, cross_entropy};
use run::{BadInput, Book, Run, say};

use crate::options::Options;
use crate::replication::{DataParallel, Initializer, Processes, Replication, Trainer};
use crate::resnet::resnet18;

/// The run, once all processes have the same settings.
///
/// # Errors
/// If an option or the data cannot be used, or a process has other settings.
pub(crate) fn start(options: &Options, book: &Book, processes: &Processes) -> Result<Run> {
    let process = processes.process()?;
    let mut run = Run::start_in(process, &options.run, book)?;
    run.train_iter = run.train_iter.in_groups_of(options.accumulate);
    let mut how = options.replication();
    how.check(run.devices.len()).map_err(BadInput::from)?;
    how.allreduce = processes.choose(&how, &run.devices)?;
    let settings = options.settings(&run, how.allreduce);
    settings.into_iter().for_each(|line| run.depends_on(line));
    processes.agree(
        "settings",
        &format!("{}\n{how:?}\n{}", run.settings(), run.keeping()),
    )?;
    announce(&run, &how, process.of)?;
    Ok(run)
}

/// Gives the network the parameters with which the run begins, and prints how its replicas sum their gradients.
///
/// # Errors
/// If the parameters that were named do not fit the network, or a replica fails.
pub(crate) fn load(run: &mut Run, net: &DataParallel) -> Result<()> {
    if let Some(line) = net.all_reduce()? {
        say(format_args!("{line}"));
    }
    let own = net.state_dict()?;
    let names = own.iter().map(|(name, _)| name.clone());
    let state = names.zip(run.init(own.clone())?);
    net.load_state_dict(&state.collect::<Vec<_>>())
}

const SHORT_RUN: &str = "; for a short run:\n\
    --limit-train 6000 --limit-test 1000 --epochs 1 --batch-size 64 --lr 0.05";

/// Tells a reader without a GPU how long an epoch will take, and what makes a run short; nothing of an epoch that is
/// over nearly as soon as its time is measured.
fn announce(run: &Run, how: &Replication, processes: usize) -> Result<()> {
    let (epoch, measured) = (run.train_iter.num_examples(), measured_examples(run));
    if !run.devices.iter().all(Device::is_cpu) || epoch < 10 * measured {
        return Ok(());
    }
    // each process has its part of them
    let seconds = time_per_example(run, how)?.as_secs_f64() * epoch as f64 / processes as f64;
    let short = match seconds {
        s if s < 120.0 => "",
        _ => SHORT_RUN,
    };
    let time = human(seconds);
    say(format_args!(
        "ResNet-18 on the CPU: an epoch will take about {time}{short}"
    ));
    Ok(())
}

/// Times a step of a few examples, after one that warms up, on a network that is thrown away.
fn time_per_example(run: &Run, how: &Replication) -> Result<Duration> {
    let (network, init) = (|vb: VarBuilder<'_>| resnet18(10, vb), Initializer::Layers);
    let net = DataParallel::with(how.clone(), &run.devices, init, run.seed, network)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.0));
    let examples = measured_examples(run);
    let x = Tensor::zeros((examples, 1, 28, 28), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(examples, DType::U32, &Device::Cpu)?;
    trainer.step(&x, &y)?;
    let start = Instant::now();
    trainer.step(&x, &y)?;
    Ok(start.elapsed() / examples as u32)
}

fn measured_examples(run: &Run) -> usize {
    run.batch_size.min(32 * run.devices.len())
}

fn human(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} seconds"),
        s if s < 5400.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{:.1} hours", s / 3600.0),
    }
}
