//! `bench cores`: how long a training step takes on more cores than this machine has. A step is recorded on one
//! thread, in a process of its own, and then simulated on more. Nothing here is measured on more than one core.

mod recorder;
pub mod recording;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use d2l::{DeviceKind, devices_of_kind, share_cores};

use super::ours::{minibatch, parameters, version, with_step};
use super::serve::serve_lines;
use super::work::Network;
use recorder::Recorder;
use recording::Recording;

/// Steps that are not recorded: the first ones are slower.
const WARM_UP: usize = 2;
/// No more steps are recorded after so long, except for the least number.
const LONG_ENOUGH: Duration = Duration::from_secs(5);
/// The least number of steps that are recorded, if as many are asked for.
const LEAST_STEPS: usize = 6;

/// Which step to record.
#[derive(Args, Debug)]
pub struct Record {
    #[arg(long, default_value_t = 1)]
    replicas: usize,
    network: Network,
    batch: usize,
}

/// Records as many steps as it is told on one core, or fewer if they take long. It answers with the [`Recording`] as JSON.
///
/// # Errors
/// If a step fails.
pub fn record(job: &Record) -> Result<()> {
    let recorder = Arc::new(Recorder::new());
    tracing::subscriber::set_global_default(recorder.clone()).context("the recorder")?;
    recorder.measure_look();
    share_cores(Some(1), job.replicas);
    let devices = devices_of_kind(DeviceKind::Cpu, Some(job.replicas))?;
    let (x, y) = minibatch(job.network, job.batch)?;
    let parameters = parameters(job.network)?;
    with_step(job.network, &devices, |step| {
        serve_lines(&version(), |most| {
            for _ in 0..WARM_UP {
                step(&x, &y)?;
            }
            recorder.end_step();
            recorder.take_steps();
            let begin = Instant::now();
            for done in 0..most {
                if done >= LEAST_STEPS && begin.elapsed() > LONG_ENOUGH {
                    break;
                }
                let loss = step(&x, &y)?.mean()?;
                recorder.end_step();
                ensure!(loss.is_finite(), "the loss is {loss}");
            }
            let (steps, look) = (recorder.take_steps(), recorder.look_ns());
            let recording = Recording::of(&steps, job.replicas, parameters, look)?;
            Ok(serde_json::to_string(&recording)?)
        })
    })
}
