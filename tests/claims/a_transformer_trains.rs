//! The transformer of example 17 takes PyTorch's steps, and takes them on two replicas too.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use concise::layers::Sequential;
use concise::{DataParallel, Initializer, Trainer, evaluate_accuracy_gpus};
use data_parallel::prelude::{AdamW, cross_entropy, masked_cross_entropy};
use functional::{Network, Value};

use crate::kit::{are_pytorchs, cpus, formula_tensor, largest_difference, theirs};

#[path = "../../examples/17_transformer.rs"]
#[expect(dead_code, reason = "it is a program")]
mod example;

trials![
    a_hundred_steps_are_pytorchs,
    with_padding_too,
    two_replicas_take_the_steps_of_one,
    accuracy_counts_characters,
];

/// The network on k replicas, with the parameters of `transformer_steps.py`.
fn network(k: usize) -> Result<DataParallel> {
    // in a Sequential it has a type with a name, which `Trainer::with` asks for
    let named = |vb: VarBuilder<'_>| Ok(Sequential::new().add(example::network(vb)?));
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, named)?;
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

fn adamw() -> AdamW {
    AdamW {
        lr: 1e-3,
        ..AdamW::default()
    }
}

fn losses(net: &DataParallel, steps: usize) -> Result<Vec<f32>> {
    let mut trainer = Trainer::new(net, cross_entropy, adamw());
    let step = |step| {
        let (x, y) = example::batch(step, 8)?;
        Ok(trainer.step(&x, &y)?.loss.mean()?)
    };
    (0..steps).map(step).collect()
}

fn a_hundred_steps_are_pytorchs() -> Result<()> {
    let net = network(1)?;
    let losses = losses(&net, 100)?;
    learns_as_pytorch(include_str!("../pytorch/transformer.json"), &net, &losses)
}

fn learns_as_pytorch(json: &str, net: &DataParallel, losses: &[f32]) -> Result<()> {
    ensure!(losses[99] < 3.0, "it does not learn: {losses:?}");
    let tolerance = |[sum, apart]: [f64; 2]| [2e-4_f64.max(4.0 * sum), 4e-6_f64.max(4.0 * apart)];
    // PyTorch's float32 is up to 8e-7 from its float64
    are_pytorchs("a hundred steps", net, losses, &theirs(json), tolerance)
}

/// 1 where a character of minibatch `step` is no padding, as `transformer_steps.py` has it.
fn mask(step: usize, examples: usize) -> Result<Tensor> {
    let row = |e: usize| {
        let length = 1 + (7 * step + 5 * e) % example::CONTEXT;
        (0..example::CONTEXT).map(move |i| if i < length { 1f32 } else { 0.0 })
    };
    let mask = Tensor::from_iter((0..examples).flat_map(row), &Device::Cpu)?;
    Ok(mask.reshape((examples, example::CONTEXT))?)
}

/// The mean over the characters of all replicas that are no padding, on one device and on three.
fn with_padding_too() -> Result<()> {
    for k in [1, 3] {
        let net = network(k)?;
        let loss = |net: &Sequential, x: &[Value], y: &[Tensor]| {
            masked_cross_entropy(&net.forward(&x[0], true)?, &y[0], &y[1])
        };
        let mut trainer = Trainer::with(&net, loss, adamw())?
            .mean_over(|_, y| y[1].sum_all()?.to_scalar::<f32>());
        let mut losses = Vec::new();
        for step in 0..100 {
            let ((x, y), mask) = (example::batch(step, 8)?, mask(step, 8)?);
            let x = (x * mask.to_dtype(DType::U32)?)?;
            losses.push(trainer.step(&x, &(y, mask))?.loss.mean()?);
        }
        let json = include_str!("../pytorch/transformer_padded.json");
        learns_as_pytorch(json, &net, &losses).with_context(|| format!("k = {k}"))?;
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
    let y_hat = net.forward(&x)?;
    let right = y_hat.argmax(2)?.eq(&y)?.flatten_all()?.to_vec1::<u8>()?;
    let expected = right.iter().map(|right| f64::from(*right)).sum::<f64>() / 160.0;
    let accuracy = evaluate_accuracy_gpus(&net, [Ok((x, y))])?;
    ensure!(accuracy == expected, "{accuracy}, {expected}");
    Ok(())
}
