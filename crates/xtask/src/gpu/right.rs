//! Checks that whole steps of k replicas on a GPU are what they are on the CPU. Replicas share the GPU where there are
//! fewer than k. The tests of `functional` compare each operation.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use functional::{Precision, set_precision};

use super::machine::Machine;
use super::report::Report;
use crate::bench::train::{Trained, apart, train, worst};
use crate::bench::work::Network;

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

/// Change of a loss that rounding to 8 bits may make. An error is at most 2⁻⁸ of a value, and from there on it is one
/// of many: some fifty values in a row (ResNet-18: the weight, the convolution and the norm of 18 layers) with √(1/3)
/// of that each make about √50 · 2⁻⁸ / √3 ≈ 1.6e-2 of a logit; LeNet has ten, and 20 steps to move apart.
const BF16: f64 = 3e-2;

/// By how much a tensor may move otherwise. A value at ReLU's edge is on either side, and then it counts in all
/// gradients below: in bf16, by estimate, 3 in 1000 at each layer, √(17 · 2 · 0.003) ≈ 0.3 of a gradient behind the 17 of
/// ResNet-18; in f32 a few in all, which are seen in the smallest tensors. A gradient of zeros would be 1 apart.
const MOVES: [f64; 2] = [5e-2, 0.6];

/// Compares steps on GPUs with those on the CPU in f32: of LeNet with its own all-reduce, of ResNet-18 with that of the
/// library, which is NCCL's where each replica has a GPU.
pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let gpus = machine.gpus().len();
    let one = steps(Network::Lenet, &[Device::Cpu], 20)?;
    for k in 1..=gpus.max(3) {
        compare(Network::Lenet, machine.replicas(k), 20, &one, report)?;
    }
    for k in [1, 2, gpus].into_iter().take(gpus.clamp(2, 3)) {
        // batch norm is each replica's own: compare with as many on the CPU
        let of_k = steps(Network::Resnet18, &vec![Device::Cpu; k], 1)?;
        compare(Network::Resnet18, machine.replicas(k), 1, &of_k, report)?;
    }
    Ok(())
}

/// Compares in each arithmetic. Results in bf16 have to differ from those of f32.
fn compare(
    network: Network,
    replicas: &[Device],
    number: u64,
    expected: &Trained,
    report: &mut Report,
) -> Result<()> {
    let k = replicas.len();
    for (precision, name, of_losses, of_moves) in [
        (Precision::F32, "f32", 1e-4, 0.0..=MOVES[0]),
        (Precision::Tf32, "TF32", BF16, 0.0..=MOVES[1]),
        (Precision::Bf16, "bf16", BF16, 1e-4..=MOVES[1]),
    ] {
        set_precision(precision);
        let found = steps(network, replicas, number);
        set_precision(Precision::F32);
        let found = found?;
        let what = format!("{network}, steps: {number}, k = {k}, {name}: ");
        let losses = apart(&found.losses, &expected.losses);
        report.bar(&(what.clone() + "losses"), losses, &(0.0..=of_losses))?;
        let moves = vectors_apart(&moved(&found)?, &moved(expected)?);
        report.bar(&(what + "change of the parameters"), moves, &of_moves)?;
    }
    Ok(())
}

/// Some steps: one of ResNet-18 goes through every operation and back.
fn steps(network: Network, replicas: &[Device], number: u64) -> Result<Trained> {
    let examples = match network {
        Network::Lenet => 250,
        _ => 16,
    };
    let batches = (0..number).map(|step| minibatch(step, examples));
    train(network, replicas, 0.0, batches)
}

fn minibatch(step: u64, examples: usize) -> candle_core::Result<(Tensor, Tensor)> {
    let rng = &mut d2l::rng(step);
    let x = d2l::uniform(rng, 0.0, 1.0, (examples, 1, 28, 28))?;
    let y = d2l::uniform(rng, 0.0, 10.0, examples)?.to_dtype(DType::U32)?;
    Ok((x, y))
}

/// By how much each element of each tensor moved.
fn moved(trained: &Trained) -> Result<Vec<Vec<f32>>> {
    let pairs = trained.before.iter().zip(&trained.after);
    let moved = pairs.map(|(before, after)| {
        let [before, after] =
            [before, after].map(|t| t.to_device(&Device::Cpu)?.to_dtype(DType::F32));
        Ok((after? - before?)?.flatten_all()?.to_vec1()?)
    });
    moved.collect()
}
