//! Whether a GPU computes what the CPU does: each operation, and whole steps of k replicas, which share
//! the GPU where there are fewer than k.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
use d2l::{DeviceKind, devices_of_kind};
use functional::{Precision, cross_entropy, set_precision};

use super::Options;

/// What some steps left: their losses, and by how much each tensor of the network moved.
struct Ran {
    losses: Vec<f32>,
    moved: Vec<Vec<f32>>,
}

/// The largest difference of two lists of losses, relative.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let differences = a
        .iter()
        .zip(b)
        .map(|(a, b)| f64::from((a - b).abs() / b.abs()));
    worst(differences)
}

/// The largest of some differences, and NaN where one of them is.
fn worst(mut differences: impl Iterator<Item = f64>) -> f64 {
    differences
        .try_fold(0.0, |worst: f64, d| match d.is_nan() {
            true => Err(d),
            false => Ok(worst.max(d)),
        })
        .unwrap_or_else(|nan| nan)
}

/// The largest difference of two lists of vectors, relative to the expected one's length; of one that is zero, by
/// itself.
fn vectors_apart(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let length =
        |v: &mut dyn Iterator<Item = f32>| v.map(f64::from).map(|v| v * v).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    let differences = pairs.map(|(a, b)| {
        let difference = length(&mut a.iter().zip(b).map(|(a, b)| a - b));
        match length(&mut b.iter().copied()) {
            0.0 => difference,
            whole => difference / whole,
        }
    });
    worst(differences)
}

/// The largest difference of two elements.
fn largest_difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let differences = pairs.map(|(a, b)| f64::from((a - b).abs()));
    worst(differences)
}

/// Compares, and adds what it finds to the report.
pub fn all(options: &Options, found: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let mut text = String::from("\n## Correctness\n\n");
    let mut missed = 0;
    if let Some(tests) = &options.tests {
        let run = Command::new(tests)
            .args(["--ignored", "on_a_gpu", "--test-threads=1"])
            .output()
            .with_context(|| format!("cannot start {}", tests.display()))?;
        let said = String::from_utf8_lossy(&run.stdout);
        let result = said.lines().rev().find(|l| l.starts_with("test result"));
        let _ = writeln!(
            text,
            "Operations, compared with the same ones on the CPU: {}\n",
            result.unwrap_or("?")
        );
        if !run.status.success() {
            let failed = said
                .lines()
                .filter(|l| l.contains("panicked") || l.contains("FAILED"));
            failed.for_each(|line| text += &format!("- {line}\n"));
            missed += 1;
        }
    }
    text += "Relative differences from the CPU in f32: losses, and the change of each tensor as a vector:\n\n\
             | | found | bar | reached |\n|---|--:|--:|---|\n";
    let mut add = |what: &str, found: f64, bar: RangeInclusive<f64>| {
        let (line, reached) = line(what, found, bar);
        text += &line;
        missed += usize::from(!reached);
    };
    let compared = beside_the_cpu(&mut add);
    set_precision(Precision::default());
    compared?;
    found(&text)?;
    ensure!(missed == 0, "{missed} things are not right");
    Ok(())
}

/// What rounding to 8 bits may change of a loss. An error is at most 2⁻⁸ of a value, and from there on it is one of
/// many: some fifty values in a row (ResNet-18: the weight, the convolution and the norm of 18 layers) with √(1/3) of
/// that each make about √50 · 2⁻⁸ / √3 ≈ 1.6e-2 of a logit; LeNet has ten, and 20 steps to move apart.
const BF16: f64 = 3e-2;

/// By how much a tensor may move otherwise. A value at ReLU's edge is on either side, and then it counts in all
/// gradients below: in bf16, by estimate, 3 in 1000 at each layer, √(17 · 2 · 0.003) ≈ 0.3 of a gradient behind the 17 of
/// ResNet-18; in f32 a few in all, which are seen in the smallest tensors. A gradient of zeros would be 1 apart.
const MOVES: [f64; 2] = [5e-2, 0.6];

/// What steps on GPUs leave, in f32 and in bf16, beside those on the CPU. What bf16 leaves has to be another thing.
fn beside_the_cpu(add: &mut dyn FnMut(&str, f64, RangeInclusive<f64>)) -> Result<()> {
    let cpu = |k| devices_of_kind(DeviceKind::Cpu, Some(k));
    let cuda = |k| devices_of_kind(DeviceKind::Cuda, Some(k));
    set_precision(Precision::F32);
    let [one, two] = [1, 2].map(|k| lenet(&cuda(k)?, 1));
    add(
        "LeNet, a step, k = 2 compared with k = 1, each parameter, f32",
        largest_difference(&two?.moved, &one?.moved),
        0.0..=1e-6,
    );
    let of_lenet = lenet(&cpu(1)?, STEPS)?;
    // batch norm is each replica's own: compare with as many on the CPU
    let of_resnet = [resnet(&cpu(1)?)?, resnet(&cpu(2)?)?];
    for (precision, name, of_losses, of_moves) in [
        (Precision::F32, "f32", 1e-4, 0.0..=MOVES[0]),
        (Precision::Bf16, "bf16", BF16, 1e-4..=MOVES[1]),
    ] {
        set_precision(precision);
        let mut compare = |what: &str, found: &Ran, expected: &Ran| {
            let losses = apart(&found.losses, &expected.losses);
            add(&format!("{what}, {name}"), losses, 0.0..=of_losses);
            let moves = vectors_apart(&found.moved, &expected.moved);
            add(&format!("… its tensors, {name}"), moves, of_moves.clone());
        };
        for k in 1..=3 {
            let what = format!("LeNet, 20 steps, k = {k}");
            compare(&what, &lenet(&cuda(k)?, STEPS)?, &of_lenet);
        }
        for (k, expected) in (1..).zip(&of_resnet) {
            let what = format!("ResNet-18, a step, k = {k}");
            compare(&what, &resnet(&cuda(k)?)?, expected);
        }
    }
    Ok(())
}

fn minibatch(step: u64, examples: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let rng = &mut d2l::rng(step);
    let x = d2l::uniform(rng, 0.0, 1.0, (examples, 1, 28, 28))?;
    let y = d2l::uniform(rng, 0.0, 10.0, examples)?.to_dtype(DType::U32)?;
    Ok((x, y))
}

/// Steps in which the losses of LeNet are followed.
const STEPS: u64 = 20;

/// Some steps, from weights ten times the book's, with which it learns from the first on.
fn lenet(devices: &[Device], steps: u64) -> Result<Ran> {
    let params = scratch::init_params(0)?;
    let params = params.iter().map(|p| p * 10.0);
    let params = params.collect::<candle_core::Result<Vec<_>>>()?;
    let copies = devices.iter().map(|d| scratch::get_params(&params, d));
    let device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
    let mut losses = Vec::new();
    for number in 0..steps {
        let (x, y) = minibatch(number, 250)?;
        losses.push(scratch::train_batch(&x, &y, &device_params, devices, 0.02)?.mean()?);
    }
    let moved = params.iter().zip(&device_params[0]);
    let moved = moved
        .map(|(before, after)| moved_by(before, after))
        .collect::<Result<_>>()?;
    Ok(Ran { losses, moved })
}

/// One step, which goes through every operation and back.
fn resnet(devices: &[Device]) -> Result<Ran> {
    let init = Initializer::Xavier(3.0);
    let net = DataParallel::new(devices, init, 0, |vb| resnet18(10, vb))?;
    let before = net.state_dict()?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
    let (x, y) = minibatch(0, 16)?;
    let losses = vec![trainer.step(&x, &y)?.loss.mean()?];
    let after = net.state_dict()?;
    let moved = before.iter().zip(&after);
    let moved = moved
        .map(|((_, before), (_, after))| moved_by(before, after))
        .collect::<Result<_>>()?;
    Ok(Ran { losses, moved })
}

/// By how much each element of a tensor moved.
fn moved_by(before: &Tensor, after: &Tensor) -> Result<Vec<f32>> {
    let [before, after] = [before, after].map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F32));
    Ok((after? - before?)?.flatten_all()?.to_vec1()?)
}

/// A line of the table, and whether the bar is reached.
fn line(what: &str, found: f64, bar: RangeInclusive<f64>) -> (String, bool) {
    let reached = bar.contains(&found);
    let word = if reached { "yes" } else { "**no**" };
    let (least, most) = (bar.start(), bar.end());
    let bar = match *least {
        0.0 => format!("≤ {most:e}"),
        _ => format!("{least:e} to {most}"),
    };
    (
        format!("| {what} | {found:.3e} | {bar} | {word} |\n"),
        reached,
    )
}
