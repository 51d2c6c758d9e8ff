//! Training with the reader's functions of exercises 1 to 5, beside those of `scratch`.
//!
//! [`agree`] compares a few steps, number by number. [`train`] trains on Fashion-MNIST, on one device and on two of one
//! core each, and writes accuracy, time and speed-up.

use std::io::Write;
use std::iter::zip;
use std::num::NonZeroUsize;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use clap::Args;
use d2l::{Animator, Param};
use dataset::{Data, DataIter};
use run::BatchLoss;

/// The function of exercise 1.
pub type GetParams = fn(&[Tensor], &Device) -> candle_core::Result<Vec<Param>>;

/// The function of exercise 4: images, labels, replicas, devices and the learning rate to the mean loss.
pub type TrainBatch =
    fn(&Tensor, &Tensor, &[Vec<Param>], &[Device], f64) -> candle_core::Result<f32>;

/// The function of exercise 5: replicas, devices and minibatches to the fraction of correct predictions.
pub type Accuracy = fn(&[Vec<Param>], &[Device], &[Minibatch]) -> candle_core::Result<f64>;

/// Images and labels.
pub type Minibatch = (Tensor, Tensor);

/// The functions that a training calls. `train_batch` and `accuracy` call `allreduce` and `split_batch`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Functions {
    pub get_params: GetParams,
    pub train_batch: TrainBatch,
    pub accuracy: Accuracy,
}

/// Those of `scratch`. As in the book, device 0 alone computes the accuracy.
pub const SCRATCH: Functions = Functions {
    get_params: scratch::get_params,
    train_batch: |x, y, replicas, devices, lr| {
        let ls = scratch::train_batch(x, y, replicas, devices, lr)?;
        BatchLoss::new(ls, x.dim(0)?).mean()
    },
    accuracy: |replicas, _, minibatches| {
        let mut right = 0;
        let mut all = 0;
        for (x, y) in minibatches {
            right += d2l::accuracy(&scratch::lenet(x, &replicas[0])?.eval()?, y)?;
            all += y.dim(0)?;
        }
        Ok(right as f64 / all as f64)
    },
};

/// The steps that are compared.
const STEPS: u64 = 4;

/// The largest relative difference between the losses of `yours` and of `scratch`: a few steps on 1, 2 and 3 devices,
/// with shards of different sizes.
///
/// # Errors
/// If the functions fail, or a loss, an accuracy or a replica is not as it should be: a sentence.
pub fn agree(yours: &Functions) -> Result<f64> {
    const ROUNDING: f64 = 1e-5;
    // ten times the book's weights, because its first losses are all ln 10
    let scaled = scratch::init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<candle_core::Result<Vec<_>>>()?;
    let minibatch = |seed: u64, n: usize| -> Result<Minibatch> {
        let x = d2l::uniform(&mut d2l::rng(seed), 0.0, 1.0, (n, 1, 28, 28))?;
        let y = Tensor::from_iter((0..n as u32).map(|i| 7 * i % 10), &Device::Cpu)?;
        Ok((x, y))
    };
    let mut worst = 0f64;
    for k in 1..=3 {
        let s = if k == 1 { "" } else { "s" };
        let devices = vec![Device::Cpu; k];
        let on = format!("on {k} device{s}");
        let replicas_of = |functions: &Functions| {
            devices
                .iter()
                .map(|device| (functions.get_params)(&params, device))
                .collect::<candle_core::Result<Vec<_>>>()
        };
        let replicas = replicas_of(yours)?;
        let theirs = replicas_of(&SCRATCH)?;
        for step in 1..=STEPS {
            let n = if step == 2 { 2 } else { 31 }; // uneven shards, and an empty one
            let (x, y) = minibatch(step, n)?;
            let loss = (yours.train_batch)(&x, &y, &replicas, &devices, 0.1)?;
            let right = (SCRATCH.train_batch)(&x, &y, &theirs, &devices, 0.1)?;
            let apart = f64::from((loss - right).abs() / right);
            ensure!(
                apart < ROUNDING,
                "{on}, your loss of step {step} is {loss:.5}, and that of `scratch` is {right:.5}"
            );
            worst = worst.max(apart);
        }
        ensure!(
            same(&replicas, &replicas[0])?,
            "{on}, your replicas differ after {STEPS} steps"
        );
        ensure!(
            same(&replicas, &theirs[0])?,
            "{on}, your parameters are not those of `scratch` after {STEPS} steps"
        );
        let test = [minibatch(11, 31)?, minibatch(12, 31)?, minibatch(13, 8)?];
        let accuracy = (yours.accuracy)(&replicas, &devices, &test)?;
        let right = (SCRATCH.accuracy)(&replicas, &devices, &test)?;
        ensure!(
            (accuracy - right).abs() < ROUNDING,
            "{on}, your accuracy is {accuracy:.4}, and that of `scratch` is {right:.4} with the same replicas"
        );
    }
    Ok(worst)
}

/// True if all replicas have the parameters of `right`, up to rounding.
fn same(replicas: &[Vec<Param>], right: &[Param]) -> Result<bool> {
    let values = |param: &Param| param.flatten_all()?.to_vec1::<f32>();
    for replica in replicas {
        for (own, right) in zip(replica, right) {
            let is_near = |(a, b): (f32, f32)| (a - b).abs() <= 1e-5;
            if !zip(values(own)?, values(right)?).all(is_near) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Data to train on, and number of epochs.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Folder with the IDX files of Fashion-MNIST, or `synthetic` [default: FASHION_MNIST_DIR, or a download]
    #[arg(long, value_name = "DIR")]
    pub data: Option<Data>,
    /// Number of epochs; the book has 10
    #[arg(long, value_name = "N", default_value = "10")]
    pub epochs: NonZeroUsize,
    /// Train on the first N images only
    #[arg(long, value_name = "N")]
    pub limit_train: Option<usize>,
}

/// The book's minibatch and learning rate.
const BATCH_SIZE: usize = 256;
const LR: f64 = 0.2;

/// A training of LeNet on some devices of one core each.
struct Run<'a> {
    functions: &'a Functions,
    devices: Vec<Device>,
    replicas: Vec<Vec<Param>>,
    /// Of each epoch; the accuracy is computed afterwards.
    seconds: Vec<f64>,
    accuracy: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(functions: &'a Functions, k: usize) -> Result<Self> {
        let devices = vec![Device::Cpu; k];
        let params = scratch::init_params(0)?;
        let replicas = devices
            .iter()
            .map(|device| (functions.get_params)(&params, device))
            .collect::<candle_core::Result<_>>()?;
        Ok(Self {
            functions,
            devices,
            replicas,
            seconds: vec![],
            accuracy: vec![],
        })
    }

    /// One minibatch on new replicas, which are dropped: the first one starts threads and takes memory.
    fn warm_up(&self, (x, y): &Minibatch) -> Result<()> {
        let k = self.devices.len();
        d2l::share_cores(Some(k), k); // as in an epoch
        let fresh = Self::new(self.functions, k)?;
        (self.functions.train_batch)(x, y, &fresh.replicas, &self.devices, LR)?;
        Ok(())
    }

    fn epoch(&mut self, train: &DataIter, test: &[Minibatch]) -> Result<()> {
        let Self {
            functions,
            devices,
            replicas,
            ..
        } = self;
        let k = devices.len();
        d2l::share_cores(Some(k), k); // a core for each device
        let start = Instant::now();
        for batch in train.epoch(self.seconds.len() + 1) {
            let (x, y) = batch?;
            let loss = (functions.train_batch)(&x, &y, replicas, devices, LR)?;
            ensure!(
                loss.is_finite(),
                "on {k} device(s), `train_batch` returns the loss {loss}"
            );
        }
        self.seconds.push(start.elapsed().as_secs_f64());
        self.accuracy
            .push((functions.accuracy)(replicas, devices, test)?);
        Ok(())
    }

    /// Its last accuracy and its time, as a column of the table of epochs.
    fn last(&self) -> Result<String> {
        let accuracy = self.accuracy.last().context("no epoch")?;
        let seconds = self.seconds.last().context("no epoch")?;
        Ok(format!("{accuracy:.3} {seconds:5.2} s"))
    }
}

/// Trains with `yours` and with `scratch`, on one device and on two, an epoch of each in turn. Writes a row for each
/// epoch, the curve, and the comparison with the book.
///
/// # Errors
/// If the data cannot be loaded, a function fails, or nothing can be written.
pub fn train(yours: &Functions, settings: &Settings, to: &mut impl Write) -> Result<()> {
    let cores = d2l::cores(); // before the runs limit them
    let data = dataset::load(&dataset::Options {
        data: settings.data.clone(),
        limit_train: settings.limit_train,
        ..dataset::Options::default()
    })?;
    writeln!(
        to,
        "{}\n{}\n\
         LeNet, {} images, minibatches of {BATCH_SIZE}, learning rate {LR}; a device is a core.\n\
         {PLATEAU}",
        agreement(yours),
        data.source.line,
        data.train.len()
    )?;
    let (train_iter, test_iter) = data.iters(BATCH_SIZE)?;
    let test = test_iter
        .in_order()
        .collect::<candle_core::Result<Vec<Minibatch>>>()?;
    let mut runs = [
        Run::new(yours, 1)?,
        Run::new(yours, 2)?,
        Run::new(&SCRATCH, 1)?,
        Run::new(&SCRATCH, 2)?,
    ];
    let mut seconds = 0.0;
    for run in &runs {
        run.warm_up(&test[0])?;
        let start = Instant::now();
        run.warm_up(&test[0])?;
        seconds += start.elapsed().as_secs_f64();
    }
    let steps = train_iter.num_batches() * settings.epochs.get();
    writeln!(
        to,
        "All epochs take about {}. Test accuracy after each, and the time to train it:\n",
        duration(seconds * steps as f64)
    )?;
    writeln!(
        to,
        "epoch  yours: 1 device      2 devices  scratch: 1 device      2 devices"
    )?;
    for epoch in 1..=settings.epochs.get() {
        write!(to, "{epoch:>5}")?;
        for (run, width) in zip(&mut runs, [17, 15, 19, 15]) {
            run.epoch(&train_iter, &test)?;
            write!(to, "{:>width$}", run.last()?)?;
            to.flush()?;
        }
        writeln!(to)?;
    }
    compare(&runs, to)?;
    if cores < 2 {
        writeln!(to, "This machine has one core, so two devices take turns.")?;
    }
    Ok(())
}

/// The book's weights are small, and so are the first gradients.
const PLATEAU: &str = "0.100 is right at first: the loss hardly falls in the first 235 steps, which are\n\
                       one epoch of all images.";

/// `40 s`, or whole minutes from two minutes on.
fn duration(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// Says in a sentence what [`agree`] finds.
fn agreement(yours: &Functions) -> String {
    let steps = format!("{STEPS} steps on 1, 2 and 3 devices: your losses are those of `scratch`");
    match agree(yours) {
        Ok(0.0) => format!("{steps}, bit for bit."),
        Ok(worst) => format!("{steps} up to\nrounding, {worst:.0e} of the loss."),
        Err(error) => format!(
            "✗ Together, your functions do not compute what those of `scratch` compute: {error:#}."
        ),
    }
}

/// The curve, and the last table: yours, `scratch` and the book, on one device and on two.
fn compare(runs: &[Run; 4], to: &mut impl Write) -> Result<()> {
    let [one, two, their_one, their_two] = runs;
    if let Some(curve) = curve(two)? {
        writeln!(to, "\nYours on two devices, {curve}")?;
    }
    // the book's as it prints them in 13.5.6
    writeln!(
        to,
        "
                 test accuracy       seconds an epoch   speed-up of two
              1 device  2 devices   1 device  2 devices
{}
{}
book, MXNet       0.85       0.84       2.5        4.9   0.51
book, PyTorch     0.84       0.83       2.6        2.6   1.00

The book trains 10 epochs of 60000 images. The time is that of the median epoch.
In brackets: its lowest and highest speed-up. Other programs make it smaller.",
        row("yours", one, two),
        row("scratch", their_one, their_two)
    )?;
    // nearly all that it had learned
    let diverged = |run: &&Run| {
        let best = run.accuracy.iter().copied().fold(0.0, f64::max);
        run.accuracy.last().is_some_and(|last| 2.0 * last < best)
    };
    if runs.iter().any(|run| diverged(&run)) {
        writeln!(
            to,
            "An accuracy that falls by more than half has diverged: the learning rate is high."
        )?;
    }
    if !same(&two.replicas, &two.replicas[0])? {
        writeln!(to, "✗ Your two replicas differ after the training.")?;
    }
    Ok(())
}

/// The accuracies of all epochs as text, where there are several.
fn curve(run: &Run) -> Result<Option<String>> {
    let epochs = run.accuracy.len() as f64;
    let mut animator = Animator::new("epoch", &["test accuracy"], (1.0, epochs.max(2.0)));
    for (epoch, accuracy) in (1..).zip(&run.accuracy) {
        animator.add(f64::from(epoch), &[*accuracy])?;
    }
    Ok(animator.text(0, 78))
}

/// A row of the last table.
fn row(name: &str, one: &Run, two: &Run) -> String {
    let last = |run: &Run| run.accuracy.last().copied().unwrap_or_default();
    let mut ratios: Vec<f64> = zip(&one.seconds, &two.seconds)
        .map(|(a, b)| a / b)
        .collect();
    ratios.sort_by(f64::total_cmp);
    let [seconds, of_two] = [one, two].map(|run| median(&run.seconds));
    let range = match &ratios[..] {
        [_] => String::new(),
        ratios => format!(" ({:.2} to {:.2})", ratios[0], ratios[ratios.len() - 1]),
    };
    format!(
        "{name:13} {:>8.3} {:>10.3} {seconds:>9.2} {of_two:>10.2} {:>6.2}{range}",
        last(one),
        last(two),
        seconds / of_two
    )
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0
}
