//! How well the networks learn on a GPU, with the book's settings.

use anyhow::Result;
use d2l::{DeviceKind, Summary};
use dataset::Data;

use super::Options;

/// Trains, and adds each line to the report as soon as it is there.
pub fn all(options: &Options, found: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let images = match options.data {
        Data::Synthetic => "synthetic images",
        _ => "Fashion-MNIST",
    };
    found(&format!(
        "\n## Learns\n\n{} epochs on {images}, TF32.\n\n| | seed | last | best | loss | s/epoch |\n\
         |---|--:|--:|--:|--:|--:|\n",
        options.epochs
    ))?;
    // two first: the threads that drive replicas are as many as the first run in a process needs
    for k in [2, 1] {
        for seed in 0..3 {
            let summary = scratch::train(&of(options, k, seed))?;
            found(&line(&format!("LeNet, k = {k}"), seed, &summary))?;
        }
    }
    for k in [2, 1] {
        let summary = concise::train(&of(options, k, 0).into())?;
        found(&line(&format!("ResNet-18, k = {k}"), 0, &summary))?;
    }
    Ok(())
}

fn of(options: &Options, k: usize, seed: u64) -> d2l::Options {
    d2l::Options {
        gpus: Some(k),
        device: DeviceKind::Cuda,
        epochs: options.epochs,
        data: Some(options.data.clone()),
        seed,
        ..d2l::Options::default()
    }
}

fn line(what: &str, seed: u64, summary: &Summary) -> String {
    let last = summary.test_acc.last().copied().unwrap_or(f64::NAN);
    let best = summary.test_acc.iter().copied().fold(f64::NAN, f64::max);
    let loss = summary.loss.last().copied().unwrap_or(f64::NAN);
    let seconds = summary.sec_per_epoch;
    format!("| {what} | {seed} | {last:.3} | {best:.3} | {loss:.3} | {seconds:.2} |\n")
}
