//! What the peers share: the job on the command line, and how they answer requests.

// the project's own, so that all are timed in the same way
#[path = "../../../crates/xtask/src/bench/serve.rs"]
mod serve;

use anyhow::{Context, Result, bail};

/// What is to be measured: `NETWORK BATCH` on the command line.
pub struct Job {
    /// The network.
    pub network: Network,
    /// The number of examples of a step.
    pub batch: usize,
}

/// The book's two networks.
pub enum Network {
    /// "Training on Multiple GPUs".
    Lenet,
    /// "Concise Implementation for Multiple GPUs".
    Resnet18,
}

/// The learning rate of every contender: small, so that the weights stay small numbers.
pub const LR: f64 = 0.01;

impl Job {
    /// The job on the command line.
    pub fn from_args() -> Result<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [network, batch] = args.as_slice() else {
            bail!("give NETWORK BATCH");
        };
        let network = match network.as_str() {
            "lenet" => Network::Lenet,
            "resnet18" => Network::Resnet18,
            other => bail!("no network is called {other:?}; there are lenet and resnet18"),
        };
        let batch = batch.parse().context("BATCH is a number")?;
        Ok(Self { network, batch })
    }

    /// Does steps on request as `library`, with the version of `package` in `Cargo.lock`.
    pub fn serve(
        &self,
        library: &str,
        package: &str,
        step: impl FnMut() -> Result<f32>,
    ) -> Result<()> {
        let version = serve::locked(include_str!("../Cargo.lock"), package);
        serve::serve(&format!("{library} {version}"), step)
    }
}
