//! Exercise: on k devices, the minibatch has k·b examples instead of b. What becomes of the steps of an
//! epoch, the time of a step, and the accuracy, with the learning rate as it was and k times as large?
//!
//! `cargo run --example 05_larger_minibatch [-- --data DIR]`

use anyhow::Result;
use clap::Parser;
use d2l::{Timer, evaluate_accuracy_gpu};
use dataset::{Data, Dataset};
use scratch::{get_params, init_params, lenet, train_batch};

/// LeNet on `k` devices of one core each, after an epoch: steps, milliseconds a step, test accuracy. Its
/// weights begin ten times as large as the book's, so that it learns at once.
fn an_epoch(data: &Dataset, k: usize, batch_size: usize, lr: f64) -> Result<(usize, f64, f64)> {
    d2l::share_cores(Some(k), k);
    let devices = d2l::devices(k)?;
    let params = init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = params.collect::<Result<Vec<_>, _>>()?;
    let copies = devices.iter().map(|device| get_params(&params, device));
    let device_params = copies.collect::<Result<Vec<_>, _>>()?;
    let ((train_iter, _), (_, test_iter)) = (data.iters(batch_size)?, data.iters(500)?);
    let mut timer = Timer::new();
    for batch in train_iter.epoch(1) {
        let (x, y) = batch?;
        train_batch(&x, &y, &device_params, &devices, lr)?;
    }
    d2l::synchronize(&devices)?;
    let (steps, seconds) = (train_iter.num_batches(), timer.stop());
    let net = |x: &_| lenet(x, &device_params[0]);
    let test_acc = evaluate_accuracy_gpu(net, &test_iter, &devices[0])?;
    Ok((steps, seconds / steps as f64 * 1e3, test_acc))
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
    d2l::share_cores(None, 4); // threads for the most devices first
    let (b, lr) = (16, 0.0125);
    println!("devices  minibatch  lr      steps  ms a step  test acc");
    for (k, lr) in [(1, lr), (2, lr), (2, 2.0 * lr), (4, lr), (4, 4.0 * lr)] {
        let (steps, ms, test_acc) = an_epoch(&data, k, k * b, lr)?;
        let minibatch = k * b;
        println!("{k:<7}  {minibatch:<9}  {lr:<6}  {steps:<5}  {ms:<9.2}  {test_acc:.3}");
    }
    Ok(())
}
