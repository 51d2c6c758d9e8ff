//! The transformer of example 17 takes PyTorch's steps, and takes them on two replicas too.

use anyhow::{Context, Result, ensure};
use concise::prelude::{AdamW, cross_entropy};
use concise::{DataParallel, Initializer, Trainer, evaluate_accuracy_gpus};

use crate::kit::{cpus, formula_tensor, largest_difference};
use crate::only_rounding_differs_from_pytorch::{close, tensor_is_close, theirs};

#[path = "../../examples/17_transformer.rs"]
#[expect(dead_code, reason = "it is a program")]
mod example;

trials![
    a_hundred_steps_are_pytorchs,
    two_replicas_take_the_steps_of_one,
    accuracy_counts_characters,
];

/// The network on k replicas, with the parameters of `transformer_steps.py`.
fn network(k: usize) -> Result<DataParallel> {
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, example::network)?;
    let mut state = net.state_dict()?;
    for (s, (name, tensor)) in state.iter_mut().enumerate() {
        let std = if tensor.rank() == 2 { 0.08 } else { 0.02 };
        *tensor = formula_tensor(s as u32, std, tensor.dims())?;
        if name.contains("norm") && name.ends_with("weight") {
            *tensor = (&*tensor + 1.0)?;
        }
    }
    net.load_state_dict(&state)?;
    Ok(net)
}

fn losses(net: &DataParallel, steps: usize) -> Result<Vec<f32>> {
    let adamw = AdamW {
        lr: 1e-3,
        ..AdamW::default()
    };
    let mut trainer = Trainer::new(net, cross_entropy, adamw);
    let step = |step| {
        let (x, y) = example::batch(step, 8)?;
        Ok(trainer.step(&x, &y)?.loss.mean()?)
    };
    (0..steps).map(step).collect()
}

fn a_hundred_steps_are_pytorchs() -> Result<()> {
    let theirs = theirs(include_str!("../pytorch/transformer.json"));
    let net = network(1)?;
    let losses = losses(&net, 100)?;
    ensure!(losses[99] < 3.0, "it does not learn: {losses:?}");
    // PyTorch's float32 is up to 8e-7 from its float64
    close("losses", &losses, &theirs["losses"]["float64"], 1e-5)?;
    for (name, theirs) in theirs["tensors"].as_object().context("no tensors")? {
        let float32 = theirs["float32"].as_array().context("no distances")?;
        let distance = |i: usize| float32[i].as_f64().context("no distance");
        let tolerance = [
            2e-4_f64.max(4.0 * distance(0)?),
            4e-6_f64.max(4.0 * distance(1)?),
        ];
        tensor_is_close(name, &net.parameter(name, 0)?, theirs, tolerance)?;
    }
    Ok(())
}

fn two_replicas_take_the_steps_of_one() -> Result<()> {
    let (one, two) = (network(1)?, network(2)?);
    let pairs = losses(&one, 10)?.into_iter().zip(losses(&two, 10)?);
    for (step, (one, two)) in pairs.enumerate() {
        ensure!((one - two).abs() <= 1e-5, "step {step}: {one}, {two}");
    }
    let weight = |net: &DataParallel| net.parameter("block_1.up.weight", 0);
    let apart = largest_difference(&weight(&one)?, &weight(&two)?)?;
    ensure!(apart <= 1e-5, "{apart}");
    Ok(())
}

/// Each example has 32 labels.
fn accuracy_counts_characters() -> Result<()> {
    let net = network(2)?;
    let (x, y) = example::batch(0, 5)?;
    let y_hat = candle_core::Tensor::cat(&net.forward(&x)?, 0)?;
    let right = y_hat.argmax(2)?.eq(&y)?.flatten_all()?.to_vec1::<u8>()?;
    let expected = right.iter().map(|right| f64::from(*right)).sum::<f64>() / 160.0;
    let accuracy = evaluate_accuracy_gpus(&net, [Ok((x, y))])?;
    ensure!(accuracy == expected, "{accuracy}, {expected}");
    Ok(())
}
