//! The command line of this section: what both sections share, and how the replicas work together.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use data_parallel::devices::find;
use data_parallel::schedule::{cosine, linear, one_cycle, step, warmup};
use data_parallel::{
    Algorithm, Checkpoints, Processes, ReduceOn, Replication, Sgd, World, collective,
};
use run::{BadInput, Run, is_same_folder};

/// The options of a run of this section; what is left out is as in the book.
#[derive(Debug, Clone, Parser)]
#[group(id = "concise")]
pub struct Options {
    /// Those of both sections.
    #[command(flatten)]
    pub run: run::Options,

    /// Resume the run in a folder that --out wrote, from its last checkpoint
    ///
    /// The result is bit-identical to a run without interruption. The options of the run are in the
    /// checkpoint. If you repeat an option that changes the result, its value must be the same.
    /// Others, such as --threads and the folder of --data, may differ. A complete run stays as it is, or
    /// goes on with more --epochs.
    #[arg(long, value_name = "DIR", help_heading = RECORD)]
    pub resume: Option<PathBuf>,

    /// Write a checkpoint every N minibatches too, not only after each epoch (needs --out)
    #[arg(long, value_name = "N", help_heading = RECORD)]
    pub checkpoint_every: Option<usize>,

    /// Momentum factor of SGD
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "M", help_heading = TRAINING)]
    pub momentum: f64,

    /// Weight decay: factor of the L2 penalty
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "W", help_heading = TRAINING)]
    pub weight_decay: f64,

    /// Schedule of the learning rate over the steps of the run
    #[arg(long, value_enum, default_value_t = LrSchedule::Constant, value_name = "NAME", help_heading = TRAINING)]
    pub schedule: LrSchedule,

    /// Steps at the beginning in which the learning rate rises along a line
    #[arg(long, default_value_t = 0, value_name = "STEPS", help_heading = TRAINING)]
    pub warmup: usize,

    /// All-reduce algorithm for the gradients: star, as in the book, owner, ring, tree, nccl or auto
    #[arg(long, default_value_t = Algorithm::Auto, value_name = "WAY", help_heading = TOGETHER)]
    pub allreduce: Algorithm,

    /// Where the gradients are summed: on the device of each replica, or in the memory of the host
    #[arg(long, default_value_t = ReduceOn::Device, value_name = "PLACE", help_heading = TOGETHER)]
    pub reduce_on: ReduceOn,

    /// Bucket size in MiB; each bucket of gradients is summed as soon as it is complete
    #[arg(long, default_value_t = 25.0, allow_negative_numbers = true, value_name = "MB", help_heading = TOGETHER)]
    pub bucket_mb: f64,

    /// Sum the gradients after the backward pass, not during it
    #[arg(long, help_heading = TOGETHER)]
    pub no_overlap: bool,

    /// Synchronized batch norm: statistics over the whole minibatch, as on one device
    #[arg(long, help_heading = TOGETHER)]
    pub sync_bn: bool,

    /// Gradient accumulation: minibatches per step
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = TOGETHER)]
    pub accumulate: usize,

    /// Weights of the shares of a minibatch, such as 3,1, for devices of different speed
    #[arg(long, value_parser = weights, value_name = "W,W", help_heading = TOGETHER)]
    pub split: Option<Weights>,

    /// How several processes communicate; they share the --gpus replicas
    #[arg(long, value_enum, default_value_t = ProcessGroupBackend::Threads, value_name = "KIND", help_heading = TOGETHER)]
    pub backend: ProcessGroupBackend,

    /// How long to wait for a replica that does not arrive
    #[arg(long, default_value_t = 600.0, allow_negative_numbers = true, value_name = "SECONDS", help_heading = TOGETHER)]
    pub timeout: f64,
}

/// A weight for each device.
type Weights = Vec<f64>; // clap would take a `Vec` for an option that is repeated

fn weights(text: &str) -> Result<Weights, &'static str> {
    let weights: Option<Weights> = text
        .split(',')
        .map(|weight| weight.trim().parse().ok())
        .collect();
    let weights = weights.filter(|all| all.iter().all(|w| *w > 0.0 && w.is_finite()));
    weights.ok_or("expected positive numbers such as 3,1")
}

/// The way in which the processes of a run communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ProcessGroupBackend {
    /// One process, with a thread for each replica
    Threads,
    /// Processes under mpirun
    Mpi,
}

/// The learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LrSchedule {
    /// It stays, as in the book
    Constant,
    /// Down to 0 along a line
    Linear,
    /// Down to 0 along half a cosine
    Cosine,
    /// A tenth of it after each third of the steps
    Step,
    /// From 1/25 up to it in 3 tenths of the steps, then down to nearly 0
    OneCycle,
}

const TRAINING: &str = "Training";
const RECORD: &str = "Record";
const TOGETHER: &str = "Data parallelism";

impl Default for Options {
    /// The book's run: that of an empty command line.
    fn default() -> Self {
        Self::parse_from(["default"])
    }
}

impl From<run::Options> for Options {
    fn from(run: run::Options) -> Self {
        Self {
            run,
            ..Self::default()
        }
    }
}

impl run::ProgramOptions for Options {
    fn run(&self) -> &run::Options {
        &self.run
    }

    fn run_mut(&mut self) -> &mut run::Options {
        &mut self.run
    }

    fn earlier_arguments(&self) -> Result<Vec<String>> {
        let Some(folder) = &self.resume else {
            return Ok(Vec::new());
        };
        Checkpoints::read_own(folder)
            .map_err(anyhow::Error::from)
            .and_then(|kept| Run::arguments_in(&kept))
            .with_context(|| format!("--resume {}", folder.display()))
    }
}

impl Options {
    /// Checks the options, without a look at devices or data.
    pub(crate) fn check(&self) -> Result<()> {
        if let (Some(out), Some(resume)) = (&self.run.out, &self.resume) {
            ensure!(
                is_same_folder(out, resume),
                "--out {}: a resumed run writes into its own folder, {}; leave out --out",
                out.display(),
                resume.display()
            );
        }
        ensure!(
            self.checkpoint_every != Some(0),
            "--checkpoint-every 0: at least 1 is needed"
        );
        ensure!(
            self.checkpoint_every.is_none() || self.run.out.is_some() || self.resume.is_some(),
            "--checkpoint-every: checkpoints need a folder; give --out as well"
        );
        for (option, value) in [
            ("--momentum", self.momentum),
            ("--weight-decay", self.weight_decay),
        ] {
            ensure!(
                value.is_finite() && value >= 0.0,
                "{option} {value}: expected a finite number, 0 or more"
            );
        }
        for (option, value) in [("--bucket-mb", self.bucket_mb), ("--timeout", self.timeout)] {
            ensure!(
                value > 0.0 && value <= 1e9,
                "{option} {value}: expected a number above 0, at most 1e9"
            );
        }
        ensure!(
            self.accumulate > 0,
            "--accumulate 0: a step has at least 1 minibatch"
        );
        ensure!(
            self.reduce_on == ReduceOn::Device || self.allreduce != Algorithm::Nccl,
            "--reduce-on host: --allreduce nccl sums on the devices; leave out --reduce-on"
        );
        Ok(())
    }

    /// The folder of the checkpoints, if there are any.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.resume.as_deref().or(self.run.out.as_deref())
    }

    /// The options of the run itself, which writes beside the checkpoints.
    pub(crate) fn run_options(&self) -> run::Options {
        run::Options {
            out: self.folder().map(Path::to_owned),
            goes_on: self.resume.is_some(),
            ..self.run.clone()
        }
    }

    /// When checkpoints are taken and replicas compared, which processes that train together do at the same time.
    pub(crate) fn keeping(&self) -> String {
        format!(
            "--out or --resume: {}, --checkpoint-every {:?}, --check-replicas: {}, --epochs {}",
            self.folder().is_some(),
            self.checkpoint_every,
            self.run.check_replicas,
            self.run.epochs
        )
    }

    /// The steps of a run.
    fn steps(&self, run: &Run) -> usize {
        self.run.epochs * run.train_iter.num_batches().div_ceil(self.accumulate)
    }

    /// By what the learning rate is multiplied at each step of a run.
    pub(crate) fn schedule(&self, run: &Run) -> Box<dyn Fn(usize) -> f64 + Send + Sync> {
        let left = self.steps(run).saturating_sub(self.warmup);
        match self.schedule {
            LrSchedule::Constant => Box::new(warmup(self.warmup, |_| 1.0)),
            LrSchedule::Linear => Box::new(warmup(self.warmup, linear(left))),
            LrSchedule::Cosine => Box::new(warmup(self.warmup, cosine(left))),
            LrSchedule::Step => Box::new(warmup(self.warmup, step(left.div_ceil(3).max(1), 0.1))),
            LrSchedule::OneCycle => Box::new(warmup(self.warmup, one_cycle(left))),
        }
    }

    /// The schedule as settings on which the result depends, a line each.
    pub(crate) fn schedule_settings(&self, run: &Run) -> String {
        let schedule = self.schedule.to_possible_value().expect("none is hidden");
        let steps = match self.schedule {
            LrSchedule::Constant => String::new(),
            _ => format!(" in {} steps", self.steps(run)),
        };
        let name = schedule.get_name();
        let warmup = self.warmup;
        format!("schedule {name}{steps}\nwarmup {warmup}")
    }

    /// The optimizer with the learning rate that the run has.
    pub(crate) fn sgd(&self, lr: f64) -> Sgd {
        Sgd {
            lr,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            nesterov: false,
        }
    }

    /// The processes of the run.
    pub(crate) fn processes(&self) -> Result<Processes> {
        match self.backend {
            ProcessGroupBackend::Threads => Ok(Processes::alone()),
            ProcessGroupBackend::Mpi => Processes::mpi(Some(self.patience()))
                .context("--backend mpi")
                .map_err(unless_lost),
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }

    /// How the replicas of `world` work together, with the all-reduce that `auto` stands for.
    ///
    /// # Errors
    /// If they cannot.
    pub(crate) fn replication(&self, world: &World) -> Result<Replication> {
        let mut how = Replication {
            allreduce: self.allreduce,
            reduce_on: self.reduce_on,
            bucket_bytes: (self.bucket_mb * f64::from(1 << 20)) as usize,
            overlap: !self.no_overlap,
            sync_bn: self.sync_bn,
            timeout: Some(self.patience()),
            ..Replication::default()
        };
        how.allreduce = world
            .processes()
            .choose(&how, world.devices())
            .with_context(|| format!("--allreduce {}", self.allreduce))
            .map_err(unless_lost)?;
        Ok(how)
    }
}

/// An error of an option, unless another process is lost.
pub(crate) fn unless_lost(error: anyhow::Error) -> anyhow::Error {
    let of_candle = error.downcast_ref::<candle_core::Error>();
    if of_candle.is_some_and(|error| find::<collective::Error>(error).is_some()) {
        error
    } else {
        BadInput::from(error).into()
    }
}
