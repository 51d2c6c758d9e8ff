//! The MXNet tutorial "Multiple GPUs training with Gluon API": its LeNet on MNIST, with `concise`'s trainer,
//! on two GPUs or two CPU replicas. Network, initialization, batch size and learning rate are the tutorial's.
//!
//! The tutorial begins with two tensors `a` and `b` on two GPUs. `a + b` is an error, in MXNet and in candle,
//! because neither copies between devices by itself. MXNet's `b.as_in_context(a.context)` makes the copy, and
//! so does candle's `b.to_device(a.device())?`. On the CPU all replicas are on the same `Device::Cpu`, so
//! there the error cannot occur.
//!
//! `cargo run --example 13_gluon_tutorial`, or with the real digits and the tutorial's ten epochs
//! `… -- --data DIR --limit-train 60000 --limit-test 10000 --epochs 10`

use anyhow::Result;
use candle_nn::VarBuilder;
use clap::Parser;
use concise::layers::{Conv2d, Linear};
use concise::{DataParallel, Initializer, Sgd, Trainer, evaluate_accuracy_gpus};
use data_parallel_functional::{Network, Value, cross_entropy};

/// LeNet 6-16-120-84-10 with max pooling: images (B, 1, 28, 28) to (B, 10).
fn net(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv1 = Conv2d::new(1, 6, 5, vb.pp("conv1"))?;
    let conv2 = Conv2d::new(6, 16, 3, vb.pp("conv2"))?;
    let fc1 = Linear::new(16 * 5 * 5, 120, vb.pp("fc1"))?;
    let fc2 = Linear::new(120, 84, vb.pp("fc2"))?;
    let fc3 = Linear::new(84, 10, vb.pp("fc3"))?;
    Ok(move |x: &Value, train: bool| {
        let h1_conv = conv1.forward(&x.nhwc()?, train)?;
        let h1 = h1_conv.relu()?.max_pool2d(2, 2)?;
        let h2_conv = conv2.forward(&h1, train)?;
        let h2 = h2_conv.relu()?.max_pool2d(2, 2)?.flatten()?;
        let h3 = fc1.forward(&h2, train)?.relu()?;
        let h4 = fc2.forward(&h3, train)?.relu()?;
        fc3.forward(&h4, train)
    })
}

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: dataset::Data,
    #[arg(long, default_value_t = 4000)]
    limit_train: usize,
    #[arg(long, default_value_t = 500)]
    limit_test: usize,
    #[arg(long, default_value_t = 5)]
    epochs: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let data = dataset::load(&dataset::Options {
        name: dataset::Name::Mnist,
        data: Some(args.data),
        limit_train: Some(args.limit_train),
        limit_test: Some(args.limit_test),
        ..Default::default()
    })?;
    println!("{}", data.source.line);
    let (train_iter, test_iter) = data.iters(128)?;
    let devices = d2l::devices(2)?;
    let net = DataParallel::new(&devices, Initializer::Xavier(3.0), 0, net)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.04));
    for epoch in 1..=args.epochs {
        let mut metric = d2l::Accumulator::<2>::new();
        for batch in train_iter.epoch(epoch) {
            let (x, y) = batch?;
            for (y_hat, y) in trainer.step(&x, &y)?.shards {
                metric.add([d2l::accuracy(&y_hat, &y)? as f64, y.dim(0)? as f64]);
            }
        }
        let train_acc = metric[0] / metric[1];
        println!("After epoch {epoch}: accuracy = {train_acc:.6}");
    }
    let test_acc = evaluate_accuracy_gpus(&net, &test_iter)?;
    println!("test accuracy = {test_acc:.4}");
    Ok(())
}
