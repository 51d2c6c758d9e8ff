//! How well the networks learn on a GPU, with the book's settings.

use std::fmt::Write;

use anyhow::Result;
use d2l::{DeviceKind, Summary};
use dataset::Data;

use super::Options;

/// The part of the report.
pub fn all(options: &Options) -> Result<String> {
    let images = match options.data {
        Data::Synthetic => "synthetic images",
        _ => "Fashion-MNIST",
    };
    let mut text = format!(
        "\n## Learns\n\n{} epochs on {images}, TF32.\n\n| | seed | last | best | loss | s/epoch |\n\
         |---|--:|--:|--:|--:|--:|\n",
        options.epochs
    );
    for k in [1, 2] {
        for seed in 0..3 {
            let found = scratch::train(&of(options, k, seed))?;
            add(&mut text, &format!("LeNet, k = {k}"), seed, &found);
        }
    }
    for k in [1, 2] {
        let found = concise::train(&of(options, k, 0))?;
        add(&mut text, &format!("ResNet-18, k = {k}"), 0, &found);
    }
    Ok(text)
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

fn add(text: &mut String, what: &str, seed: u64, found: &Summary) {
    let last = found.test_acc.last().copied().unwrap_or(f64::NAN);
    let best = found.test_acc.iter().copied().fold(f64::NAN, f64::max);
    let loss = found.loss.last().copied().unwrap_or(f64::NAN);
    let seconds = found.sec_per_epoch;
    let _ = writeln!(
        text,
        "| {what} | {seed} | {last:.3} | {best:.3} | {loss:.3} | {seconds:.2} |"
    );
}
