//! Exercise 1 of 13.6.5: different epochs, batch sizes and learning rates, and sixteen devices. Trains a
//! small network with 1, 2, 4 and 16 replicas on the CPU, on at most one core each. The cost model then
//! predicts ResNet-18 on up to sixteen GPUs.
//!
//! `cargo run --example 10_sixteen_devices`

use anyhow::Result;
use candle_nn::VarBuilder;
use concise::layers::{Conv2d, Linear};
use concise::schedule::{cosine, warmup};
use concise::{Algorithm, DataParallel, Initializer, Link, Sgd, Trainer, evaluate_accuracy_gpus};
use data_parallel_functional::{Network, Value, cross_entropy};
use dataset::{Data, Dataset};

/// A convolution and a linear layer: images (B, 1, 28, 28) to (B, 10).
fn small_network(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = Conv2d::new(1, 16, 5, vb.pp("conv"))?;
    let fc = Linear::new(16 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| {
        let x = conv.forward(&x.nhwc()?, train)?.relu()?.max_pool2d(2, 2)?;
        fc.forward(&x.flatten()?, train)
    })
}

/// Trains the network on `k` replicas with minibatches of `n`: milliseconds a step, and test accuracy.
fn train_on(k: usize, data: &Dataset, n: usize, lr: f64, epochs: usize) -> Result<(f64, f64)> {
    let cores = std::thread::available_parallelism()?.get();
    d2l::share_cores(Some(k.min(cores)), k);
    let (devices, init) = (d2l::devices(k)?, Initializer::Xavier(2.0));
    let net = DataParallel::new(&devices, init, 0, small_network)?;
    let (train_iter, test_iter) = data.iters(n)?;
    let steps = epochs * train_iter.num_batches();
    let schedule = warmup(steps / 8, cosine(steps - steps / 8));
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(lr)).schedule(schedule);
    let mut timer = d2l::Timer::new();
    for batch in (1..=epochs).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    d2l::synchronize(&devices)?;
    let ms = 1e3 * timer.stop() / steps as f64;
    Ok((ms, evaluate_accuracy_gpus(&net, &test_iter)?))
}

/// The part of the time in which `k` GPUs compute. A step takes `seconds` on one GPU, and every GPU has the
/// same number of examples. The gradients have `bytes` bytes, and the links are like PCI Express.
fn efficiency(algorithm: Algorithm, k: usize, seconds: f64, bytes: usize) -> f64 {
    let pci_express = Link {
        latency: std::time::Duration::from_micros(10),
        bytes_per_second: 16e9,
    };
    seconds / (seconds + pci_express.time(algorithm, k, bytes).as_secs_f64())
}

fn main() -> Result<()> {
    let data = dataset::load(&dataset::Options {
        data: Some(Data::Synthetic),
        limit_train: Some(2000),
        limit_test: Some(500),
        ..Default::default()
    })?;
    println!("devices  minibatch  lr   epochs  ms a step  test acc");
    let settings = [(32, 0.1, 1), (128, 0.1, 1), (128, 0.4, 4)];
    for (k, i) in [(1, 0), (2, 0), (4, 0), (16, 0), (16, 1), (16, 2)] {
        let (n, lr, epochs) = settings[i];
        let (ms, test_acc) = train_on(k, &data, n, lr, epochs)?;
        println!("{k:<7}  {n:<9}  {lr:<3}  {epochs:<6}  {ms:<9.1}  {test_acc:.3}");
    }
    // The book: ResNet-18 takes 13.2 seconds for 235 minibatches on one GPU. Its gradients have 44.7 MB
    println!("GPUs  star  owner  tree (ResNet-18, 256 images each)");
    for k in [2, 4, 8, 16] {
        let of = |algorithm| 100.0 * efficiency(algorithm, k, 13.2 / 235.0, 44_703_272);
        let [star, owner, tree] = [Algorithm::Star, Algorithm::Owner, Algorithm::Tree].map(of);
        println!("{k:<4}  {star:.0} %  {owner:.0} %   {tree:.0} %");
    }
    Ok(())
}
