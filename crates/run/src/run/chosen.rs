//! Choices of a run where the command line leaves them open.

use candle_core::Device;
use dataset::Dataset;

use crate::lines::Sizes;

pub(super) struct Chosen<'a> {
    /// The name of the network.
    pub network: &'a str,
    /// Number of replicas in all processes.
    pub replicas: usize,
    /// Those of the replicas of this process.
    pub devices: &'a [Device],
    /// Places of the replicas, in words.
    pub places: &'a str,
    /// Number of cores of each replica.
    pub share: usize,
    pub sizes: Sizes,
    pub lr: f64,
    pub data: &'a Dataset,
}
