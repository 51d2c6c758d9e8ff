//! How the replicas of a network work together.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use candle_core::Device;
use collective::cost::Link;
use collective::{Algorithm, GroupOptions};

/// How the replicas of a network work together, for
/// [`DataParallel::with`](crate::DataParallel::with).
///
/// ```
/// use data_parallel::{Algorithm, prelude::*};
/// let ring = Replication { allreduce: Algorithm::Ring, ..Replication::default() };
/// assert!(ring.overlap);
/// ```
#[derive(Debug, Clone)]
pub struct Replication {
    /// The algorithm that sums the gradients.
    pub allreduce: Algorithm,
    /// Where they are.
    pub reduce_on: ReduceOn,
    /// The size of a bucket: gradients that are summed together. A parameter is never cut.
    pub bucket_bytes: usize,
    /// True if a bucket is summed as soon as it is complete, while the backward pass goes on.
    pub overlap: bool,
    /// True if batch norm takes its statistics over the whole minibatch. That is so for
    /// [`layers::BatchNorm2d`](crate::layers::BatchNorm2d) and the norms of `functional`. The norms of
    /// candle-nn take the statistics of one replica's part. So with this setting, a step of a network without a norm of
    /// this crate or of `functional` is an error.
    ///
    /// Then replicas without an example run the network as well, because the others wait for them. This works
    /// with the operations of `functional`; candle's own need an example on each replica.
    pub sync_bn: bool,
    /// True if a step may leave parameters out, as stochastic depth does. A parameter that no replica uses in a step
    /// keeps its value and its optimizer state, as in PyTorch. On a GPU each step then waits for the sums. Without this,
    /// such a parameter is an error.
    pub allow_unused: bool,
    /// How long replicas wait for one that does not come; without a limit for ever.
    pub timeout: Option<Duration>,
    /// Sums within a process take at least as long as over such links: to see what a slower network does.
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
            timeout: Some(Duration::from_secs(600)),
            link: None,
        }
    }
}

impl Replication {
    /// How the replicas of a group sum.
    pub(crate) fn group_options(&self, link: Option<Link>) -> GroupOptions {
        GroupOptions {
            algorithm: self.allreduce,
            timeout: self.timeout,
            link,
        }
    }

    /// Lines that a program should show of a network that works together so.
    pub(crate) fn warnings(&self, devices: &[Device], candle_is_limited: bool) -> Vec<String> {
        let slow = "compiled without optimization, so training takes many times as long; build with --release, or \
                    with an opt-level for the dependencies in Cargo.toml";
        let slow = (!functional::OPTIMIZED).then(|| slow.to_owned());
        let copies = devices::connect(devices); // of minibatches too, whatever sums
        let on_all_cores = "candle computes its operations on all cores, beside the replicas: begin `main` with \
                            data_parallel::launch, or set CANDLE_NUM_THREADS=1";
        let on_all_cores =
            (!candle_is_limited && devices[0].is_cpu()).then(|| on_all_cores.to_owned());
        slow.into_iter().chain(copies).chain(on_all_cores).collect()
    }
}

/// Where gradients are summed: the two modes of MXNet's key-value store. On the CPU both sum in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOn {
    /// On the devices, which copy from each other
    Device,
    /// In host memory; each device copies its gradients there and the sums back
    Host,
}

impl fmt::Display for ReduceOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "device",
            Self::Host => "host",
        })
    }
}

impl FromStr for ReduceOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "device" => Ok(Self::Device),
            "host" => Ok(Self::Host),
            _ => Err(format!("expected device or host; got {text:?}")),
        }
    }
}
