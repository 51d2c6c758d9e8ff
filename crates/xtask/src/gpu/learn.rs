//! Accuracy of the networks that learn on a GPU, with the book's settings.

use anyhow::Result;
use dataset::Data;
use devices::DeviceKind;
use run::{Precision, Summary};

use super::options::{GpuOptions, Report};

/// Trains, and adds each line to the report as soon as it is there.
pub fn all(options: &GpuOptions, report: &mut Report) -> Result<()> {
    let trained = train(options, report);
    functional::set_precision(Precision::default()); // each run set its own
    trained
}

fn train(options: &GpuOptions, report: &mut Report) -> Result<()> {
    let images = match options.data {
        Data::Synthetic => "synthetic images",
        Data::Dir(_) => "Fashion-MNIST",
    };
    report.add(&format!(
        "\n## Accuracy\n\n{} epochs on {images}, in TF32 if the row does not say bf16.\n\n\
         | | seed | last | best | bar | loss | s/epoch |\n|---|--:|--:|--:|--:|--:|--:|\n",
        options.epochs
    ))?;
    // two first: the threads that drive replicas are as many as the first run in a process needs
    for k in [2, 1] {
        let mut last = Vec::new();
        let mut best = Vec::new();
        for seed in 0..3 {
            let summary = scratch::program::train(&of(options, k, seed, Precision::Tf32))?;
            report.add(&line(&format!("LeNet, k = {k}"), seed, "", &summary))?;
            last.push(last_of(&summary.test_acc));
            best.push(best_of(&summary));
        }
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let last = mean(&last);
        let best = mean(&best);
        report.add(&format!(
            "| LeNet, k = {k} | mean | {last:.3} | {best:.3} | ≥ 0.80, best ≥ 0.82 | | |\n"
        ))?;
    }
    for (k, bar) in [(2, "≥ 0.91"), (1, "≥ 0.92")] {
        let summary = concise::train(&of(options, k, 0, Precision::Tf32).into())?;
        report.add(&line(&format!("ResNet-18, k = {k}"), 0, bar, &summary))?;
    }
    let summary = scratch::program::train(&of(options, 1, 0, Precision::Bf16))?;
    report.add(&line("LeNet, k = 1, bf16", 0, "", &summary))?;
    let summary = concise::train(&of(options, 1, 0, Precision::Bf16).into())?;
    report.add(&line("ResNet-18, k = 1, bf16", 0, "", &summary))
}

fn of(options: &GpuOptions, k: usize, seed: u64, precision: Precision) -> run::Options {
    run::Options {
        precision,
        gpus: Some(k),
        device: DeviceKind::Cuda,
        epochs: options.epochs,
        data: Some(options.data.clone()),
        seed,
        ..run::Options::default()
    }
}

fn last_of(of_epochs: &[f64]) -> f64 {
    of_epochs.last().copied().unwrap_or(f64::NAN)
}

fn best_of(summary: &Summary) -> f64 {
    summary.test_acc.iter().copied().fold(f64::NAN, f64::max)
}

fn line(what: &str, seed: u64, bar: &str, summary: &Summary) -> String {
    let last = last_of(&summary.test_acc);
    let best = best_of(summary);
    let loss = last_of(&summary.loss);
    let seconds = summary.sec_per_epoch;
    format!("| {what} | {seed} | {last:.3} | {best:.3} | {bar} | {loss:.3} | {seconds:.2} |\n")
}
