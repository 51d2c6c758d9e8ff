//! Exercise: train with different learning rates, and see how the accuracy depends on the rate and on the
//! number of devices.
//!
//! `cargo run --example 06_learning_rates`, or with all the real images and as a picture
//! `… -- --data DIR --limit-train 60000 --svg rates.svg`

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;
use d2l::{Animator, evaluate_accuracy_gpu};
use dataset::{Data, Dataset};
use scratch::{init_params, lenet, replicas, train_batch};

const RATES: [f64; 5] = [0.025, 0.05, 0.1, 0.2, 0.4];

/// The test accuracy of LeNet after an epoch on `k` devices of one core each. Its weights begin ten times
/// as large as the book's, so that it learns at once.
fn accuracy_with(data: &Dataset, k: usize, batch_size: usize, lr: f64) -> Result<f64> {
    d2l::share_cores(Some(k), k);
    let devices = d2l::devices(k)?;
    let scaled = init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<Result<Vec<_>, _>>()?;
    let device_params = replicas(&params, &devices)?;
    let (train_iter, _) = data.iters(batch_size)?;
    let (_, test_iter) = data.iters(500)?;
    for batch in train_iter.epoch(1) {
        let (x, y) = batch?;
        train_batch(&x, &y, &device_params, &devices, lr)?;
    }
    let net = |x: &_| lenet(x, &device_params[0]);
    Ok(evaluate_accuracy_gpu(net, &test_iter, &devices[0])?)
}

/// The accuracies for all rates: with one device and four on minibatches of 16, and with four on 64.
fn accuracies(data: &Dataset) -> Result<Animator> {
    let legend = ["1 device, 16", "4 devices, 16", "4 devices, 64"];
    let mut animator = Animator::new("learning rate", &legend, (0.02, 0.5))
        .ylabel("test accuracy")
        .xscale_log();
    for lr in RATES {
        let [a, b, c] = [(1, 16), (4, 16), (4, 64)].map(|(k, n)| accuracy_with(data, k, n, lr));
        animator.add(lr, &[a?, b?, c?])?;
    }
    Ok(animator)
}

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: Data,
    /// Training images; a quarter as many are for the test
    #[arg(long, default_value_t = 2000)]
    limit_train: usize,
    /// File for the curves
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let data = dataset::load(&dataset::Options {
        data: Some(args.data),
        limit_train: Some(args.limit_train),
        limit_test: Some(args.limit_train / 4),
        ..Default::default()
    })?;
    let animator = accuracies(&data)?;
    println!("learning rate  1 device, 16  4 devices, 16  4 devices, 64");
    for (i, lr) in RATES.iter().enumerate() {
        let [a, b, c] = [0, 1, 2].map(|curve| animator.y(curve)[i]);
        println!("{lr:<13}  {a:<12.3}  {b:<13.3}  {c:.3}");
    }
    if let Some(file) = args.svg {
        std::fs::write(file, animator.svg()?)?;
    }
    Ok(())
}
