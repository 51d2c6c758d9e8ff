// Accuracies with shards and minibatches of different sizes, by replicas that predict one class for all images.

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use d2l::Param;

use super::exercise::evaluate_accuracy_on_all;

pub fn check() -> Result<()> {
    // labels of the minibatches, the class that each replica predicts, the accuracy, results of mistakes
    let shards = "you return the mean of the accuracies of the shards, but they have different sizes: add the counts";
    let first = "you count the predictions of only device 0";
    let one_shard = "you divide by the examples of device 0 only: divide by those of all devices";
    let mistakes = [(0.75, shards), (3.0 / 5.0, first), (1.0, first), (4.0 / 3.0, one_shard)];
    evaluate(&[&[0, 0, 0, 1, 0]], &[0, 0], 4.0 / 5.0, &mistakes)?;

    let minibatches = "you return the mean of the accuracies of the minibatches, but the last is shorter: divide once";
    let last = "your result is the accuracy of the last minibatch only: add the counts of all minibatches";
    let mistakes = [(0.65, minibatches), (0.5, last)];
    evaluate(&[&[0, 0, 0, 1, 0], &[1, 0]], &[0, 0], 5.0 / 7.0, &mistakes)?;

    let replica = "all devices use the parameters of device 0, but each has its own replica";
    let mistakes = [(3.0 / 7.0, replica)];
    evaluate(&[&[0, 0, 1, 1, 0, 2, 2]], &[0, 1, 2], 5.0 / 7.0, &mistakes)?;

    // the second minibatch has no example for devices 1 and 2
    evaluate(&[&[3, 1, 3, 2], &[3]], &[3, 3, 3], 3.0 / 5.0, &[])
}

fn evaluate(
    labels: &[&[u32]],
    classes: &[u32],
    right: f64,
    mistakes: &[(f64, &str)],
) -> Result<()> {
    let minibatch = |y: &&[u32]| {
        let x = Tensor::zeros((y.len(), 1, 28, 28), DType::F32, &Device::Cpu)?;
        Ok((x, Tensor::new(*y, &Device::Cpu)?))
    };
    let minibatches = labels.iter().map(minibatch).collect::<Result<Vec<_>>>()?;
    let replicas = classes
        .iter()
        .map(|class| replica(*class))
        .collect::<Result<Vec<_>>>()?;
    let devices = vec![Device::Cpu; classes.len()];
    let yours = evaluate_accuracy_on_all(&replicas, &devices, &minibatches)?;
    let is = |result: f64| (yours - result).abs() < 1e-5;
    let percent = (
        100.0 * right,
        "your result is 100 times too large: return a fraction, not percent",
    );
    let integers = (
        0.0,
        "your result is 0: a quotient of integers is an integer, so convert them to f64 first",
    );
    let errors = (
        1.0 - right,
        "your result is the fraction of the wrong predictions: count the right ones",
    );
    let counts = (
        right * labels.concat().len() as f64,
        "your result is a count: divide it by the number of all examples",
    );
    let general = [&percent, &integers, &errors, &counts];
    let mut mistakes = mistakes.iter().chain(general);
    let why = mistakes.find(|(result, _)| is(*result));
    ensure!(
        is(right),
        "With the labels {labels:?} on devices that predict always the classes {classes:?}, {}.\n  \
         yours: {yours:.4}\n  right: {right:.4}",
        why.map_or("the accuracy is wrong", |(_, why)| *why)
    );
    Ok(())
}

/// LeNet with zeros for all parameters except one bias, so that it predicts `class` for all images.
fn replica(class: u32) -> Result<Vec<Param>> {
    let mut params = scratch::init_params(0)?
        .into_iter()
        .map(|p| p.zeros_like())
        .collect::<candle_core::Result<Vec<_>>>()?;
    let b4 = (0..10).map(|i| if i == class { 1f32 } else { 0.0 });
    params[7] = Tensor::from_iter(b4, &Device::Cpu)?;
    Ok(scratch::get_params(&params, &Device::Cpu)?)
}
