//! The checkpoints of a run of one's own: training goes on where it was, to the bit.
//!
//! What a checkpoint has: parameters, running statistics and the state of the trainers; the position in the epoch; the
//! history of the epochs; the settings on which the result depends, to refuse another run. It has no code: whether
//! network, loss and data are the same is not seen, beyond shapes and numbers.
//!
//! **One caller.** [`Checkpoints`] writes the checkpoints of every program, `concise` among them. What a checkpoint
//! has is in `content`. The settings come from the trainers and the data, and [`Trainer::depends_on`] adds lines, such
//! as the checksum of the images. The rows of the record and the command line of `concise` are tensors of its own in
//! the checkpoint (`run::Run::kept`). Replicas are compared first, because a difference would spread to all replicas
//! of the resumed run.
//!
//! **The checkpoint hands out the minibatches** ([`Checkpoints::minibatches`]), and cuts the part of this process. So no
//! program computes a position, and an evaluation on the same data does not disturb it. The position is that of the steps:
//! minibatches that were taken ahead are left. `given` says how a step tells its minibatch.
//!
//! **What a program changes during a run is state**: rates, accumulation, clipping, the split of a minibatch. A checkpoint
//! has the settings with which the run began, and is compared with what the program says before `open`. The present ones
//! come back. A closure cannot come back, such as a schedule: it may not change after `open`.
//!
//! **History is state.** The best epoch, patience and the epochs that are left follow from it, after a restart as
//! before. The best parameters are written before the checkpoint that knows of them: a run that is killed between the
//! two writes them again.
//!
//! **Nothing that is not finite is saved.** A save refuses what a load would refuse, and a good file stays.

mod another_run;
mod best;
mod content;
mod epoch;
mod folder;
mod given;
mod position;
mod settings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};

use candle_core::{Result, Tensor};
use devices::{Context, ensure, lock, wrap};
use training::{Batch, Checkpoint, CheckpointError, CheckpointFolder, DataIter, weights};

use crate::data_parallel::DataParallel;
use crate::trainer::{Flags, Trainer};
use crate::update_rule::check_optimizer;
use another_run::{BEST, NEXT_BEST};
use content::GoesOn;
pub use epoch::Epoch;
use folder::{Start, is_of_the_disk, name_best, take};
use position::{Counted, Position, Progress};
use settings::Fixed;

/// The checkpoints of a run, in a folder: the last ones, and the best parameters. A program that is started again goes on
/// where it was, to the bit (on the CPU), also after `kill -9` and inside of an epoch.
///
/// ```
/// use data_parallel::prelude::*;
///
/// # fn main() -> Result<()> {
/// # let place = tempfile::tempdir()?;
/// # let folder = place.path().join("runs/demo");
/// let (x, y) = (uniform(&mut rng(0), -1.0, 1.0, (64, 2))?, Tensor::zeros(64, DType::U32, &Device::Cpu)?);
/// let train_iter = DataIter::of_tensors(&x, &y, 16, Some(0))?;
/// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
/// let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
/// let mut checkpoints = Checkpoints::open(&folder, &mut trainer)?.keep(3).patience(5);
/// for epoch in checkpoints.epochs(10) {
///     for batch in checkpoints.minibatches(&train_iter, epoch) {
///         let (x, y) = batch?;
///         trainer.step(&x, &y)?;
///         checkpoints.save_every(100, &trainer)?;
///     }
///     let accuracy = evaluate_accuracy(&net, &train_iter)?;
///     if let Some(line) = checkpoints.end_epoch(accuracy, &mut trainer)? {
///         println!("{line}"); // epoch 3, loss 0.121, score 0.984 (best), 1.2 s
///     }
/// }
/// checkpoints.load_best()?; // the network has the parameters of the best epoch
/// # assert!(folder.join("best.safetensors").exists());
/// # Ok(())
/// # }
/// ```
///
/// In several processes all make the same calls; the first one alone reads and writes files.
pub struct Checkpoints {
    /// Tensors of your own by their names: each checkpoint has them, and `open` brings them back. Of several processes
    /// those of the first are kept.
    pub own: BTreeMap<String, Tensor>,
    net: DataParallel,
    path: PathBuf,
    /// In the first process, unless nothing is written.
    folder: Option<CheckpointFolder>,
    writes: bool,
    /// The first checkpoint takes the place of an earlier run's.
    replaces: bool,
    keep: usize,
    on_failed_write: Option<FailedWrite>,
    progress: Arc<Mutex<Progress>>,
    /// The position of the newest checkpoint; the beginning of the run if there is none.
    saved: Saved,
    /// The number of the last checkpoint, whether or not it could be written.
    tried: usize,
    /// Of each trainer.
    flags: Vec<Flags>,
    /// The settings with which the run began.
    began: String,
    /// Of each trainer.
    fixed: Vec<Fixed>,
    notes: Vec<String>,
}

/// The program's answer to a checkpoint that cannot be written.
type FailedWrite = Box<dyn FnMut(&candle_core::Error) + Send>;

/// The position of a checkpoint in the run.
#[derive(Debug, Clone, Default)]
struct Saved {
    number: usize,
    position: Option<Position>,
}

impl Checkpoints {
    /// Takes the folder for this run, and makes it where it is not there. A checkpoint of the same run in it gives the
    /// trainers and their network its state; without one the run begins. `trainers` is `&mut trainer`, or
    /// `[&mut a, &mut b]` of one network.
    ///
    /// The same run has the same settings here as when it began. What the program has changed since then comes back with the
    /// state: rates, accumulation, clipping and [`set_split`](DataParallel::set_split). Parameters of a file, such as
    /// pretrained ones, are loaded before this call.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint): another run writes there; no checkpoint there is whole; it is of a
    /// run with another network or other settings, of which the message names the first. Then nothing was changed. And if
    /// the folder cannot be made: a name that begins with `~` or `$` is refused, because no shell has replaced it.
    pub fn open<'a>(
        folder: impl AsRef<Path>,
        trainers: impl Into<Vec<&'a mut Trainer>>,
    ) -> Result<Self> {
        Self::start(folder.as_ref(), trainers.into(), Start::GoOn)
    }

    /// Takes the folder for a new run, and makes it where it is not there; the first [`save`](Self::save) begins the run. If
    /// another run is in the folder already, that is an error. Or with `replace` its checkpoints stay until the first one
    /// of this run is whole, and then go.
    ///
    /// ```
    /// use data_parallel::{Error, prelude::*};
    ///
    /// # fn main() -> Result<()> {
    /// # let place = tempfile::tempdir()?;
    /// # let folder = place.path().join("runs/demo");
    /// let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| Linear::new(2, 3, vb))?;
    /// let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
    /// let mut checkpoints = Checkpoints::begin(&folder, false, &mut trainer)?;
    /// checkpoints.own.insert("layers".to_owned(), Tensor::new(1u32, &Device::Cpu)?);
    /// checkpoints.save(&trainer)?;
    /// drop(checkpoints); // the folder is free again
    /// let again = Checkpoints::begin(&folder, false, &mut trainer).map_err(Error::from);
    /// assert!(matches!(again, Err(Error::Checkpoint(_))));
    /// assert_eq!(Checkpoints::read_own(&folder)?["layers"].to_scalar::<u32>()?, 1);
    /// Checkpoints::begin(&folder, true, &mut trainer)?.save(&trainer)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint): another run writes there, or is there.
    pub fn begin<'a>(
        folder: impl AsRef<Path>,
        replace: bool,
        trainers: impl Into<Vec<&'a mut Trainer>>,
    ) -> Result<Self> {
        let start = if replace { Start::Replace } else { Start::New };
        Self::start(folder.as_ref(), trainers.into(), start)
    }

    /// Counts epochs and minibatches, and writes nothing: for a program whose user may leave out the folder.
    ///
    /// # Errors
    /// If the trainers have different networks, or an optimizer has a setting that cannot be used; in several processes, if
    /// their settings differ.
    pub fn without_folder<'a>(trainers: impl Into<Vec<&'a mut Trainer>>) -> Result<Self> {
        Self::of(Path::new(""), &trainers.into(), false)
    }

    /// The tensors of one's own in the newest checkpoint of a folder, before there is a network: such as the sizes with
    /// which it has to be built.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint): no checkpoint is there, or none is whole. If a file cannot be read.
    pub fn read_own(folder: impl AsRef<Path>) -> Result<BTreeMap<String, Tensor>> {
        let path = folder.as_ref();
        let none = || {
            let text = format!("{} holds no checkpoint", path.display());
            wrap(CheckpointError::NoneIsWhole(text))
        };
        let found = CheckpointFolder::open(path).map_err(|_| none())?.newest()?;
        let mut tensors = found.ok_or_else(none)?.checkpoint.tensors;
        Ok(content::take_own(&mut tensors))
    }

    fn start(path: &Path, mut trainers: Vec<&mut Trainer>, start: Start) -> Result<Self> {
        let mut checkpoints = Self::of(path, &trainers, true)?;
        let mut own_folder = None;
        let found = checkpoints.net.processes.of_first(|| {
            let (folder, found) = take(path, start)?;
            own_folder = Some(folder);
            found.map_or(Ok(Vec::new()), |(step, found)| found.to_bytes(step))
        })?;
        checkpoints.folder = own_folder;
        checkpoints.replaces = start == Start::Replace;
        if !found.is_empty() {
            let (number, found) = Checkpoint::from_bytes(found)?;
            let goes_on = content::read(found, &checkpoints.path, &checkpoints.net, &trainers)?;
            checkpoints.saved.number = number;
            checkpoints.tried = number;
            checkpoints.go_on(goes_on, &mut trainers)?;
        } else if start == Start::GoOn {
            checkpoints.save(as_shared(&trainers))?; // the run begins
        }
        Ok(checkpoints)
    }

    /// Those of a run that begins, before it has its folder.
    fn of(path: &Path, trainers: &[&mut Trainer], writes: bool) -> Result<Self> {
        let first = trainers
            .first()
            .context("Checkpoints::open: give at least 1 trainer")?;
        let net = first.net.clone();
        for trainer in trainers {
            ensure!(
                trainer.net.is(&net),
                "Checkpoints::open: the trainers have different networks; give those of one network"
            );
            trainer.check_no_gradients_wait("Checkpoints::open")?;
        }
        let began = settings::of_run(trainers);
        net.processes.agree("settings", &began)?;
        for trainer in trainers {
            check_optimizer(&*trainer.rule.optimizer)?;
        }
        content::check_names(&net)?;
        let flags = trainers.iter().map(|trainer| trainer.flags.clone());
        let fixed = trainers.iter().map(|trainer| Fixed::of(trainer));
        let progress = Arc::<Mutex<Progress>>::default();
        let watcher: Weak<Mutex<Progress>> = Arc::downgrade(&progress);
        net.watchers.add(watcher);
        net.resumed.ends(); // of a run before this one
        Ok(Self {
            own: BTreeMap::new(),
            flags: flags.collect(),
            began,
            fixed: fixed.collect(),
            net,
            path: path.to_owned(),
            folder: None,
            writes,
            replaces: false,
            keep: 2,
            on_failed_write: None,
            progress,
            saved: Saved::default(),
            tried: 0,
            notes: Vec::new(),
        })
    }

    /// The last `n` checkpoints stay; 2 without this.
    pub fn keep(self, n: usize) -> Self {
        Self { keep: n, ..self }
    }

    /// Lets the run go on where a checkpoint cannot be written, such as on a full disk: then `tell` gets the error, in the
    /// first process, and the checkpoints before it stay. A folder that was moved ends the run all the same. Without
    /// this, [`save`](Self::save) returns the error.
    pub fn on_failed_write(self, tell: impl FnMut(&candle_core::Error) + Send + 'static) -> Self {
        Self {
            on_failed_write: Some(Box::new(tell)),
            ..self
        }
    }

    /// Ends [`epochs`](Self::epochs) when this many epochs have passed since the best one, before a restart or after it.
    pub fn patience(self, epochs: usize) -> Self {
        lock(&self.progress).patience = Some(epochs);
        self
    }

    /// The epochs of 1 to `all` that are left. None follows once training is to end, as
    /// [`Trainer::stop_when`] and [`patience`](Self::patience) say.
    pub fn epochs(&self, all: usize) -> impl Iterator<Item = usize> + use<> {
        let progress = self.progress.clone();
        let flags = self.flags.clone();
        let first = lock(&progress).history.len() + 1;
        if first > all || lock(&progress).is_out_of_patience() {
            self.net.resumed.ends(); // it has no step left
        }
        // each number once: where an epoch was not ended, the minibatches of the next are an error
        (first..=all).take_while(move |_| {
            !flags.iter().any(Flags::is_stopping) && !lock(&progress).is_out_of_patience()
        })
    }

    /// The rest of an epoch, in the order of [`DataIter::epoch`]. Of several processes each gets its part of each
    /// minibatch. An evaluation on the same data takes the data itself, and does not count.
    ///
    /// Take all of them: `take(100)` would give a run that goes on 100 others. If training is to end, they end between two
    /// steps.
    ///
    /// An epoch may use several data, at once or in turn: each has a position of its own. A run that goes on has to ask for
    /// them in the same order.
    ///
    /// A checkpoint has the minibatches that steps have taken. So a program may take some ahead, and may leave some out. It
    /// gives each step inputs or targets as it got them here, which tell the minibatch; where the step has new tensors, it
    /// takes no other minibatch before the step.
    ///
    /// The first item is an error if `epoch` is not the one that [`epochs`](Self::epochs) gave, or if the data has another
    /// number of examples, batch size or order than in this run before. So it is if all minibatches of this data were given
    /// in this epoch, or another iterator gives them.
    pub fn minibatches<X: Batch, Y: Batch>(
        &self,
        data: &DataIter<X, Y>,
        epoch: usize,
    ) -> impl Iterator<Item = Result<(X, Y)>> + use<X, Y> {
        let part = |data| self.net.part(data);
        let progress = self.progress.clone();
        let flags = self.flags.clone();
        Counted::begin(&self.path, data, epoch, part, progress, flags)
    }

    /// Writes a checkpoint if `minibatches` came since the last one, or training is to end; not while gradients wait for
    /// their step. Call it once for each minibatch, after the last step, with the trainers of [`open`](Self::open).
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_every<'a>(
        &mut self,
        minibatches: usize,
        trainers: impl Into<Vec<&'a Trainer>>,
    ) -> Result<()> {
        let trainers = trainers.into();
        self.check_trainers(&trainers)?;
        let is_between_steps = trainers.iter().all(|trainer| trainer.is_between_steps());
        let since = self.number(&trainers).saturating_sub(self.tried);
        let ends = self.is_stopping() && is_between_steps;
        let is_due = since > 0 && (since >= minibatches || ends);
        let is_wrong = lock(&self.progress).given.is_checkpoint_wrong();
        if is_between_steps && (is_due || is_wrong) {
            self.save(trainers)?;
        }
        lock(&self.progress).saved_every(ends);
        Ok(())
    }

    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// If a number is NaN or infinite, replicas differ, gradients wait for their step, or the file cannot be written; then
    /// the checkpoints before it stay. If it is not known which minibatches are left of the epoch, or a trainer was given
    /// another schedule, `mean_over` or `depends_on` after [`open`](Self::open). And if the folder was moved. In several
    /// processes all return an error.
    pub fn save<'a>(&mut self, trainers: impl Into<Vec<&'a Trainer>>) -> Result<()> {
        let trainers = trainers.into();
        self.check_trainers(&trainers)?;
        if !self.writes {
            return Ok(());
        }
        for (trainer, fixed) in trainers.iter().zip(&self.fixed) {
            fixed.check(trainer)?;
        }
        lock(&self.progress).check()?;
        let number = self.number(&trainers);
        let keep = self.keep;
        let progress = lock(&self.progress).clone();
        let checkpoint = content::collect(&self.net, &trainers, &self.own, &progress, &self.began)?;
        self.tried = number;
        let replaces = self.replaces;
        let is_written = self.written(|folder| {
            if !replaces {
                return folder.save(number, &checkpoint, keep);
            }
            folder.begin(number, &checkpoint)?;
            folder.folder().remove(BEST)?;
            folder.folder().remove(NEXT_BEST)
        })?;
        if is_written {
            self.replaces = false;
            let mut progress = lock(&self.progress);
            progress.given.are_saved();
            let position = Some(progress.position());
            self.saved = Saved { number, position };
        }
        Ok(())
    }

    /// The number of the newest checkpoint that was written: the minibatches before it.
    pub fn saved(&self) -> usize {
        self.saved.number
    }

    /// Ends an epoch: writes the parameters if `score` is the best so far, then a checkpoint. The larger a score the
    /// better; of a loss give the negative. Returns what the epoch was, to be shown: in the first process, and only if the
    /// epoch was completed. An epoch that [`Trainer::stop_when`] has cut short is not: its checkpoint goes on inside of it.
    /// What changes the state between the minibatches and this call, such as [`Trainer::set_lr`], leaves it as it is if
    /// [`is_cut`](Self::is_cut), because the program comes here again at the end of the epoch.
    ///
    /// # Errors
    /// If the score is NaN; if no minibatch was trained in the epoch; if gradients wait for their step: call
    /// [`Trainer::flush`] before the evaluation. And as [`save`](Self::save).
    pub fn end_epoch<'a>(
        &mut self,
        score: f64,
        trainers: impl Into<Vec<&'a mut Trainer>>,
    ) -> Result<Option<Epoch>> {
        let mut trainers = trainers.into();
        self.check_trainers(&as_shared(&trainers))?;
        for trainer in &trainers {
            trainer.check_no_gradients_wait("Checkpoints::end_epoch")?;
        }
        if self.is_cut() {
            if self.saved.position != Some(lock(&self.progress).position()) {
                self.save(as_shared(&trainers))?;
            }
            return Ok(None);
        }
        if lock(&self.progress).given.is_checkpoint_wrong() {
            lock(&self.progress).check()?;
        }
        ensure!(
            !score.is_nan(),
            "the score of the epoch is NaN; the run stays at the last checkpoint"
        );
        self.net.processes.agree("scores", &format!("{score:?}"))?;
        let mut losses = Vec::new();
        for trainer in &mut trainers {
            losses.push(trainer.take_epoch_losses()?);
        }
        let loss = losses
            .first()
            .context("end_epoch: give at least 1 trainer")?;
        let epoch = lock(&self.progress).position().epoch;
        ensure!(
            losses.iter().any(|losses| losses.divisor > 0.0),
            "end_epoch: no minibatch was trained in epoch {epoch}, so it does not end; train the minibatches of \
             Checkpoints::minibatches, with the trainers of Checkpoints::open"
        );
        let before = lock(&self.progress).clone();
        let ended = lock(&self.progress).end_epoch(loss.mean(), score);
        let best = if ended.is_best && self.writes {
            self.save_best()
        } else {
            Ok(())
        };
        if let Err(error) = best.and_then(|()| self.save(as_shared(&trainers))) {
            // it can be tried again
            *lock(&self.progress) = before;
            for (trainer, losses) in trainers.into_iter().zip(losses) {
                trainer.losses.of_epoch = losses;
            }
            return Err(error);
        }
        let is_saved = self.saved.position == Some(lock(&self.progress).position());
        if is_saved && ended.is_best {
            // if another program has the file open, it gets its name when the run goes on
            let _ = self.written(|folder| folder.folder().rename(NEXT_BEST, BEST).or(Ok(())));
        }
        Ok((self.net.processes.rank() == 0).then_some(ended))
    }

    /// Sets the parameters and running statistics of the best epoch, which `best.safetensors` in the folder has. A run
    /// that was told to end before its first epoch was completed has none; then nothing is changed.
    ///
    /// Without [`Replication::sync_bn`](crate::Replication) all replicas get the running statistics of the first one. They
    /// had their own when the epoch got its score, so an evaluation may give another score now.
    ///
    /// # Errors
    /// If no epoch was completed, there is no folder, or the file cannot be read.
    pub fn load_best(&self) -> Result<()> {
        ensure!(
            self.writes,
            "load_best: these checkpoints have no folder, so no parameters were kept"
        );
        if lock(&self.progress).history.is_empty() {
            ensure!(
                self.is_stopping(),
                "load_best: no epoch was completed, so none is the best"
            );
            return Ok(());
        }
        let crc32 = lock(&self.progress).best_crc32;
        let found = self
            .net
            .processes
            .of_first(|| best::read(&self.path, crc32))?;
        let found = candle_core::safetensors::load_buffer(&found, &candle_core::Device::Cpu)?;
        let state: Vec<(String, Tensor)> = found.into_iter().collect();
        self.net.set_state(&state)?;
        self.net.resumed.ends(); // on purpose
        Ok(())
    }

    /// True if training was told to end, by [`Trainer::stop_when`]. Then a program may leave out its evaluation.
    pub fn is_stopping(&self) -> bool {
        self.flags.iter().any(Flags::is_stopping)
    }

    /// True if training was told to end inside of the present epoch, so that some of its minibatches were not given.
    pub fn is_cut(&self) -> bool {
        lock(&self.progress).is_cut(self.is_stopping())
    }

    /// The epochs that were completed, also before a restart.
    pub fn history(&self) -> Vec<Epoch> {
        lock(&self.progress).history.clone()
    }

    /// Lines that a program should show: where the run goes on, why not from a newer checkpoint, that another version of
    /// this library began it. None where a run begins.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of a checkpoint: minibatches, or steps on data that is not counted here.
    fn number(&self, trainers: &[&Trainer]) -> usize {
        let steps = trainers.iter().map(|trainer| trainer.steps()).max();
        let minibatches = lock(&self.progress).minibatches();
        minibatches.max(steps.unwrap_or(0))
    }

    /// Takes up what was checked.
    fn go_on(&mut self, from: GoesOn, trainers: &mut [&mut Trainer]) -> Result<()> {
        functional::set_algorithms(&from.algorithms);
        self.net.load_state_dict(&from.network)?;
        for (trainer, from) in trainers.iter_mut().zip(from.trainers) {
            trainer.set_state(from.state)?;
            from.settings.set(trainer);
            trainer.losses.since_mean = from.losses;
            trainer.losses.of_epoch = from.epoch_losses;
        }
        let best = from.progress.best_crc32;
        self.written(|folder| name_best(folder.folder(), best))?;
        self.own = from.own;
        self.notes = from.notes;
        self.saved.position = Some(from.progress.position());
        *lock(&self.progress) = from.progress;
        self.net.set_split(&from.split)?;
        // before the first step of the run nothing can be undone
        if trainers.iter().any(|trainer| trainer.steps() > 0) {
            self.net.resumed.goes_on(&self.net.states[0])?;
        }
        Ok(())
    }

    /// An error if these are not the trainers of [`open`](Self::open), or if the flag of [`Trainer::stop_when`] came after
    /// it, which would be ignored.
    fn check_trainers(&self, trainers: &[&Trainer]) -> Result<()> {
        let both = || {
            trainers
                .iter()
                .map(|trainer| &trainer.flags)
                .zip(&self.flags)
        };
        let are_own = both().all(|(now, then)| Arc::ptr_eq(&now.waiting, &then.waiting));
        ensure!(
            are_own && trainers.len() == self.flags.len(),
            "a checkpoint needs the trainers of Checkpoints::open, all of them and in the same order"
        );
        let known = both().all(|(now, then)| Arc::ptr_eq(&now.stopping, &then.stopping));
        ensure!(
            known,
            "stop_when: give the trainer its flag before Checkpoints::open"
        );
        Ok(())
    }

    /// Lets the first process write into the folder. Returns whether it was written: an error of the disk is told to the
    /// program where it wants that.
    fn written(&mut self, write: impl FnOnce(&mut CheckpointFolder) -> Result<()>) -> Result<bool> {
        let folder = &mut self.folder;
        let tell = &mut self.on_failed_write;
        let written = self.net.processes.of_first(|| {
            let folder = folder
                .as_mut()
                .context("the first process has the folder")?;
            match (write(folder), tell) {
                (Err(error), Some(tell)) if is_of_the_disk(&error) => {
                    tell(&error);
                    Ok(Vec::new())
                }
                (done, _) => done.map(|()| vec![1]),
            }
        })?;
        Ok(!written.is_empty())
    }

    /// Writes the parameters and running statistics of the network. The ones of the epoch that was the best before stay
    /// until a checkpoint knows the new ones.
    fn save_best(&mut self) -> Result<()> {
        let state = self.net.state_dict()?;
        let progress = self.progress.clone();
        let path = self.path.join(BEST).display().to_string();
        lock(&progress).best_crc32 = None; // if it cannot be written, the best epoch has no parameters
        self.written(|folder| {
            folder.folder().check()?;
            let bytes = weights::to_finite_bytes(&path, &state).map_err(content::diverged)?;
            folder.folder().write(NEXT_BEST, &bytes)?;
            lock(&progress).best_crc32 = Some(crc32fast::hash(&bytes));
            Ok(())
        })?;
        Ok(())
    }
}

fn as_shared<'a>(trainers: &'a [&mut Trainer]) -> Vec<&'a Trainer> {
    trainers.iter().map(|trainer| &**trainer).collect()
}
