//! `bench checkpoints`: the cost of a checkpoint on the disk of a folder. Rounds of 50 steps with a checkpoint behind them
//! and without one, in turns; and a file of the same size that is written without waiting for the disk.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use data_parallel::prelude::*;
use data_parallel::training::files;

use super::networks::layers;
use super::ours::minibatch;
use super::stats::{Summary, milliseconds};
use super::work::{Network, Work};

const STEPS: usize = 50;
const REPLICAS: usize = 2;

/// The options of `bench checkpoints`.
#[derive(Args, Debug)]
pub struct CheckpointOptions {
    /// Folder for the checkpoints, on the disk that is measured
    folder: PathBuf,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value = "10")]
    rounds: NonZeroUsize,

    /// Momentum; any but 0 doubles a file
    #[arg(long, value_name = "M", default_value_t = 0.0)]
    momentum: f64,
}

/// Measures both of the book's networks, and prints the times.
///
/// # Errors
/// If a step fails, or the folder cannot be written.
pub fn checkpoints(options: &CheckpointOptions) -> anyhow::Result<()> {
    let steps = [(Network::Lenet, 256), (Network::Resnet18, 64)];
    launch(REPLICAS, |world| {
        for (network, batch) in steps {
            measure(options, world, Work { network, batch })?;
        }
        Ok(())
    })
}

fn measure(options: &CheckpointOptions, world: &World, work: Work) -> anyhow::Result<()> {
    let network = work.network;
    let net = DataParallel::new(world, Initializer::Layers, 0, move |vb| layers(network, vb))?;
    let (x, y) = minibatch(network, work.batch)?;
    let sgd = Sgd {
        momentum: options.momentum,
        ..Sgd::new(0.001)
    };
    let mut trainer = Trainer::new(&net, cross_entropy, sgd);
    let folder = options.folder.join(&work.args()[0]);
    let mut checkpoints = Checkpoints::open(&folder, &mut trainer)?;
    let steps = |trainer: &mut Trainer, n| -> Result<()> {
        for _ in 0..n {
            trainer.step(&x, &y)?;
        }
        Ok(())
    };
    steps(&mut trainer, 5)?;
    let mut without = Vec::new();
    let mut with = Vec::new();
    let mut save = Vec::new();
    for _ in 0..options.rounds.get() {
        without.push(milliseconds(|| steps(&mut trainer, STEPS))?);
        let before = milliseconds(|| steps(&mut trainer, STEPS))?;
        let checkpoint = milliseconds(|| checkpoints.save(&trainer))?;
        save.push(checkpoint);
        with.push(before + checkpoint);
    }
    let bytes = fs::read(folder.join("checkpoint.safetensors"))?;
    let mut unflushed = Vec::new();
    for _ in 0..options.rounds.get() {
        let write = || files::write_unflushed(&folder.join("unflushed"), &bytes);
        unflushed.push(milliseconds(write)?);
    }
    let megabytes = bytes.len() as f64 / 1e6;
    let momentum = options.momentum;
    println!("{STEPS} steps of {work}, momentum {momentum}, a file of {megabytes:.2} MB; ms:");
    for (name, times) in [
        ("the steps", &without),
        ("the steps and a checkpoint", &with),
        ("the checkpoint alone", &save),
        ("its file, without a flush", &unflushed),
    ] {
        println!("  {name:28}{}", Summary::of(times));
    }
    let share = Summary::of(&save).median / Summary::of(&with).median;
    println!("  the checkpoint is {:.2}% of the time", 100.0 * share);
    Ok(())
}
