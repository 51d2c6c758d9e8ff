// 5b. finds_a_mistake: write the test, not the code
//
// `step` is a `train_batch`. It is right, or it has a mistake. Return true if
// your test finds a mistake.
//
// The lab calls your test with the right step and with six wrong ones. Then it
// says which mistakes you found. In training the loss falls with all six.
//
// `run(step, k, n)` takes one step on k devices, with n images. It returns the
// loss, and the replicas after the step. All runs begin with the same
// parameters, and the first n images are always the same.
//
// `differ(a, b)` is true if two replicas differ by more than rounding. Which
// runs, and which replicas, are equal with the right step? With which k and n
// do they differ because of a mistake?

use candle_core::{Device, Result, Tensor};
use d2l::Param;
use lab::training::TrainBatch;

fn run(step: TrainBatch, k: usize, n: usize) -> Result<(f32, Vec<Vec<Param>>)> {
    let devices = vec![Device::Cpu; k];
    // ten times the book's weights, because its first gradients are nearly zero
    let scaled = scratch::init_params(0)?.into_iter().map(|p| p * 10.0);
    let replicas = scratch::replicas(&scaled.collect::<Result<Vec<_>>>()?, &devices)?;
    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (n, 1, 28, 28))?;
    let y = Tensor::from_iter((0..n as u32).map(|i| 3 * i % 10), &Device::Cpu)?;
    let loss = step(&x, &y, &replicas, &devices, 0.1)?;
    Ok((loss, replicas))
}

fn differ(a: &[Param], b: &[Param]) -> bool {
    a.iter().zip(b).any(|(a, b)| lab::same("", a, b).is_err())
}

pub fn finds_a_mistake(step: TrainBatch) -> Result<bool> {
    // gap: todo!("compare runs of `step`")
    let (loss, one) = run(step, 1, 5)?;
    let (loss_of_two, two) = run(step, 2, 5)?;
    let loss_differs = (loss - loss_of_two).abs() > 1e-4 * loss;
    Ok(loss_differs || two.iter().any(|w| differ(w, &one[0])))
    // end of gap
}
