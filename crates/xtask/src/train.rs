//! Short trainings that are compared with each other: LeNet with learning rate 0.02, from weights ten times the
//! book's, with which it learns from the first step on; ResNet-18 with learning rate 0.01.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
use functional::cross_entropy;

use crate::bench::work::Network;

/// What some steps left.
pub struct Trained {
    /// The loss of each step.
    pub losses: Vec<f32>,
    /// The tensors of the network before the first step.
    pub before: Vec<Tensor>,
    /// The same tensors after the last.
    pub after: Vec<Tensor>,
}

/// Trains on minibatches, a step each, with a replica on each device. The first weights have relative noise of this
/// standard deviation.
///
/// # Errors
/// If there is no minibatch, or a step fails.
pub fn train(
    network: Network,
    devices: &[Device],
    noise: f64,
    batches: impl Iterator<Item = candle_core::Result<(Tensor, Tensor)>>,
) -> Result<Trained> {
    match network {
        Network::Lenet => lenet(devices, noise, batches),
        Network::Resnet18 => resnet(devices, noise, batches),
    }
}

fn lenet(
    devices: &[Device],
    noise: f64,
    batches: impl Iterator<Item = candle_core::Result<(Tensor, Tensor)>>,
) -> Result<Trained> {
    let mut before = Vec::new();
    for param in scratch::init_params(0)? {
        before.push(noisy(&(param * 10.0)?, noise)?);
    }
    let copies = devices.iter().map(|d| scratch::get_params(&before, d));
    let device_params = copies.collect::<candle_core::Result<Vec<_>>>()?;
    let mut losses = Vec::new();
    for batch in batches {
        let (x, y) = batch?;
        losses.push(scratch::train_batch(&x, &y, &device_params, devices, 0.02)?.mean()?);
    }
    let after = device_params[0].iter().map(|param| Tensor::clone(param));
    Ok(Trained {
        losses,
        before,
        after: after.collect(),
    })
}

fn resnet(
    devices: &[Device],
    noise: f64,
    batches: impl Iterator<Item = candle_core::Result<(Tensor, Tensor)>>,
) -> Result<Trained> {
    let init = Initializer::Xavier(3.0);
    let net = DataParallel::new(devices, init, 0, |vb| resnet18(10, vb))?;
    let mut before = net.state_dict()?;
    for (_, tensor) in &mut before {
        *tensor = noisy(tensor, noise)?;
    }
    net.load_state_dict(&before)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
    let mut losses = Vec::new();
    for batch in batches {
        let (x, y) = batch?;
        losses.push(trainer.step(&x, &y)?.loss.mean()?);
    }
    let tensors = |state: Vec<(String, Tensor)>| state.into_iter().map(|(_, t)| t).collect();
    Ok(Trained {
        losses,
        before: tensors(before),
        after: tensors(net.state_dict()?),
    })
}

/// A tensor with relative noise of this standard deviation; counters have none.
fn noisy(t: &Tensor, noise: f64) -> candle_core::Result<Tensor> {
    if t.dtype() != DType::F32 {
        return Ok(t.clone());
    }
    let noise = d2l::normal(&mut d2l::rng(1), noise, t.shape())?;
    t + (t * noise.to_device(t.device())?)?
}

/// The largest difference of two lists of losses, relative.
pub fn apart(found: &[f32], expected: &[f32]) -> f64 {
    let pairs = found.iter().zip(expected);
    worst(pairs.map(|(a, b)| f64::from((a - b).abs() / b.abs())))
}

/// The largest of some differences, and NaN if one of them is.
pub fn worst(differences: impl Iterator<Item = f64>) -> f64 {
    differences.fold(0.0, |worst, d| match d > worst || d.is_nan() {
        true => d,
        false => worst,
    })
}
