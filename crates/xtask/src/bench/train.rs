//! Short trainings that are compared with each other: LeNet with learning rate 0.02, from weights ten times the
//! book's, with which it learns from the first step on; ResNet-18 with learning rate 0.01.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use concise::{DataParallel, Initializer, Sgd, Trainer};
use functional::cross_entropy;
use run::BatchLoss;

use crate::bench::networks::layers;
use crate::bench::ours::TrainStep;
use crate::bench::work::Network;

/// Results of some steps.
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
    let losses = |step: &mut TrainStep<'_>| {
        let losses = batches.map(|batch| {
            let (x, y) = batch?;
            Ok(step(&x, &y)?.mean()?)
        });
        losses.collect::<Result<Vec<f32>>>()
    };
    let (losses, before, after) = match network {
        Network::Lenet => {
            let params = scratch::init_params(0)?.into_iter();
            let before = params
                .map(|param| noisy(&(param * 10.0)?, noise))
                .collect::<candle_core::Result<Vec<_>>>()?;
            let params = scratch::replicas(&before, devices)?;
            let losses = losses(&mut |x, y| {
                let ls = scratch::train_batch(x, y, &params, devices, 0.02)?;
                Ok(BatchLoss::new(ls, x.dim(0)?))
            })?;
            let after = params[0].iter().map(|param| Tensor::clone(param)).collect();
            (losses, before, after)
        }
        _ => {
            let init = Initializer::Xavier(3.0);
            let net = DataParallel::new(devices, init, 0, move |vb| layers(network, vb))?;
            let mut state = net.state_dict()?;
            for (_, tensor) in &mut state {
                *tensor = noisy(tensor, noise)?;
            }
            net.load_state_dict(&state)?;
            let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
            let losses = losses(&mut |x, y| Ok(trainer.step(x, y)?.loss))?;
            let tensors = |state: Vec<(String, Tensor)>| state.into_iter().map(|(_, t)| t);
            let before = tensors(state).collect();
            let after = tensors(net.state_dict()?).collect();
            (losses, before, after)
        }
    };
    Ok(Trained {
        losses,
        before,
        after,
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
    differences.fold(
        0.0,
        |worst, d| if d > worst || d.is_nan() { d } else { worst },
    )
}
