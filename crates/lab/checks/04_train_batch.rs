// Steps with even, uneven and empty shards: the replicas stay the same, and the step and the loss are right.

use anyhow::{Result, anyhow, ensure};
use candle_core::{Device, Tensor};
use d2l::Param;
use lab::same;

use super::exercise::train_batch;

pub fn check() -> Result<()> {
    for (n, k) in [(6, 2), (5, 2), (4, 3), (3, 4)] {
        step(n, k, &format!("With {n} examples on {k} devices"))?;
    }
    Ok(())
}

fn step(n: usize, k: usize, what: &str) -> Result<()> {
    // ten times the book's weights, because its first gradients are nearly zero
    let scaled = scratch::init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<candle_core::Result<Vec<_>>>()?;
    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (n, 1, 28, 28))?;
    let y = Tensor::from_iter((0..n as u32).map(|i| 3 * i % 10), &Device::Cpu)?;
    let devices = vec![Device::Cpu; k];
    let replicas = scratch::replicas(&params, &devices)?;
    let loss = train_batch(&x, &y, &replicas, &devices, 0.5).map_err(of_one_device)?;

    for j in 1..k {
        let (first, other) = (b4(&replicas[0])?, b4(&replicas[j])?);
        ensure!(
            (0..8).all(|i| same("", &replicas[j][i], &replicas[0][i]).is_ok()),
            "{what}, replicas 0 and {j} differ after the step. Is there an all-reduce of each parameter, and \
             then `sgd` for each replica? Or does `allreduce` get copies? A `clone` of a gradient has its memory, a \
             `copy` has its own.\n  b4[..4] of replica 0: {first:.4?}\n  b4[..4] of replica {j}: {other:.4?}"
        );
    }

    // the right step: one replica computes the mean loss of the whole minibatch
    let one = scratch::get_params(&params, &Device::Cpu)?;
    let l = scratch::loss(&scratch::lenet(&x, &one)?, &y)?.mean()?;
    let right_loss = d2l::backward(&l, &one)?.to_scalar::<f32>()?;
    d2l::sgd(&one, 0.5, 1)?;

    let (yours, right) = (b4(&replicas[0])?, b4(&one)?);
    let ratio = yours[0] / right[0];
    if (0..4).all(|i| (yours[i] - ratio * right[i]).abs() < 1e-5) {
        ensure!(
            (ratio - 1.0).abs() < 1e-3,
            "{what}, your step is {ratio:.3} times the right one: {}.\n  \
             yours: b4[..4] = {yours:.4?}\n  right: b4[..4] = {right:.4?}",
            why_so_long(ratio, k)
        );
    }
    ensure!(
        n.is_multiple_of(k) || same("", &replicas[0][7], &one[7]).is_ok(),
        "{what}, your step is wrong. Is it the mean of the shards' means? Then examples of small shards \
         count more than others.\n  yours: b4[..4] = {yours:.4?}\n  right: b4[..4] = {right:.4?}"
    );
    for i in 0..8 {
        let what = format!("{what}, parameter {i} after the step");
        same(&what, &replicas[0][i], &one[i])?;
    }
    ensure!(
        (loss - right_loss).abs() < 1e-4 * right_loss,
        "{what}, your loss is wrong: add the losses of the shards, and divide once by the number of examples.\n  \
         yours: {loss:.4}\n  right: {right_loss:.4}"
    );
    Ok(())
}

/// An error of the addition of W1 and b1, the first two parameters of a device.
fn of_one_device(error: candle_core::Error) -> anyhow::Error {
    let shapes = "shape mismatch in add, lhs: [20, 1, 3, 3], rhs: [20]";
    if error.to_string().contains(shapes) {
        anyhow!(
            "`allreduce` adds tensors of different shapes: [20, 1, 3, 3] and [20]. Did you give it all parameters of \
             one device? Give it one parameter of all devices."
        )
    } else {
        error.into()
    }
}

/// What a step of `ratio` times the right length probably is.
fn why_so_long(ratio: f32, k: usize) -> &'static str {
    let is = |factor: f32| (ratio - factor).abs() < 1e-3;
    match k as f32 {
        _ if is(0.0) => "update each replica with `sgd`",
        k if is(k) => "divide by the whole minibatch, not by a shard, and do not multiply `lr` by the number of devices",
        k if is(1.0 / k) => "the gradients are divided twice, by examples and devices",
        _ => "divide the sum of the gradients by the number of examples, and only once",
    }
}

/// Values of the bias b4, which begins with zeros, so that they are its step.
fn b4(replica: &[Param]) -> Result<Vec<f32>> {
    Ok(replica[7].narrow(0, 0, 4)?.to_vec1()?)
}
