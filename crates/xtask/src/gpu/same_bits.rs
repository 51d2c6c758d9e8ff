//! Whether k replicas on several GPUs learn the bits of k replicas on one, while their threads sleep now and then. A
//! difference is a missing order between two GPUs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use candle_core::Device;
use concise::{Algorithm, DataParallel, Initializer, Replication, Sgd, Trainer};
use data_parallel::layers::Sequential;
use functional::Value;

use super::Machine;
use super::report::Report;
use crate::bench::networks::layers;
use crate::bench::ours::minibatch;
use crate::bench::work::Network;

pub fn all(machine: &Machine, batch: usize, report: &mut Report) -> Result<()> {
    functional::set_deterministic(true);
    let several = machine.several()?;
    let k = several.len();
    let on_gpu_0 = |_| Ok(devices::without_events(Device::new_cuda_with_stream(0)?));
    let one = (0..k).map(on_gpu_0).collect::<Result<Vec<_>>>()?;
    for (network, what, steps) in [
        (Network::Lenet, "LeNet, 50 minibatches", 50),
        (Network::Resnet18, "ResNet-18, 10 minibatches", 10),
    ] {
        let expected = learn(network, &one, batch, steps)?;
        let found = learn(network, &several, batch, steps)?;
        let differ = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let said = format!("{differ} of {} parameters have other bits", expected.len());
        report.check(&format!("{what}, k = {k}"), &said, differ == 0)?;
    }
    Ok(())
}

/// The bits of all parameters after some steps, with a batch of examples on each replica.
fn learn(
    network: Network,
    replicas: &[Device],
    batch: usize,
    steps: usize,
) -> Result<Vec<Vec<u32>>> {
    let how = Replication {
        allreduce: Algorithm::Star, // NCCL has an order of its own
        bucket_bytes: 1 << 20,      // many sums during the backward pass
        ..Replication::default()
    };
    let net = DataParallel::with(how, replicas, Initializer::Layers, 0, move |vb| {
        Ok(Sequential::new()
            .add(nap)
            .add(layers(network, vb)?)
            .add(nap))
    })?;
    // the first of two minibatches is not summed: nothing but its copies orders the GPUs
    let trainer = Trainer::new(&net, network.loss(), Sgd::new(0.01)).accumulate(2)?;
    let mut trainer = trainer.check_gradients(false);
    let (x, y) = minibatch(network, batch * replicas.len())?;
    let x = x.to_device(&replicas[0])?;
    let y = y.to_device(&replicas[0])?;
    for _ in 0..steps {
        // new ones in each step, as a loader makes them: their memory is used again
        trainer.step(&x.copy()?, &y.copy()?)?;
    }
    net.check_replicas()?;
    let state = net.state_dict()?;
    let bits = state.iter().map(|(_, tensor)| {
        let numbers = tensor.to_dtype(candle_core::DType::F32)?.flatten_all()?;
        Ok(numbers
            .to_vec1::<f32>()?
            .iter()
            .map(|x| x.to_bits())
            .collect())
    });
    bits.collect()
}

/// A layer that keeps the calling thread from the GPU for up to two milliseconds, one time in two.
fn nap(x: &Value, _train: bool) -> candle_core::Result<Value> {
    let chance = RandomState::new().build_hasher().finish();
    if chance % 2 == 0 {
        sleep(Duration::from_micros(chance / 2 % 2000));
    }
    Ok(x.clone())
}
