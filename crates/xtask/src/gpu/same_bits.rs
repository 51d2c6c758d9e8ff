//! Compares the bits that k replicas learn on several GPUs and on one, while their threads sleep now and then. A
//! difference is a missing order between two GPUs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use candle_core::{DType, Device};
use concise::{Algorithm, Replication};
use run::gpu;

use super::machine::Machine;
use super::report::Report;
use super::trainer::trainer;
use crate::bench::ours::minibatch_on;
use crate::bench::work::Network;

pub fn all(machine: &Machine, batch: usize, report: &mut Report) -> Result<()> {
    functional::set_deterministic(true);
    let mut names = machine
        .gpus()
        .iter()
        .map(|device| gpu(device).map(|gpu| gpu.name));
    let first = names.next();
    if names.any(|name| Some(name) != first) {
        return report.row("left out", "GPUs of different kinds round differently");
    }
    let several = machine.several();
    let on_gpu_0 = |_| Ok(devices::without_events(Device::new_cuda_with_stream(0)?));
    let one = (0..several.len())
        .map(on_gpu_0)
        .collect::<Result<Vec<_>>>()?;
    let batch = batch.min(64); // GPU 0 has all replicas
    for (network, what, minibatches) in [
        (Network::Lenet, "LeNet, 50 minibatches", 50),
        (Network::Resnet18, "ResNet-18, 10 minibatches", 10),
    ] {
        let expected = learn(network, &one, batch, minibatches)?;
        let found = learn(network, several, batch, minibatches)?;
        let differ = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let said = format!("{differ} of {} parameters have other bits", expected.len());
        report.check(
            &format!("{what}, k = {}", several.len()),
            &said,
            differ == 0,
        )?;
    }
    Ok(())
}

/// The bits of all parameters after some minibatches, with a batch of examples on each replica.
fn learn(
    network: Network,
    replicas: &[Device],
    batch: usize,
    minibatches: usize,
) -> Result<Vec<Vec<u32>>> {
    let how = Replication {
        allreduce: Algorithm::Star, // NCCL has an order of its own
        bucket_bytes: 1 << 20,      // many sums during the backward pass
        ..Replication::default()
    };
    let (net, trainer) = trainer(network, how, replicas, nap)?;
    // the first of two minibatches is not summed: nothing but its copies orders the GPUs
    let mut trainer = trainer.accumulate(2)?;
    let (x, y) = minibatch_on(&replicas[0], network, batch * replicas.len())?;
    for _ in 0..minibatches {
        // new ones each time, as a loader makes them: their memory is used again
        trainer.step(&x.copy()?, &y.copy()?)?;
    }
    net.check_replicas()?;
    let bits = net.state_dict()?.into_iter().map(|(_, tensor)| {
        let numbers = tensor
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        Ok(numbers.iter().map(|x| x.to_bits()).collect())
    });
    bits.collect()
}

/// Up to two milliseconds, one time in two.
fn nap() {
    let chance = RandomState::new().build_hasher().finish();
    if chance.is_multiple_of(2) {
        sleep(Duration::from_micros(chance / 2 % 2000));
    }
}
