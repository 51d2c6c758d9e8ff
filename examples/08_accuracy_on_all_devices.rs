//! Exercise 4 of 13.5.8: computes the test accuracy on several devices. Each minibatch is split as in
//! training. All replicas count their correct predictions at the same time, and only the counts are added up.
//!
//! `cargo run --example 08_accuracy_on_all_devices [-- --data DIR]`

use anyhow::Result;
use candle_core::{Device, Tensor};
use clap::Parser;
use d2l::{Accumulator, Param, accuracy, evaluate_accuracy_gpu, on_each};
use dataset::{Data, DataIter};
use scratch::{init_params, lenet, replicas, split_batch, train_batch};

/// The accuracy of LeNet on a dataset. Each device uses its own copy of the parameters on its shard.
fn evaluate_accuracy_on_all(
    device_params: &[Vec<Param>],
    devices: &[Device],
    data_iter: &DataIter,
) -> Result<f64> {
    // No. of correct predictions, no. of predictions
    let mut metric = Accumulator::<2>::new();
    for batch in data_iter.in_order() {
        let (x, y) = batch?;
        let (x_shards, y_shards) = split_batch(&x, &y, devices)?;
        let replicas = (x_shards, y_shards, device_params);
        let correct = on_each(devices, replicas, |(x_shard, y_shard, device_w)| {
            accuracy(&lenet(&x_shard, device_w)?.eval()?, &y_shard)
        })?;
        metric.add([correct.iter().sum::<usize>() as f64, y.dim(0)? as f64]);
    }
    Ok(metric[0] / metric[1])
}

/// Trains LeNet on all `devices` for an epoch. The weights begin ten times as large as the book's, so that
/// the network learns at once.
fn trained(devices: &[Device], train_iter: &DataIter) -> Result<Vec<Vec<Param>>> {
    let scaled = init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<candle_core::Result<Vec<_>>>()?;
    let device_params = replicas(&params, devices)?;
    for batch in train_iter.epoch(1) {
        let (x, y) = batch?;
        train_batch(&x, &y, &device_params, devices, 0.1)?;
    }
    Ok(device_params)
}

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: Data,
}

fn main() -> Result<()> {
    let devices = d2l::devices(3)?;
    d2l::share_cores(None, devices.len());
    let data = dataset::load(&dataset::Options {
        data: Some(Args::parse().data),
        limit_train: Some(2000),
        limit_test: Some(500),
        ..Default::default()
    })?;
    let (train_iter, test_iter) = data.iters(50)?;
    let device_params = trained(&devices, &train_iter)?;
    let net = |x: &Tensor| lenet(x, &device_params[0]);
    let one = evaluate_accuracy_gpu(net, &test_iter, &devices[0])?;
    println!("on {}: {one:.3}", d2l::device_names(&devices[..1]));
    let all = evaluate_accuracy_on_all(&device_params, &devices, &test_iter)?;
    println!("on {}: {all:.3}", d2l::device_names(&devices));
    Ok(())
}
