//! The section's training function.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use d2l::{BadInput, Book, Run, Summary, say, synchronize};
use functional::cross_entropy;

use crate::{
    DataParallel, Initializer, Options, Processes, Replication, Sgd, Trainer,
    evaluate_accuracy_gpus, resnet18,
};

/// What the book sets for this section: minibatch and learning rate grow with the devices.
pub const BOOK: Book = Book {
    program: "concise",
    section: "Concise Implementation for Multiple GPUs: ResNet-18 on Fashion-MNIST, data-parallel",
    network: "ResNet-18",
    batch_size: |num_gpus| 256 * num_gpus,
    lr: |num_gpus| 0.1 * num_gpus as f64,
};

const INIT: Initializer = Initializer::Normal(0.01);

const SHORT_RUN: &str = "; for a short run:\n\
    --limit-train 6000 --limit-test 1000 --epochs 1 --batch-size 64 --lr 0.05";

/// Trains ResNet-18 as the options say; the clock does not include the evaluation.
///
/// ```no_run
/// let options = d2l::Options { gpus: Some(2), ..d2l::Options::default() }; // the book's
/// let summary = concise::train(&options.into())?;
/// println!("{:.2}", summary.test_acc[9]);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If an option, the data or the parameters cannot be used, or a step or a file fails.
pub fn train(options: &Options) -> Result<Summary> {
    options.check().map_err(BadInput::from)?;
    let processes = Arc::new(options.processes()?);
    let result = train_among(&processes, options);
    let processes = Arc::into_inner(processes).expect("the network is gone");
    processes.finish(result)
}

/// As [`train`], in one process of all.
fn train_among(processes: &Arc<Processes>, options: &Options) -> Result<Summary> {
    let process = processes.process()?;
    let mut run = Run::start_in(process, &options.run, &BOOK)?;
    run.train_iter = run.train_iter.in_groups_of(options.accumulate);
    processes.check(&run.devices)?;
    let how = options.replication();
    how.check(run.devices.len()).map_err(BadInput::from)?;
    let sgd = options.sgd(run.lr);
    let settings = options.settings(&run.devices);
    settings.into_iter().for_each(|line| run.depends_on(line));
    processes.agree(
        "settings",
        &format!("{}\n{how:?}\n{}", run.settings(), run.keeping()),
    )?;
    announce(&run, &how, process.of)?;
    let network = |vb: VarBuilder<'_>| resnet18(10, vb);
    let net = DataParallel::among(processes, how, &run.devices, INIT, run.seed, network)?;
    if let Some(line) = net.all_reduce()? {
        say(format_args!("{line}"));
    }
    let state = run.init(net.state_dict()?)?;
    net.load_state_dict(&state)?;
    let trainer = Trainer::new(&net, cross_entropy, sgd);
    let mut trainer = trainer.accumulate(options.accumulate);
    trainer.go_on(run.take_rest())?;
    for epoch in run.epochs() {
        let measures = trainer.measures();
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let step = trainer.step(&x, &y)?;
            run.step(step.loss, &trainer)?;
        }
        trainer.flush()?;
        synchronize(&run.devices)?;
        run.timer.stop();
        run.epoch(evaluate_accuracy_gpus(&net, &run.test_iter)?, &trainer)?;
        if measures && !trainer.measures() {
            say(format_args!("split as measured: {:.2?}", net.split()));
        }
    }
    run.finish(&trainer)
}

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
    let network = |vb: VarBuilder<'_>| resnet18(10, vb);
    let net = DataParallel::with(how.clone(), &run.devices, INIT, run.seed, network)?;
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
