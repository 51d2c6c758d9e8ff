//! Checks that whole steps of k replicas on a GPU are what they are on the CPU. Replicas share the GPU where there are
//! fewer than k. The tests of `functional` compare each operation.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use devices::{DeviceKind, devices_of_kind};
use functional::{Precision, set_precision};

use super::Machine;
use super::report::Report;
use crate::bench::train::{apart, train, worst};
use crate::bench::work::Network;

/// Results of some steps: their losses, and by how much each tensor of the network moved.
struct Ran {
    losses: Vec<f32>,
    moved: Vec<Vec<f32>>,
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
    worst(pairs.map(|(a, b)| f64::from((a - b).abs())))
}

/// Change of a loss that rounding to 8 bits may make. An error is at most 2⁻⁸ of a value, and from there on it is one
/// of many: some fifty values in a row (ResNet-18: the weight, the convolution and the norm of 18 layers) with √(1/3)
/// of that each make about √50 · 2⁻⁸ / √3 ≈ 1.6e-2 of a logit; LeNet has ten, and 20 steps to move apart.
const BF16: f64 = 3e-2;

/// By how much a tensor may move otherwise. A value at ReLU's edge is on either side, and then it counts in all
/// gradients below: in bf16, by estimate, 3 in 1000 at each layer, √(17 · 2 · 0.003) ≈ 0.3 of a gradient behind the 17 of
/// ResNet-18; in f32 a few in all, which are seen in the smallest tensors. A gradient of zeros would be 1 apart.
const MOVES: [f64; 2] = [5e-2, 0.6];

/// Compares steps on GPUs, in f32 and in bf16, with those on the CPU. Results in bf16 have to differ from those.
pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    use DeviceKind::{Cpu, Cuda};
    use Network::{Lenet, Resnet18};
    set_precision(Precision::F32);
    let one = steps(Lenet, Cuda, 1, 1)?;
    let two = steps(Lenet, Cuda, 2, 1)?;
    let apart_by = largest_difference(&two.moved, &one.moved);
    report.bar("LeNet, a step, k = 2 beside k = 1", apart_by, &(0.0..=1e-6))?;
    let of_lenet = steps(Lenet, Cpu, 1, 20)?;
    // batch norm is each replica's own: compare with as many on the CPU
    let of_resnet = [steps(Resnet18, Cpu, 1, 1)?, steps(Resnet18, Cpu, 2, 1)?];
    for (precision, name, of_losses, of_moves) in [
        (Precision::F32, "f32", 0.0..=1e-4, 0.0..=MOVES[0]),
        (Precision::Bf16, "bf16", 0.0..=BF16, 1e-4..=MOVES[1]),
    ] {
        set_precision(precision);
        let lenets = (1..=machine.gpus.len().max(3)).map(|k| (Lenet, 20, k, &of_lenet));
        let resnets = (1..)
            .zip(&of_resnet)
            .map(|(k, of_k)| (Resnet18, 1, k, of_k));
        for (network, number, k, expected) in lenets.chain(resnets) {
            let found = steps(network, Cuda, k, number)?;
            let what = format!("{network}, {number} steps, k = {k}, {name}: ");
            let losses = apart(&found.losses, &expected.losses);
            report.bar(&(what.clone() + "losses"), losses, &of_losses)?;
            let moves = vectors_apart(&found.moved, &expected.moved);
            report.bar(&(what + "change of the parameters"), moves, &of_moves)?;
        }
    }
    Ok(())
}

/// Some steps of k replicas: a step of ResNet-18 goes through every operation and back.
fn steps(network: Network, kind: DeviceKind, k: usize, number: u64) -> Result<Ran> {
    let examples = match network {
        Network::Lenet => 250,
        _ => 16,
    };
    let batches = (0..number).map(|step| minibatch(step, examples));
    let trained = train(network, &devices_of_kind(kind, Some(k))?, 0.0, batches)?;
    let moved = trained
        .before
        .iter()
        .zip(&trained.after)
        .map(|(before, after)| moved_by(before, after));
    Ok(Ran {
        losses: trained.losses,
        moved: moved.collect::<Result<_>>()?,
    })
}

fn minibatch(step: u64, examples: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let rng = &mut d2l::rng(step);
    let x = d2l::uniform(rng, 0.0, 1.0, (examples, 1, 28, 28))?;
    let y = d2l::uniform(rng, 0.0, 10.0, examples)?.to_dtype(DType::U32)?;
    Ok((x, y))
}

/// By how much each element of a tensor moved.
fn moved_by(before: &Tensor, after: &Tensor) -> Result<Vec<f32>> {
    let [before, after] = [before, after].map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F32));
    Ok((after? - before?)?.flatten_all()?.to_vec1()?)
}
