//! The network of example 14 on one device, in a loop without a trainer: what 14 is changed from.
//!
//! `cargo run --example 19_on_one_device [-- --data DIR]`

use candle_core::{DType, Result, Var};
use candle_nn::{VarBuilder, VarMap};
use clap::Parser;
use concise::layers::{Conv2d, Linear};
use d2l::evaluate_accuracy_gpu;
use data_parallel_functional::{Network, Value, backward, cross_entropy, sgd};
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

/// Trains on one device, and gives the test accuracy.
fn train(train_iter: &DataIter, test_iter: &DataIter) -> Result<f64> {
    let device = d2l::try_gpu(0);
    let vars = VarMap::new();
    let net = network(VarBuilder::from_varmap(&vars, DType::F32, &device))?;
    let params = vars.all_vars();
    let zeros = |w: &Var| Var::from_tensor(&w.zeros_like()?);
    let grads: Vec<Var> = params.iter().map(zeros).collect::<Result<_>>()?;
    for epoch in 1..=3 {
        for batch in train_iter.epoch(epoch) {
            let (x, y) = batch?;
            let y_hat = net.forward(&Value::new(&x.to_device(&device)?)?, true)?;
            let l = cross_entropy(&y_hat, &y.to_device(&device)?)?.sum()?;
            backward(&l, params.iter().zip(&grads))?;
            let sums: Vec<_> = grads.iter().map(Var::as_detached_tensor).collect();
            sgd(&params.iter().collect::<Vec<_>>(), &sums, 0.1, x.dim(0)?)?;
        }
    }
    evaluate_accuracy_gpu(|x| net.forward(&Value::new(x)?, false), test_iter, &device)
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
