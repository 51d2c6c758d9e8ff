//! How the replicas of a network work together.

use std::time::Duration;

use anyhow::{Result, ensure};
use collective::Algorithm;
use collective::cost::Link;

use super::split::Split;

/// How the replicas of a network work together, for
/// [`DataParallel::with`](crate::DataParallel::with).
///
/// ```
/// use concise::{Algorithm, Replication};
/// let ring = Replication { allreduce: Algorithm::Ring, ..Replication::default() };
/// assert!(ring.overlap);
/// ```
#[derive(Debug, Clone)]
pub struct Replication {
    /// How the gradients are summed.
    pub allreduce: Algorithm,
    /// Where they are.
    pub reduce_on: ReduceOn,
    /// The size of a bucket: gradients that are summed together. A parameter is never cut.
    pub bucket_bytes: usize,
    /// Whether a bucket is summed as soon as it is complete, while the backward pass goes on.
    pub overlap: bool,
    /// Whether batch norm takes its statistics over the whole minibatch. That is so for
    /// [`layers::BatchNorm2d`](crate::layers::BatchNorm2d) and the norms of `functional`. The norms of
    /// candle-nn take the statistics of one replica's part. A network without a norm of this crate or of
    /// `functional` does not train: its step is an error.
    ///
    /// Then replicas without an example run the network as well, because the others wait for them. This works
    /// with the operations of `functional`; candle's own need an example on each replica.
    pub sync_bn: bool,
    /// Whether a step may leave parameters out, as stochastic depth does: then their gradients are zero. Without
    /// it, such a parameter is an error.
    pub allow_unused: bool,
    /// What each replica gets of a minibatch.
    pub split: Split,
    /// How long replicas wait for one that does not come; without a limit for ever.
    pub timeout: Option<Duration>,
    /// Sums take at least as long as over such links: to see what a slower network does.
    pub link: Option<Link>,
}

impl Default for Replication {
    /// As PyTorch's `DistributedDataParallel`: buckets of 25 MiB, overlapped, batch norm of each
    /// device's own. Replicas wait for ten minutes.
    fn default() -> Self {
        Self {
            allreduce: Algorithm::Auto,
            reduce_on: ReduceOn::Device,
            bucket_bytes: 25 << 20,
            overlap: true,
            sync_bn: false,
            allow_unused: false,
            split: Split::Even,
            timeout: Some(Duration::from_secs(600)),
            link: None,
        }
    }
}

/// Where gradients are summed: the two modes of MXNet's key-value store. On the CPU they are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReduceOn {
    /// On the devices, which copy from each other
    Device,
    /// In host memory; each device copies its gradients there and the sums back
    Host,
}

impl Replication {
    /// Whether `k` replicas can work together like this.
    pub(crate) fn check(&self, k: usize) -> Result<()> {
        let split = &self.split;
        if let Some(weights) = split.weights() {
            ensure!(
                weights.len() == k,
                "--split {split}: {} weights for {k} replicas; give one for each",
                weights.len()
            );
        }
        ensure!(
            !(self.sync_bn && *split == Split::Measured),
            "--split measured: with --sync-bn, replicas wait for each other in every batch norm, \
             so their speeds cannot be measured; give weights, such as --split 3,1"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_weight_for_each_replica() {
        let split = Split::Weights(vec![3.0, 1.0]);
        let how = Replication {
            split,
            ..Replication::default()
        };
        assert!(how.check(2).is_ok() && how.check(3).is_err());
    }
}
