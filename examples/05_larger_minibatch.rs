//! Exercise 1 of 13.5.8: on k devices, the minibatch has k·b examples instead of b. The table shows the time of a
//! step and the test accuracy after eight epochs, over five seeds: with the same learning rate, with one k times as
//! large, and with warm-up.
//!
//! `cargo run --example 05_larger_minibatch [-- --data DIR]`

use anyhow::Result;
use clap::Parser;
use d2l::{Timer, evaluate_accuracy_gpu};
use dataset::{Data, Dataset};
use scratch::{init_params, lenet, replicas, train_batch};

/// Trains LeNet for eight epochs on `k` devices of one core each, with minibatches of 128·k: the number of steps,
/// milliseconds a step, and the test accuracy. The learning rate rises linearly to `lr` in the first `warm_up` steps.
/// The weights begin ten times as large as the book's, so that the network learns at once.
fn train(data: &Dataset, k: usize, lr: f64, warm_up: usize, seed: u64) -> Result<[f64; 3]> {
    d2l::share_cores(Some(k), k);
    let devices = d2l::devices(k)?;
    let scaled = init_params(seed)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<Result<Vec<_>, _>>()?;
    let device_params = replicas(&params, &devices)?;
    let (train_iter, _) = data.iters(128 * k)?;
    let (_, test_iter) = data.iters(500)?;
    let mut timer = Timer::new();
    let mut steps = 0.0;
    for batch in (1..=8).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        steps += 1.0;
        let warm = (steps / warm_up.max(1) as f64).min(1.0);
        train_batch(&x, &y, &device_params, &devices, lr * warm)?;
    }
    d2l::synchronize(&devices)?;
    let ms = 1e3 * timer.stop() / steps;
    let net = |x: &_| lenet(x, &device_params[0]);
    let test_acc = evaluate_accuracy_gpu(net, &test_iter, &devices[0])?;
    Ok([steps, ms, test_acc])
}

/// The number of steps, milliseconds a step, and the lowest accuracy, the mean and the highest of five seeds.
fn five_seeds(data: &Dataset, k: usize, lr: f64, warm_up: usize) -> Result<[f64; 5]> {
    let runs = (0..5)
        .map(|seed| train(data, k, lr, warm_up, seed))
        .collect::<Result<Vec<_>>>()?;
    let mut acc: Vec<f64> = runs.iter().map(|run| run[2]).collect();
    acc.sort_by(f64::total_cmp);
    let ms = runs.iter().map(|run| run[1]).sum::<f64>() / 5.0;
    let mean = acc.iter().sum::<f64>() / 5.0;
    Ok([runs[0][0], ms, acc[0], mean, acc[4]])
}

/// Devices, learning rate, steps of warm-up.
const RUNS: [(usize, f64, usize); 4] = [(1, 0.025, 0), (2, 0.025, 0), (2, 0.05, 0), (2, 0.05, 8)];

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: Data,
}

fn main() -> Result<()> {
    let data = dataset::load(&dataset::Options {
        data: Some(Args::parse().data),
        limit_train: Some(2000),
        limit_test: Some(500),
        ..Default::default()
    })?;
    println!("devices  minibatch  lr     warm-up  steps  ms a step  lowest acc  mean   highest");
    for (k, lr, warm_up) in RUNS {
        let [steps, ms, low, mean, high] = five_seeds(&data, k, lr, warm_up)?;
        print!(
            "{k:<7}  {:<9}  {lr:<5}  {warm_up:<7}  {steps:<5}  ",
            128 * k
        );
        println!("{ms:<9.2}  {low:<10.3}  {mean:.3}  {high:.3}");
    }
    Ok(())
}
