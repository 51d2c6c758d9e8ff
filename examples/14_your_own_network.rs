//! A network of your own on two devices: a closure over a `VarBuilder`, a loss, and a loop of ten lines.
//!
//! `cargo run --example 14_your_own_network [-- --data DIR]`

use candle_core::Result;
use candle_nn::VarBuilder;
use clap::Parser;
use concise::layers::{Conv2d, Linear};
use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus};
use data_parallel_functional::{Network, Value, cross_entropy};
use dataset::DataIter;

/// Images (B, 1, 28, 28) to the scores of ten classes, (B, 10).
fn network(vb: VarBuilder<'_>) -> Result<impl Network + use<>> {
    let conv = Conv2d::new(1, 16, 5, vb.pp("conv"))?;
    let fc = Linear::new(16 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| {
        let x = conv.forward(&x.nhwc()?, train)?.relu()?.max_pool2d(2, 2)?;
        fc.forward(&x.flatten()?, train)
    })
}

/// Trains on two devices, and gives the test accuracy.
fn train(train_iter: &DataIter, test_iter: &DataIter) -> Result<f64> {
    let devices = d2l::devices(2)?; // two GPUs, or two replicas on the CPU
    // the weights: as MXNet draws them, with the random seed 0
    let net = DataParallel::new(&devices, Initializer::Xavier(3.0), 0, network)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    for epoch in 1..=3 {
        for batch in train_iter.epoch(epoch) {
            let (x, y) = batch?;
            trainer.step(&x, &y)?; // split, forward, backward, all-reduce, update
        }
    }
    evaluate_accuracy_gpus(&net, test_iter)
}

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: dataset::Data,
}

fn main() -> anyhow::Result<()> {
    let data = dataset::load(&dataset::Options {
        data: Some(Args::parse().data),
        limit_train: Some(4000),
        limit_test: Some(1000),
        ..Default::default()
    })?;
    let (train_iter, test_iter) = data.iters(64)?;
    let test_acc = train(&train_iter, &test_iter)?;
    println!("test acc: {test_acc:.2}");
    Ok(())
}
