//! What a checkpoint costs as it is paid: rounds of 50 steps with a checkpoint behind them and rounds without one, in turns;
//! and a file of the same size that is written without waiting for the disk.
//!
//! `cargo run --release -p concise --example cost_of_checkpoints -- FOLDER [ROUNDS]`, on the disk of FOLDER

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

/// Milliseconds of each round.
#[derive(Default)]
struct Rounds {
    without: Vec<f64>,
    with: Vec<f64>,
    save: Vec<f64>,
    unflushed: Vec<f64>,
}

fn measure(
    name: &str,
    net: &DataParallel,
    batch_size: usize,
    folder: &Path,
    rounds: usize,
) -> Result<()> {
    let x = uniform(&mut rng(0), 0.0, 1.0, (batch_size, 1, 28, 28))?;
    let y = Tensor::from_iter((0..batch_size as u32).map(|i| i % 10), &Device::Cpu)?;
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::new(0.001)
    };
    let mut trainer = Trainer::new(net, cross_entropy, momentum);
    let mut checkpoints = Checkpoints::open(folder.join(name), &mut trainer)?;
    for _ in 0..5 {
        trainer.step(&x, &y)?;
    }
    let mut times = Rounds::default();
    for round in 0..2 * rounds {
        let saves = round % 2 == 1;
        let since = Instant::now();
        for _ in 0..STEPS {
            trainer.step(&x, &y)?;
        }
        let before = Instant::now();
        if saves {
            checkpoints.save(&trainer)?;
            times.save.push(1e3 * before.elapsed().as_secs_f64());
        }
        let took = 1e3 * since.elapsed().as_secs_f64();
        let kind = if saves {
            &mut times.with
        } else {
            &mut times.without
        };
        kind.push(took);
    }
    let newest = folder.join(name).join("checkpoint.safetensors");
    let bytes = std::fs::read(&newest)?;
    for _ in 0..rounds {
        let since = Instant::now();
        files::write_unflushed(&folder.join(name).join("unflushed"), &bytes)?;
        times.unflushed.push(1e3 * since.elapsed().as_secs_f64());
    }
    println!(
        "{name}, minibatches of {batch_size}, a file of {:.2} MB",
        bytes.len() as f64 / 1e6
    );
    let [without, with, save, unflushed] =
        [times.without, times.with, times.save, times.unflushed].map(Spread::of);
    println!("  {STEPS} steps                    {without}");
    println!("  {STEPS} steps and a checkpoint   {with}");
    println!("  the checkpoint alone        {save}");
    println!("  its file, without a flush   {unflushed}");
    let cost = |part: f64, whole: f64| 100.0 * part / whole;
    println!(
        "  cost: {:.2}% of the time by the checkpoint alone, {:.2}% by the rounds",
        cost(save.median, with.median),
        cost(with.median - without.median, with.median)
    );
    Ok(())
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

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:9.2} ms ({least:.2} to {most:.2})")
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| "checkpoints".to_owned());
    let rounds = args
        .next()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(10);
    launch(2, |world| {
        let net = DataParallel::new(world, Initializer::Layers, 0, lenet)?;
        measure("LeNet", &net, 256, Path::new(&folder), rounds)?;
        let init = Initializer::Normal(0.01);
        let net = DataParallel::new(world, init, 0, |vb| resnet18(10, vb))?;
        measure("ResNet-18", &net, 64, Path::new(&folder), rounds)
    })
}
