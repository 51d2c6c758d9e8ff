//! Exercise: other numbers of epochs, batch sizes and learning rates, and what sixteen devices bring. A small
//! network on 1, 2, 4 and 16 replicas on the CPU, one core each as long as there are cores; and what the cost
//! model says of ResNet-18 on sixteen GPUs.
//!
//! `cargo run --example 10_sixteen_devices`

use anyhow::Result;
use candle_core::{Module, Tensor};
use candle_nn::VarBuilder;
use concise::layers::{Conv2d, Linear};
use concise::{Algorithm, DataParallel, Initializer, Link, Sgd, Trainer, evaluate_accuracy_gpus};
use dataset::{Data, Dataset};
use functional::{cross_entropy, flatten, max_pool2d, nhwc, relu};

/// A convolution and a linear layer: images (B, 1, 28, 28) to (B, 10).
fn small_network(vb: VarBuilder<'_>) -> candle_core::Result<impl Module + use<>> {
    let conv = Conv2d::new(1, 16, 5, vb.pp("conv"))?;
    let fc = Linear::new(16 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Tensor| {
        let x = max_pool2d(&relu(&conv.forward(&nhwc(x)?)?)?, 2, 2)?;
        fc.forward(&flatten(&x)?)
    })
}

/// Trains it on `k` replicas, with minibatches of `n`: the milliseconds of a step, and the test accuracy.
fn train_on(k: usize, data: &Dataset, n: usize, lr: f64, epochs: usize) -> Result<(f64, f64)> {
    let cores = std::thread::available_parallelism()?.get();
    d2l::share_cores(Some(k.min(cores)), k);
    let (devices, init) = (d2l::devices(k)?, Initializer::Xavier(2.0));
    let net = DataParallel::new(&devices, init, 0, small_network)?;
    let (train_iter, test_iter) = data.iters(n)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(lr));
    let mut timer = d2l::Timer::new();
    for batch in (1..=epochs).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        trainer.step(&x, &y)?;
    }
    d2l::synchronize(&devices)?;
    let ms = 1e3 * timer.stop() / (epochs * train_iter.num_batches()) as f64;
    Ok((ms, evaluate_accuracy_gpus(&net, &test_iter)?))
}

/// The part of `k` GPUs' time in which they compute, where a step takes `seconds` on one, each has as many
/// examples as one had, and `bytes` of gradients go over links like PCI Express.
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
        limit_train: Some(1000),
        limit_test: Some(500),
        ..Default::default()
    })?;
    println!("devices  minibatch  lr   epochs  ms a step  test acc");
    let settings = [(16, 0.1, 1), (64, 0.1, 1), (64, 0.2, 4)];
    for (k, i) in [(1, 0), (2, 0), (4, 0), (16, 0), (16, 1), (16, 2)] {
        let (n, lr, epochs) = settings[i];
        let (ms, test_acc) = train_on(k, &data, n, lr, epochs)?;
        println!("{k:<7}  {n:<9}  {lr:<3}  {epochs:<6}  {ms:<9.1}  {test_acc:.3}");
    }
    // The book: ResNet-18 on one GPU, 13.2 seconds for 235 minibatches of 256; its gradients are 44.7 MB
    println!("GPUs  star  owner  tree (ResNet-18, 256 images each)");
    for k in [2, 4, 8, 16] {
        let of = |algorithm| 100.0 * efficiency(algorithm, k, 13.2 / 235.0, 44_703_272);
        let [star, owner, tree] = [Algorithm::Star, Algorithm::Owner, Algorithm::Tree].map(of);
        println!("{k:<4}  {star:.0} %  {owner:.0} %   {tree:.0} %");
    }
    Ok(())
}
