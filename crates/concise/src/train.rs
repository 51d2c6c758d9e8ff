//! The section's training function.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use d2l::{Book, Options, Run, Summary, say, synchronize};
use functional::cross_entropy;

use crate::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus, resnet18};

/// What the book sets for this section: minibatch and learning rate grow with the devices.
pub const BOOK: Book = Book {
    program: "concise",
    section: "Concise Implementation for Multiple GPUs: ResNet-18 on Fashion-MNIST, data-parallel",
    network: "ResNet-18",
    batch_size: |num_gpus| 256 * num_gpus,
    lr: |num_gpus| 0.1 * num_gpus as f64,
    plain_sgd: false,
};

const INIT: Initializer = Initializer::Normal(0.01);

const SHORT_RUN: &str = "; for a short run: \
    --limit-train 6000 --limit-test 1000 --epochs 1 --batch-size 64 --lr 0.05";

/// Trains ResNet-18 as the options say; the clock does not include the evaluation.
///
/// ```no_run
/// use d2l::Options;
///
/// let summary = concise::train(&Options { gpus: Some(2), ..Options::default() })?; // the book's
/// println!("{:.2}", summary.test_acc[9]);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If an option, the data or the parameters cannot be used, or a step or a file fails.
pub fn train(options: &Options) -> Result<Summary> {
    let mut run = Run::start(options, &BOOK)?;
    let net = DataParallel::new(&run.devices, INIT, run.seed, |vb| resnet18(10, vb))?;
    announce(&run)?;
    let state = run.init(net.state_dict()?)?;
    net.load_state_dict(&state)?;
    let sgd = Sgd {
        lr: run.lr,
        momentum: options.momentum,
        weight_decay: options.weight_decay,
    };
    let mut trainer = Trainer::new(&net, cross_entropy, sgd);
    for epoch in run.epochs() {
        run.timer.start();
        for batch in run.train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let step = trainer.step(&x, &y)?;
            run.step(step.loss)?;
        }
        synchronize(&run.devices)?;
        run.timer.stop();
        run.epoch(evaluate_accuracy_gpus(&net, &run.test_iter)?)?;
    }
    run.finish(&net.state_dict()?)
}

/// Tells a reader without a GPU how long an epoch will take, and what makes a run short.
fn announce(run: &Run) -> Result<()> {
    if !run.devices.iter().all(Device::is_cpu) {
        return Ok(());
    }
    let seconds = time_per_example(run)?.as_secs_f64() * run.train_iter.num_examples() as f64;
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
fn time_per_example(run: &Run) -> Result<Duration> {
    let net = DataParallel::new(&run.devices, INIT, run.seed, |vb| resnet18(10, vb))?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.0));
    let examples = run.batch_size.min(32 * run.devices.len());
    let x = Tensor::zeros((examples, 1, 28, 28), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(examples, DType::U32, &Device::Cpu)?;
    trainer.step(&x, &y)?;
    let start = Instant::now();
    trainer.step(&x, &y)?;
    Ok(start.elapsed() / examples as u32)
}

fn human(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} seconds"),
        s if s < 5400.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{:.1} hours", s / 3600.0),
    }
}
