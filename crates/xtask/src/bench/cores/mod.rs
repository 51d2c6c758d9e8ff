//! `bench cores`: how long a training step takes on more cores than this machine has. A step is recorded on one
//! thread, in a process of its own, and then simulated on more. Nothing here is measured on more than one core.

mod recorder;
mod recording;
mod report;
mod simulation;

use std::env;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use d2l::share_cores;
use devices::{DeviceKind, devices_of_kind};

use super::machine::Spent;
use super::options::{STEPS, write};
use super::ours::{minibatch, parameters, version, with_step};
use super::process::Process;
use super::serve::serve_lines;
use super::work::{Network, Work};
use recorder::Recorder;
use recording::Recording;
use report::{MANY_CORES, Recorded};
use simulation::Replicas;

/// Options of `bench cores`.
#[derive(Args, Debug)]
pub struct CoresOptions {
    /// Simulate only this step, NETWORK-BATCH (repeatable)
    #[arg(long, value_name = "STEP", default_values = STEPS)]
    step: Vec<Work>,

    /// Simulate only on N cores (repeatable)
    #[arg(long, value_name = "N", default_values = ["1", "2", "4", "8", "16", "32"])]
    cores: Vec<NonZeroUsize>,

    /// Folder for cores.md
    #[arg(long, value_name = "DIR", default_value = "benches/results")]
    out: PathBuf,
}

/// The most steps that are recorded.
const MOST_STEPS: usize = 60;
/// The numbers of replicas. Each has an example at least.
const REPLICAS: [usize; 5] = [1, 2, 4, 8, 16];
/// The least minibatch that is shared out among replicas.
const LEAST_BATCH: usize = 64;

/// Records, simulates, prints the report and writes it.
///
/// # Errors
/// If a step fails, or the report cannot be written.
pub fn cores(options: &CoresOptions) -> Result<()> {
    let cores: Vec<usize> = options.cores.iter().map(|n| n.get()).collect();
    let with_replicas = cores.iter().any(|cores| *cores >= MANY_CORES);
    let mut recordings = Recordings::default();
    let mut recorded = Vec::new();
    for &work in &options.step {
        let one = recordings.of(work, 1)?;
        let mut on_replicas = Vec::new();
        if with_replicas && work.network.is_the_books() && work.batch >= LEAST_BATCH {
            for k in REPLICAS {
                let batch = work.batch.div_ceil(k);
                let shard = recordings.of(Work { batch, ..work }, 1)?;
                let all = recordings.of(work, k)?;
                on_replicas.push(Replicas { k, shard, all });
            }
        }
        recorded.push(Recorded {
            work,
            one,
            on_replicas,
        });
    }
    let markdown = report::markdown(&recorded, &cores, &version(), recordings.other_cores);
    println!("\n{markdown}");
    write(&options.out, "cores.md", &markdown)
}

/// The recordings that were made. The shard of one step may be another step.
#[derive(Default)]
struct Recordings {
    made: Vec<Made>,
    /// The most cores that were at other work meanwhile.
    other_cores: f64,
}

struct Made {
    work: Work,
    replicas: usize,
    recording: Recording,
}

impl Recordings {
    /// A recording of a process of its own, if there is none yet.
    fn of(&mut self, work: Work, replicas: usize) -> Result<Recording> {
        let is_it = |made: &&Made| made.work == work && made.replicas == replicas;
        if let Some(made) = self.made.iter().find(is_it) {
            return Ok(made.recording.clone());
        }
        let mut command = Command::new(env::current_exe()?);
        command.args(["record", "--replicas", &replicas.to_string()]);
        command.args(work.args());
        let mut spent = Spent::default();
        let line = Process::start(command)?.ask_line(MOST_STEPS, &mut spent);
        let what = || format!("{work}, replicas: {replicas}");
        let recording: Recording = serde_json::from_str(&line.with_context(what)?)?;
        self.other_cores = spent.other_cores().max(self.other_cores);
        eprintln!("{}: {} steps recorded", what(), recording.steps);
        self.made.push(Made {
            work,
            replicas,
            recording: recording.clone(),
        });
        Ok(recording)
    }
}

/// Steps that are not recorded: the first ones are slower.
const WARM_UP: usize = 2;
/// No more steps are recorded after this time, except for the least number.
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
            let steps = recorder.take_steps();
            let look = recorder.look_ns();
            let recording = Recording::of(&steps, job.replicas, parameters, look)?;
            Ok(serde_json::to_string(&recording)?)
        })
    })
}
