//! A network whose replicas do something else as well in each pass.

use anyhow::Result;
use candle_core::{Device, Tensor};
use concise::{DataParallel, Initializer, Replication, Sgd, Trainer};
use data_parallel::layers::Sequential;
use functional::candle;

use crate::bench::networks::layers;
use crate::bench::work::Network;

/// Something that the thread of a replica does at the beginning and at the end of a forward pass, while other replicas go on.
pub type Job = fn();

/// The network, and its trainer.
///
/// # Errors
/// If the network cannot be built.
pub fn trainer(
    network: Network,
    how: Replication,
    replicas: &[Device],
    job: Job,
) -> Result<(DataParallel, Trainer)> {
    let with_job = move || {
        candle(move |x: &Tensor| {
            job();
            x.affine(1.0, 0.0)
        })
    };
    let net = DataParallel::with(how, replicas, Initializer::Layers, 0, move |vb| {
        let net = Sequential::new().add(with_job()).add(layers(network, vb)?);
        Ok(net.add(with_job()))
    })?;
    let trainer = Trainer::new(&net, network.loss(), Sgd::new(0.01)).check_gradients(false);
    Ok((net, trainer))
}
