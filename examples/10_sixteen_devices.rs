//! Exercise: other numbers of epochs, batch sizes and learning rates, and what sixteen devices bring. A small
//! network on 1, 2, 4 and 16 replicas on the CPU, one core each as long as there are cores; and what the cost
//! model says of ResNet-18 on sixteen GPUs.
//!
//! `cargo run --example 10_sixteen_devices`

use anyhow::Result;
use candle_core::{Module, Tensor};
use candle_nn::VarBuilder;
use collective::{Algorithm, cost::Link};
use concise::layers::{Conv2d, Linear};
use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus};
use d2l::Timer;
use dataset::{Data, Dataset};
use functional::{cross_entropy, flatten, max_pool2d, nhwc, relu};

/// Two convolutions and a linear layer: images (B, 1, 28, 28) to (B, 10).
fn small_network(vb: VarBuilder<'_>) -> candle_core::Result<impl Module + use<>> {
    let conv1 = Conv2d::new(1, 16, 5, vb.pp("conv1"))?;
    let conv2 = Conv2d::new(16, 32, 5, vb.pp("conv2"))?;
    let fc = Linear::new(32 * 4 * 4, 10, vb.pp("fc"))?;
    Ok(move |x: &Tensor| {
        let x = max_pool2d(&relu(&conv1.forward(&nhwc(x)?)?)?, 2, 2)?;
        let x = max_pool2d(&relu(&conv2.forward(&x)?)?, 2, 2)?;
        fc.forward(&flatten(&x)?)
    })
}

/// Trains it on `k` replicas: the median milliseconds of a step, and the test accuracy.
fn train_on(
    k: usize,
    data: &Dataset,
    (batch_size, lr, epochs): (usize, f64, usize),
) -> Result<(f64, f64)> {
    let cores = std::thread::available_parallelism()?.get();
    d2l::share_cores(Some(k.min(cores)), k);
    let net = DataParallel::new(
        &d2l::devices(k)?,
        Initializer::Xavier(2.0),
        0,
        small_network,
    )?;
    let (train_iter, test_iter) = data.iters(batch_size)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(lr));
    let mut timer = Timer::new();
    for batch in (1..=epochs).flat_map(|epoch| train_iter.epoch(epoch)) {
        let (x, y) = batch?;
        timer.start();
        trainer.step(&x, &y)?;
        timer.stop();
    }
    let mut times = timer.times().to_vec();
    times.sort_by(f64::total_cmp);
    let test_acc = evaluate_accuracy_gpus(&net, &test_iter)?;
    Ok((times[times.len() / 2] * 1e3, test_acc))
}

/// The part of `k` GPUs' time in which they compute, where a step takes `seconds` on one, each has as many
/// examples as one had, and `bytes` of gradients go over links like PCI Express.
fn efficiency(algorithm: Algorithm, k: usize, seconds: f64, bytes: usize) -> f64 {
    let latency = std::time::Duration::from_micros(10);
    let pci_express = Link {
        latency,
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
    let same = [1, 2, 4, 16].map(|k| (k, (16, 0.1, 1)));
    let others = [(16, (64, 0.1, 1)), (16, (64, 0.2, 4))];
    for (k, settings) in same.into_iter().chain(others) {
        let (ms, test_acc) = train_on(k, &data, settings)?;
        let (n, lr, epochs) = settings;
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
