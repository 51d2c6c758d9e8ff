//! What the tests of the library share, and the claims of the workspace with them: numbers of a formula, comparisons with
//! PyTorch's, and errors with their words.

use std::fmt::Display;
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use data_parallel::{DataParallel, Sgd, Trainer};
use serde_json::Value;

/// `k` devices on the CPU.
pub fn cpus(k: usize) -> Vec<Device> {
    vec![Device::Cpu; k]
}

/// Checks that a text has some words.
pub fn has(text: &str, words: &str) -> Result<()> {
    ensure!(text.contains(words), "there is no {words:?} in\n{text}");
    Ok(())
}

/// Checks that a result is an error that has some words.
pub fn says<T>(words: &str, result: Result<T, impl Display>) -> Result<()> {
    let error = result.map(drop).map_err(|error| format!("{error:#}"));
    has(&error.expect_err(words), words)
}

/// The formula of `tests/pytorch/formula.py`: numbers in [0, 1) for tensor number `s`.
pub fn formula(s: u32, n: usize) -> impl Iterator<Item = f64> {
    (0..n as u32).map(move |i| {
        let mut h = i
            .wrapping_mul(2_654_435_761)
            .wrapping_add(s.wrapping_mul(2_246_822_519))
            .wrapping_add(374_761_393);
        h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
        h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
        f64::from(h ^ (h >> 16)) / 4_294_967_296.0
    })
}

/// A tensor of the formula, evenly distributed with the standard deviation `std`.
pub fn formula_tensor(s: u32, std: f64, dims: &[usize]) -> candle_core::Result<Tensor> {
    let n = dims.iter().product();
    let values = formula(s, n).map(|u| ((2.0 * u - 1.0) * std * 3f64.sqrt()) as f32);
    Tensor::from_vec(values.collect::<Vec<f32>>(), dims, &Device::Cpu)
}

/// Minibatch number `s` of the formula: images (n, 1, 28, 28) in [0, 1), labels (n,).
pub fn formula_batch(s: u32, n: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let images: Vec<f32> = formula(1000 + s, n * 784).map(|u| u as f32).collect();
    let labels: Vec<u32> = formula(2000 + s, n).map(|u| (u * 10.0) as u32).collect();
    Ok((
        Tensor::from_vec(images, (n, 1, 28, 28), &Device::Cpu)?,
        Tensor::from_vec(labels, n, &Device::Cpu)?,
    ))
}

/// SGD with this learning rate and momentum.
pub fn sgd(lr: f64, momentum: f64) -> Sgd {
    Sgd {
        momentum,
        ..Sgd::new(lr)
    }
}

/// The losses of steps on minibatches of the formula, of `n` examples each.
pub fn steps(trainer: &mut Trainer, batches: Range<u32>, n: usize) -> Result<Vec<f32>> {
    let step = |batch| {
        let (x, y) = formula_batch(batch, n)?;
        Ok(trainer.step(&x, &y)?.loss.mean()?)
    };
    batches.map(step).collect()
}

/// The largest difference between two tensors.
pub fn largest_difference(a: &Tensor, b: &Tensor) -> candle_core::Result<f32> {
    (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// The largest magnitude in a tensor.
pub fn largest(a: &Tensor) -> candle_core::Result<f32> {
    a.abs()?.flatten_all()?.max(0)?.to_scalar()
}

/// What PyTorch has computed.
pub fn theirs(printed: &str) -> Value {
    serde_json::from_str(printed).expect("JSON of tests/pytorch")
}

fn floats(numbers: &Value) -> Result<Vec<f64>> {
    Ok(serde_json::from_value(numbers.clone())?)
}

pub fn close(what: &str, ours: &[f32], theirs: &Value, tolerance: f64) -> Result<()> {
    let theirs = floats(theirs)?;
    ensure!(ours.len() == theirs.len(), "{what}: {} numbers", ours.len());
    for (i, (&ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let difference = (f64::from(ours) - theirs).abs();
        ensure!(difference <= tolerance, "{what}[{i}]: {ours}, {theirs}");
    }
    Ok(())
}

/// Compares the sum of a tensor, and its first elements, or the first and the last.
pub fn tensor_is_close(
    what: &str,
    ours: &Tensor,
    theirs: &Value,
    tolerance: [f64; 2],
) -> Result<()> {
    let values: Vec<f32> = ours.flatten_all()?.to_vec1()?;
    let sum = values.iter().map(|&v| f64::from(v)).sum::<f64>();
    let difference = (sum - theirs["sum"].as_f64().context("no sum")?).abs();
    ensure!(difference <= tolerance[0], "{what}: the sum is {sum}");
    let ends = [&values[..3], &values[values.len() - 3..]].concat();
    let theirs = &theirs["ends"];
    let known = theirs.as_array().context("no elements")?.len();
    close(what, &ends[..known], theirs, tolerance[1])
}

/// Compares losses, and the parameters of the last replica, with PyTorch's in float64. `tolerance` gets how far PyTorch's
/// own float32 is from them, as [`tensor_is_close`] takes it.
pub fn are_pytorchs(
    what: &str,
    net: &DataParallel,
    losses: &[f32],
    theirs: &Value,
    tolerance: impl Fn([f64; 2]) -> [f64; 2],
) -> Result<()> {
    close(what, losses, &theirs["losses"]["float64"], 1e-5)?;
    for (name, theirs) in theirs["tensors"].as_object().context("no tensors")? {
        let float32: [f64; 2] = serde_json::from_value(theirs["float32"].clone())?;
        let ours = net.parameter(name, net.devices().len() - 1)?;
        let what = format!("{what}: {name}");
        tensor_is_close(&what, &ours, theirs, tolerance(float32))?;
    }
    Ok(())
}
