//! Exercise 1 of 13.5.8: on k devices, the minibatch has k·b examples instead of b. The table shows the steps
//! of an epoch, the time of a step, and the test accuracy, with the same learning rate and with one k times
//! as large. Below it are the accuracies for a larger learning rate, with and without warm-up.
//!
//! `cargo run --example 05_larger_minibatch [-- --data DIR]`

use anyhow::Result;
use clap::Parser;
use d2l::{Timer, evaluate_accuracy_gpu};
use dataset::{Data, Dataset};
use scratch::{get_params, init_params, lenet, train_batch};

/// Trains LeNet for an epoch on `k` devices of one core each, with minibatches of 16·k: the number of steps,
/// milliseconds a step, and test accuracy. The learning rate rises linearly to `lr` in the first `warm_up`
/// steps. The weights begin ten times as large as the book's, so that the network learns at once.
fn an_epoch(data: &Dataset, k: usize, lr: f64, warm_up: usize, seed: u64) -> Result<[f64; 3]> {
    d2l::share_cores(Some(k), k);
    let devices = d2l::devices(k)?;
    let params = init_params(seed)?.into_iter().map(|p| p * 10.0);
    let params = params.collect::<Result<Vec<_>, _>>()?;
    let copies = devices.iter().map(|device| get_params(&params, device));
    let device_params = copies.collect::<Result<Vec<_>, _>>()?;
    let ((train_iter, _), (_, test_iter)) = (data.iters(16 * k)?, data.iters(500)?);
    let mut timer = Timer::new();
    for (i, batch) in train_iter.epoch(1).enumerate() {
        let (x, y) = batch?;
        let lr = if i < warm_up {
            lr * (i + 1) as f64 / warm_up as f64
        } else {
            lr
        };
        train_batch(&x, &y, &device_params, &devices, lr)?;
    }
    d2l::synchronize(&devices)?;
    let (steps, seconds) = (train_iter.num_batches() as f64, timer.stop());
    let net = |x: &_| lenet(x, &device_params[0]);
    let test_acc = evaluate_accuracy_gpu(net, &test_iter, &devices[0])?;
    Ok([steps, 1e3 * seconds / steps, test_acc])
}

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
    println!("devices  minibatch  lr      steps  ms a step  test acc");
    for (k, times) in [(1, 1.0), (2, 1.0), (2, 2.0), (4, 1.0), (4, 4.0)] {
        let (n, lr) = (16 * k, 0.0125 * times);
        let [steps, ms, test_acc] = an_epoch(&data, k, lr, 0, 0)?;
        println!("{k:<7}  {n:<9}  {lr:<6}  {steps:<5}  {ms:<9.2}  {test_acc:.3}");
    }
    for warm_up in [0, 8] {
        let test_acc = |seed| Ok(an_epoch(&data, 4, 0.2, warm_up, seed)?[2]);
        let test_acc = (0..6).map(test_acc).collect::<Result<Vec<_>>>()?;
        println!("4 devices, lr 0.2, warm-up of {warm_up} steps: {test_acc:.2?}");
    }
    Ok(())
}
