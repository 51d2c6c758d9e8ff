//! The noise in the accuracy after the last epoch: LeNet as in the book, with several seeds.
//!
//! `cargo run --example 15_seeds`, or the book's run with twelve seeds
//! `… -- --data DIR --limit-train 60000 --epochs 10 --seeds 12`

use anyhow::Result;
use clap::Parser;
use d2l::evaluate_accuracy_gpu;
use scratch::{init_params, lenet, replicas, train_batch};

#[derive(Parser)]
struct Args {
    /// A folder with the IDX files
    #[arg(long, default_value = "synthetic")]
    data: dataset::Data,
    /// Training images; a sixth as many are for the test
    #[arg(long, default_value_t = 3000)]
    limit_train: usize,
    #[arg(long, default_value_t = 2)]
    epochs: usize,
    /// Trains with the seeds 0, 1, … N − 1
    #[arg(long, default_value_t = 3, value_name = "N")]
    seeds: u64,
    #[arg(long, default_value_t = 2)]
    gpus: usize,
}

/// The test accuracy after each epoch, as `scratch --seed SEED` has it.
fn accuracies(args: &Args, seed: u64) -> Result<Vec<f64>> {
    let data = dataset::load(&dataset::Options {
        data: Some(args.data.clone()),
        limit_train: Some(args.limit_train),
        limit_test: Some(args.limit_train / 6),
        seed,
        ..Default::default()
    })?;
    let (train_iter, test_iter) = data.iters(256)?;
    let params = init_params(seed)?;
    let devices = d2l::devices(args.gpus)?;
    let device_params = replicas(&params, &devices)?;
    let mut all = Vec::new();
    for epoch in 1..=args.epochs {
        for batch in train_iter.epoch(epoch) {
            let (x, y) = batch?;
            train_batch(&x, &y, &device_params, &devices, 0.2)?;
        }
        let net = |x: &_| lenet(x, &device_params[0]);
        all.push(evaluate_accuracy_gpu(net, &test_iter, &devices[0])?);
    }
    Ok(all)
}

fn main() -> Result<()> {
    let args = Args::parse();
    d2l::share_cores(None, args.gpus);
    let mut lasts = Vec::new();
    let mut bests = Vec::new();
    for seed in 0..args.seeds {
        let all = accuracies(&args, seed)?;
        let last = all[all.len() - 1];
        let best = all.iter().copied().fold(0.0, f64::max);
        println!("seed {seed:2}: last epoch {last:.3}, best epoch {best:.3}");
        lasts.push(last);
        bests.push(best);
    }
    for (name, accs) in [("last", lasts), ("best", bests)] {
        let min = accs.iter().copied().fold(1.0, f64::min);
        let max = accs.iter().copied().fold(0.0, f64::max);
        let mean = accs.iter().sum::<f64>() / accs.len() as f64;
        println!("{name} epoch: {min:.3} to {max:.3}, mean {mean:.3}");
    }
    Ok(())
}
