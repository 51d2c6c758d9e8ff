//! The checkpoints of the program's run: the library's, with the lines of the record in them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::Tensor;
use data_parallel::{Checkpoints, DataParallel, Error, Step, Trainer};
use dataset::DataIter;
use run::{BadInput, Run, Summary, TrainState, interrupted, say, warn};

use crate::options::{Options, unless_lost};

/// The checkpoints of a run, in the folder of `--out` or `--resume`; without one they count, and write nothing.
pub(crate) struct RunCheckpoints {
    net: DataParallel,
    checkpoints: Checkpoints,
    folder: Option<PathBuf>,
    /// Minibatches from one checkpoint to the next, beside those of the epochs.
    every: Option<usize>,
    /// Minibatches since the last one.
    since: usize,
}

impl RunCheckpoints {
    /// Begins the run, with the parameters of --init if there are any; or goes on with the one that --resume names.
    pub fn begin(
        run: &mut Run,
        net: &DataParallel,
        trainer: &mut Trainer,
        options: &Options,
    ) -> Result<Self> {
        let lines = net.warnings().iter().cloned().chain(net.all_reduce()?);
        lines.for_each(|line| say(format_args!("{line}")));
        if let Some(weights) = &options.split {
            let split = net.set_split(weights).context("--split");
            split.map_err(BadInput::from)?;
            if run.train_iter.is_part() {
                run.train_iter = run.train_iter.clone().split_by(weights)?;
            }
        }
        run.stop_when(trainer.stopping());
        // Ctrl-C came before there is anything to keep: an earlier run in the folder stays
        let folder = options.folder().filter(|_| !interrupted());
        let checkpoints = match folder {
            Some(folder) if options.resume.is_some() => resumed(folder, run, net, trainer)
                .with_context(|| format!("--resume {}", folder.display())),
            folder => begun(folder, run, net, trainer, options),
        };
        Ok(Self {
            net: net.clone(),
            checkpoints: checkpoints
                .map_err(unless_lost)?
                .on_failed_write(failed_once()),
            folder: folder.map(Path::to_owned),
            every: options.checkpoint_every,
            since: 0,
        })
    }

    pub fn epochs(&self, all: usize) -> impl Iterator<Item = usize> + use<> {
        self.checkpoints.epochs(all)
    }

    pub fn minibatches(
        &self,
        data: &DataIter,
        epoch: usize,
    ) -> impl Iterator<Item = candle_core::Result<(Tensor, Tensor)>> + use<> {
        self.checkpoints.minibatches(data, epoch)
    }

    /// Records a step, and takes a checkpoint where it is time. The error of a step that failed says which checkpoint there
    /// is.
    pub fn step(
        &mut self,
        run: &mut Run,
        step: data_parallel::Result<Step>,
        trainer: &Trainer,
    ) -> Result<()> {
        let step = step.map_err(|error| with_kept(error, run))?;
        run.step(step.loss, &State(&self.net))?;
        self.since += 1;
        let is_time = self.every.is_some_and(|every| self.since >= every);
        if is_time && trainer.is_between_steps() {
            self.save(run, trainer)?;
        }
        Ok(())
    }

    /// Records the end of an epoch with its accuracy, and takes a checkpoint.
    pub fn epoch(
        &mut self,
        run: &mut Run,
        test_acc: candle_core::Result<f64>,
        trainer: &mut Trainer,
    ) -> Result<()> {
        let test_acc = run
            .unless_ended(test_acc)
            .map_err(|error| with_kept(error, run))?;
        if run.epoch(test_acc, &State(&self.net))? {
            self.checkpoints.own = run.kept()?;
            let ended = self.checkpoints.end_epoch(test_acc, trainer);
            ended.map_err(|error| with_kept(error, run))?;
            self.saved(run);
        }
        Ok(())
    }

    /// Ends the run; one that ends early takes a checkpoint.
    pub fn finish(mut self, mut run: Run, trainer: &Trainer) -> Result<Summary> {
        if self.since > 0 && trainer.is_between_steps() {
            self.save(&mut run, trainer)?;
        }
        run.finish(&State(&self.net))
    }

    fn save(&mut self, run: &mut Run, trainer: &Trainer) -> Result<()> {
        self.checkpoints.own = run.kept()?;
        let saved = self.checkpoints.save(trainer);
        saved.map_err(|error| with_kept(error, run))?;
        self.saved(run);
        Ok(())
    }

    fn saved(&mut self, run: &mut Run) {
        self.since = 0;
        if self.folder.is_some() {
            run.has_checkpoint(self.checkpoints.saved());
        }
    }
}

fn begun(
    folder: Option<&Path>,
    run: &mut Run,
    net: &DataParallel,
    trainer: &mut Trainer,
    options: &Options,
) -> Result<Checkpoints> {
    let own = net.state_dict()?;
    let names: Vec<String> = own.iter().map(|(name, _)| name.clone()).collect();
    let initial: Vec<_> = names.into_iter().zip(run.initial(own)?).collect();
    net.load_state_dict(&initial)?;
    let Some(folder) = folder else {
        run.begin();
        return Ok(Checkpoints::without_folder(trainer)?);
    };
    let mut checkpoints = Checkpoints::begin(folder, options.run.overwrite, &mut *trainer)?;
    checkpoints.own = run.kept()?;
    checkpoints.save(&*trainer)?;
    run.begin_beside(folder)?;
    Ok(checkpoints)
}

fn resumed(
    folder: &Path,
    run: &mut Run,
    net: &DataParallel,
    trainer: &mut Trainer,
) -> Result<Checkpoints> {
    let checkpoints = Checkpoints::open(folder, trainer)?;
    let is_complete = run.go_on(folder, &checkpoints.own, &net.state_dict()?)?;
    if is_complete {
        let folder = folder.display();
        say(format_args!(
            "the run in {folder} is complete; nothing to do"
        ));
    } else {
        let notes = checkpoints.notes().iter();
        notes.for_each(|note| say(format_args!("{note}")));
    }
    Ok(checkpoints)
}

/// Says why a checkpoint could not be written, each reason once.
fn failed_once() -> impl FnMut(&candle_core::Error) + Send {
    let mut said = String::new();
    move |error| {
        let why = error.to_string();
        if why != said {
            warn(format_args!("{why}; the run goes on"));
            said = why;
        }
    }
}

/// An error, and where it leaves the reader.
fn with_kept(error: candle_core::Error, run: &Run) -> anyhow::Error {
    let kept = run.has_kept();
    if kept.is_empty() || Error::is_disagreement(&error) {
        error.into()
    } else {
        anyhow!("{error}{kept}")
    }
}

/// The run's view of the network.
struct State<'a>(&'a DataParallel);

impl TrainState for State<'_> {
    fn tensors(&self, _: &[String]) -> Result<Vec<(String, Tensor)>> {
        Ok(self.0.state_dict()?)
    }

    fn check_replicas(&self, _: &[String]) -> Result<()> {
        Ok(self.0.check_replicas()?)
    }
}
