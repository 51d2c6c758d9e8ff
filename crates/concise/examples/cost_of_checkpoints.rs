//! What a checkpoint costs as it is paid: rounds of 50 steps with a checkpoint behind them and rounds without one, in turns;
//! and a file of the same size that is written without waiting for the disk.
//!
//! `cargo run --release -p concise --example cost_of_checkpoints -- FOLDER [ROUNDS [MOMENTUM]]`, on the disk of FOLDER

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Instant;

use concise::prelude::*;
use concise::resnet18;
use concise::training::files;

const STEPS: usize = 50;

fn lenet(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Nhwc)
        .add(Conv2d::new(1, 20, 3, vb.pp("conv1"))?)
        .add(Relu)
        .add(AvgPool2d::new(2))
        .add(Conv2d::new(20, 50, 5, vb.pp("conv2"))?)
        .add(Relu)
        .add(AvgPool2d::new(2))
        .add(Flatten)
        .add(Linear::new(800, 128, vb.pp("fc1"))?)
        .add(Relu)
        .add(Linear::new(128, 10, vb.pp("fc2"))?))
}

/// Median, least and most of some milliseconds.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            median: times[times.len() / 2],
            least: times[0],
            most: times[times.len() - 1],
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:9.2} ms ({least:.2} to {most:.2})")
    }
}

fn milliseconds(since: Instant) -> f64 {
    1e3 * since.elapsed().as_secs_f64()
}

/// Trains `net` on minibatches of `batch_size` images, and prints what its checkpoints cost.
fn measure(
    net: &DataParallel,
    batch_size: usize,
    momentum: f64,
    folder: &Path,
    rounds: usize,
) -> Result<()> {
    let x = uniform(&mut rng(0), 0.0, 1.0, (batch_size, 1, 28, 28))?;
    let y = Tensor::from_iter((0..batch_size as u32).map(|i| i % 10), &Device::Cpu)?;
    let sgd = Sgd {
        momentum,
        ..Sgd::new(0.001)
    };
    let mut trainer = Trainer::new(net, cross_entropy, sgd);
    let mut checkpoints = Checkpoints::open(folder, &mut trainer)?;
    for _ in 0..5 {
        trainer.step(&x, &y)?;
    }
    let (mut without, mut with, mut save) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let since = Instant::now();
        for _ in 0..STEPS {
            trainer.step(&x, &y)?;
        }
        without.push(milliseconds(since));
        let since = Instant::now();
        for _ in 0..STEPS {
            trainer.step(&x, &y)?;
        }
        let before = Instant::now();
        checkpoints.save(&trainer)?;
        save.push(milliseconds(before));
        with.push(milliseconds(since));
    }
    let bytes = fs::read(folder.join("checkpoint.safetensors"))?;
    let mut unflushed = Vec::new();
    for _ in 0..rounds {
        let since = Instant::now();
        files::write_unflushed(&folder.join("unflushed"), &bytes)?;
        unflushed.push(milliseconds(since));
    }
    let [without, with, save, unflushed] = [without, with, save, unflushed].map(Spread::of);
    println!(
        "minibatches of {batch_size}, momentum {momentum}, a file of {:.2} MB",
        bytes.len() as f64 / 1e6
    );
    println!("  {STEPS} steps                    {without}");
    println!("  {STEPS} steps and a checkpoint   {with}");
    println!("  the checkpoint alone        {save}");
    println!("  its file, without a flush   {unflushed}");
    println!(
        "  the checkpoint is {:.2}% of the time",
        100.0 * save.median / with.median
    );
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder = args.first().map_or("checkpoints", String::as_str);
    let rounds = args
        .get(1)
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(10);
    let momentum = args
        .get(2)
        .and_then(|momentum| momentum.parse().ok())
        .unwrap_or(0.0);
    launch(2, |world| {
        println!("LeNet");
        let net = DataParallel::new(world, Initializer::Layers, 0, lenet)?;
        measure(
            &net,
            256,
            momentum,
            &Path::new(folder).join("lenet"),
            rounds,
        )?;
        println!("ResNet-18");
        let init = Initializer::Normal(0.01);
        let net = DataParallel::new(world, init, 0, |vb| resnet18(10, vb))?;
        measure(
            &net,
            64,
            momentum,
            &Path::new(folder).join("resnet18"),
            rounds,
        )
    })
}
