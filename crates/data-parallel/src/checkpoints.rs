//! The checkpoints of a run of one's own: training goes on where it was, to the bit.
//!
//! What a checkpoint has: parameters, running statistics and the state of the trainers; the position in the epoch; the
//! history of the epochs; the settings on which the result depends, to refuse another run. It has no code: whether
//! network, loss and data are the same is not seen, beyond shapes and numbers.

mod position;
mod settings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::{Result, Tensor};
use devices::{Context, bail, ensure, lock, wrap};
use training::{Checkpoint, CheckpointError, CheckpointFolder, DataIter, Folder, weights};

use crate::data_parallel::DataParallel;
use crate::state_dict::{CheckedState, steps_of};
use crate::trainer::{LossSum, Trainer};
use position::{Counted, Progress};

/// The file of the best parameters, for [`DataParallel::load`], PyTorch and candle's `VarMap`.
const BEST: &str = "best.safetensors";
/// The name of the sum of a trainer's losses and the number of their examples.
const LOSSES: &str = "losses";
/// What the names of tensors begin with that are the user's own.
const OWN: &str = "own/";

const VERSION: &str = "version";
const SETTINGS: &str = "settings";
const DATA: &str = "data";
const POSITION: &str = "position";
const HISTORY: &str = "history";
const ALGORITHMS: &str = "algorithms";
const NOTE: &str = "note";

/// What the names of the tensors of a trainer begin with.
fn of_trainer(i: usize) -> String {
    format!("trainer {i}/")
}

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
    /// Tensors of your own by their names: each checkpoint has them, and `open` brings them back.
    pub own: BTreeMap<String, Tensor>,
    net: DataParallel,
    path: PathBuf,
    /// In the first process.
    folder: Option<CheckpointFolder>,
    keep: usize,
    progress: Arc<Mutex<Progress>>,
    /// Where the newest checkpoint was written; where the run begins if there is none.
    saved: Saved,
    /// Training is to end.
    stopping: Arc<AtomicBool>,
    /// So many minibatches make a step of each trainer.
    group: usize,
    notes: Vec<String>,
}

/// An epoch that was completed; it prints as `epoch 3, loss 0.121, score 0.984 (best), 1.2 s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// Its number, from 1.
    pub epoch: usize,
    /// The mean loss of an example, before its step; of the first trainer where there are several.
    pub loss: f64,
    /// What [`Checkpoints::end_epoch`] was told.
    pub score: f64,
    /// The time of its training, without the evaluation.
    pub seconds: f64,
    /// Whether no epoch before had such a large score.
    pub is_best: bool,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            epoch,
            loss,
            score,
            seconds,
            is_best,
        } = self;
        let best = if *is_best { " (best)" } else { "" };
        write!(
            f,
            "epoch {epoch}, loss {loss:.3}, score {score:.3}{best}, {seconds:.1} s"
        )
    }
}

impl<'a> From<&'a mut Trainer> for Vec<&'a mut Trainer> {
    fn from(trainer: &'a mut Trainer) -> Self {
        vec![trainer]
    }
}

impl<'a> From<&'a mut Trainer> for Vec<&'a Trainer> {
    fn from(trainer: &'a mut Trainer) -> Self {
        vec![trainer]
    }
}

impl<'a> From<&'a Trainer> for Vec<&'a Trainer> {
    fn from(trainer: &'a Trainer) -> Self {
        vec![trainer]
    }
}

/// Where a checkpoint was written.
#[derive(Debug, Clone, Copy, Default)]
struct Saved {
    number: usize,
    position: Option<position::Position>,
}

/// What was found in a folder, checked against the trainers.
struct GoesOn {
    network: Vec<(String, Tensor)>,
    trainers: Vec<(CheckedState, [LossSum; 2])>,
    own: BTreeMap<String, Tensor>,
    progress: Progress,
    algorithms: Vec<(String, String)>,
    notes: Vec<String>,
}

impl Checkpoints {
    /// Takes the folder for this run, and makes it where it is not there. A checkpoint of the same run in it gives the
    /// trainers and their network its state; without one the run begins. `trainers` is `&mut trainer`, or
    /// `[&mut a, &mut b]` of one network.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](crate::Error::Checkpoint): another run writes there; no checkpoint there is whole; it is of a
    /// run with another network or other settings, of which the message names the first. Then nothing was changed.
    pub fn open<'a>(
        folder: impl AsRef<Path>,
        trainers: impl Into<Vec<&'a mut Trainer>>,
    ) -> Result<Self> {
        let mut trainers = trainers.into();
        let path = folder.as_ref().to_owned();
        let net = trainers
            .first()
            .context("Checkpoints::open: give at least 1 trainer")?;
        let net = net.net.clone();
        for trainer in &trainers {
            ensure!(
                trainer.net.is(&net),
                "Checkpoints::open: the trainers have different networks; give those of one network"
            );
            trainer.check_no_gradients_wait("Checkpoints::open")?;
        }
        let settings = settings::of_run(&trainers, None);
        net.processes.agree("settings", &settings)?;
        let mut own_folder = None;
        let found = net.processes.from_first(|| {
            let (folder, found) = take(&path)?;
            own_folder = Some(folder);
            found.map_or(Ok(Vec::new()), |(step, found)| found.to_bytes(step))
        })?;
        let mut checkpoints = Self {
            own: BTreeMap::new(),
            stopping: stopping(&trainers),
            group: trainers
                .iter()
                .fold(1, |group, t| lcm(group, t.minibatches())),
            net,
            path,
            folder: own_folder,
            keep: 2,
            progress: Arc::default(),
            saved: Saved::default(),
            notes: Vec::new(),
        };
        if !found.is_empty() {
            let (number, found) = Checkpoint::from_bytes(found)?;
            let goes_on = checkpoints.check(found, &trainers)?;
            checkpoints.saved.number = number;
            checkpoints.go_on(goes_on, &mut trainers)?;
        }
        Ok(checkpoints)
    }

    /// The last `n` checkpoints stay; 2 without this.
    pub fn keep(self, n: usize) -> Self {
        Self { keep: n, ..self }
    }

    /// Ends [`epochs`](Self::epochs) when so many have passed since the best one, before a restart or after it.
    pub fn patience(self, epochs: usize) -> Self {
        lock(&self.progress).patience = Some(epochs);
        self
    }

    /// The epochs of 1 to `all` that are left. None follows once training is to end, as
    /// [`Trainer::stop_when`] and [`patience`](Self::patience) say.
    pub fn epochs(&self, all: usize) -> impl Iterator<Item = usize> + use<> {
        let (progress, stopping) = (self.progress.clone(), self.stopping.clone());
        std::iter::from_fn(move || {
            let progress = lock(&progress);
            let next = progress.history.len() + 1;
            let ends = stopping.load(Ordering::Relaxed) || progress.is_out_of_patience();
            (next <= all && !ends).then_some(next)
        })
    }

    /// What is left of an epoch, in the order of [`DataIter::epoch`]. Of several processes each gets its part of each
    /// minibatch. An evaluation on the same data takes the data itself, and does not count.
    ///
    /// The first item is an error if `epoch` is not the one that [`epochs`](Self::epochs) gave, or if the data has another
    /// number of examples, batch size or order than in this run before.
    pub fn minibatches(
        &self,
        data: &DataIter,
        epoch: usize,
    ) -> impl Iterator<Item = Result<(Tensor, Tensor)>> + use<> {
        let begun = lock(&self.progress).begin(data, epoch);
        let loader = begun
            .map_err(|error| self.in_folder(error))
            .and_then(|given| {
                let data = self.net.part(data.clone());
                let data = data
                    .stop_when(self.stopping.clone())
                    .in_groups_of(self.group)?;
                Ok(data.starting_at(epoch, given)?.epoch(epoch))
            });
        Counted::new(loader, self.progress.clone())
    }

    /// Writes a checkpoint if `minibatches` came since the last one, or training is to end; not while gradients wait for
    /// their step. Call it after the step, with the trainers of [`open`](Self::open).
    ///
    /// # Errors
    /// As [`save`](Self::save).
    pub fn save_every<'a>(
        &mut self,
        minibatches: usize,
        trainers: impl Into<Vec<&'a Trainer>>,
    ) -> Result<()> {
        let trainers = trainers.into();
        let is_between_steps = trainers.iter().all(|trainer| trainer.is_between_steps());
        let since = self.number(&trainers).saturating_sub(self.saved.number);
        let ends = self.stopping.load(Ordering::Relaxed) && since > 0;
        if is_between_steps && (since >= minibatches || ends) {
            self.save(trainers)?;
        }
        Ok(())
    }

    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// If a number is NaN or infinite, replicas differ, gradients wait for their step, or the file cannot be written; then
    /// the checkpoints before it stay. And if the folder was moved. In several processes all return an error.
    pub fn save<'a>(&mut self, trainers: impl Into<Vec<&'a Trainer>>) -> Result<()> {
        let trainers = trainers.into();
        let number = self.number(&trainers);
        let checkpoint = self.checkpoint(&trainers)?;
        let (folder, keep) = (&mut self.folder, self.keep);
        self.net.processes.from_first(|| {
            let folder = folder
                .as_mut()
                .context("the first process has the folder")?;
            folder.save(number, &checkpoint, keep)?;
            Ok(Vec::new())
        })?;
        let position = Some(lock(&self.progress).position());
        self.saved = Saved { number, position };
        Ok(())
    }

    /// Ends an epoch: writes the parameters if `score` is the best so far, then a checkpoint. The larger a score the
    /// better; of a loss give the negative. Returns what the epoch was, to be shown: in the first process, and only if the
    /// epoch was completed. An epoch that [`Trainer::stop_when`] has cut short is not: its checkpoint goes on inside of it.
    ///
    /// # Errors
    /// If the score is NaN; if gradients wait for their step: call [`Trainer::flush`] before the evaluation. And as
    /// [`save`](Self::save).
    pub fn end_epoch<'a>(
        &mut self,
        score: f64,
        trainers: impl Into<Vec<&'a mut Trainer>>,
    ) -> Result<Option<Epoch>> {
        let mut trainers = trainers.into();
        for trainer in &trainers {
            trainer.check_no_gradients_wait("Checkpoints::end_epoch")?;
        }
        if self.stopping.load(Ordering::Relaxed) && !lock(&self.progress).is_complete() {
            if self.saved.position != Some(lock(&self.progress).position()) {
                self.save(as_shared(&trainers))?;
            }
            return Ok(None);
        }
        ensure!(
            !score.is_nan(),
            "the score of the epoch is NaN; the run stays at the last checkpoint"
        );
        let mut losses = Vec::new();
        for trainer in &mut trainers {
            losses.push(trainer.take_epoch_losses()?.mean());
        }
        let loss = losses
            .first()
            .copied()
            .context("end_epoch: give at least 1 trainer")?;
        let ended = lock(&self.progress).end_epoch(loss, score);
        if ended.is_best {
            self.save_best()?;
        }
        self.save(as_shared(&trainers))?;
        Ok((self.net.processes.rank() == 0).then_some(ended))
    }

    /// Sets the parameters and running statistics of the best epoch, which `best.safetensors` in the folder has. A run
    /// that was told to end before its first epoch was completed has none; then nothing is changed.
    ///
    /// # Errors
    /// If no epoch was completed, or the file cannot be read.
    pub fn load_best(&self) -> Result<()> {
        if lock(&self.progress).history.is_empty() {
            let ends = self.stopping.load(Ordering::Relaxed);
            ensure!(
                ends,
                "load_best: no epoch was completed, so none is the best"
            );
            return Ok(());
        }
        let own = self.net.state_dict()?;
        let found = self.net.processes.from_first(|| {
            let tensors = weights::load(&self.path.join(BEST), &own)?;
            let names = own.iter().map(|(name, _)| name.clone());
            weights::to_bytes(&names.zip(tensors).collect::<Vec<_>>(), None)
        })?;
        let found = candle_core::safetensors::load_buffer(&found, &candle_core::Device::Cpu)?;
        let state: Vec<(String, Tensor)> = found.into_iter().collect();
        self.net.load_state_dict(&state)
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
        let minibatches = lock(&self.progress).position().minibatches;
        minibatches.max(steps.unwrap_or(0))
    }

    /// What a checkpoint has.
    fn checkpoint(&self, trainers: &[&Trainer]) -> Result<Checkpoint> {
        self.net.check_replicas()?;
        let network = self.net.state_dict()?;
        for (name, tensor) in &network {
            weights::check_finite(name, tensor)?;
        }
        let mut tensors: BTreeMap<String, Tensor> = network.into_iter().collect();
        for (i, trainer) in trainers.iter().enumerate() {
            let prefix = of_trainer(i);
            let losses = losses_tensor(trainer)?;
            let state = trainer.state_dict()?.into_iter();
            for (name, tensor) in state.chain([(LOSSES.to_owned(), losses)]) {
                tensors.insert(format!("{prefix}{name}"), tensor);
            }
        }
        for (name, tensor) in &self.own {
            tensors.insert(format!("{OWN}{name}"), tensor.clone());
        }
        let progress = lock(&self.progress);
        let texts = [
            (VERSION, env!("CARGO_PKG_VERSION").to_owned()),
            (SETTINGS, settings::of_run(trainers, Some(&steps(trainers)))),
            (DATA, progress.data.clone().unwrap_or_default()),
            (POSITION, progress.position_text()),
            (HISTORY, progress.history_text()),
            (ALGORITHMS, settings::pairs_text(&functional::algorithms())),
        ];
        let texts = texts.into_iter().map(|(key, text)| (key.to_owned(), text));
        Ok(Checkpoint {
            texts: texts.collect(),
            tensors,
        })
    }

    /// What of a checkpoint the trainers and their network take up.
    ///
    /// # Errors
    /// If it is of another run. Nothing was changed.
    fn check(&self, found: Checkpoint, trainers: &[&mut Trainer]) -> Result<GoesOn> {
        let Checkpoint { texts, mut tensors } = found;
        let text = |key: &str| {
            let text = texts.get(key).map(String::as_str);
            text.with_context(|| {
                let path = self.path.display();
                format!("{path} holds a run of another program: its checkpoint has no {key:?}; open another folder")
            })
        };
        let saved_settings = text(SETTINGS)?;
        let first = |settings: &str| settings.lines().next().unwrap_or_default().to_owned();
        let own_settings = settings::of_run(trainers, None);
        if let Some((this, other)) =
            training::difference(&first(&own_settings), &first(saved_settings))
        {
            return Err(self.other_settings(&this, &other)); // another number of trainers
        }
        let mut states = Vec::new();
        let mut own = BTreeMap::new();
        for i in 0..trainers.len() {
            states.push(take_prefix(&mut tensors, &of_trainer(i)));
        }
        for (name, tensor) in take_prefix(&mut tensors, OWN) {
            own.insert(name, tensor);
        }
        let network = self.net.state_dict()?;
        let names = network.iter().map(|(name, _)| name.clone());
        let found = weights::take(tensors.into_iter().collect(), &network);
        let found = found.map_err(|error| self.of_another_run(&error))?;
        let steps: Vec<usize> = states.iter().filter_map(steps_of).collect();
        let own_settings = settings::of_run(trainers, Some(&steps));
        if let Some((this, other)) = training::difference(&own_settings, saved_settings) {
            return Err(self.other_settings(&this, &other));
        }
        let mut checked = Vec::new();
        for (trainer, mut state) in trainers.iter().zip(states) {
            let losses = state.remove(LOSSES).context("there are no losses");
            let losses = losses_of(&losses?)?;
            let state = trainer.check_state(&state);
            let state = state.map_err(|error| self.of_another_run(&error))?;
            checked.push((state, losses));
        }
        let mut progress = Progress::read(text(POSITION)?, text(HISTORY)?)?;
        progress.data = Some(text(DATA)?.to_owned()).filter(|data| !data.is_empty());
        let mut notes: Vec<String> = texts.get(NOTE).cloned().into_iter().collect();
        notes.push(format!(
            "{} goes on {}",
            self.path.display(),
            progress.position()
        ));
        let (begun_by, this) = (text(VERSION)?, env!("CARGO_PKG_VERSION"));
        if begun_by != this {
            notes.push(format!(
                "version {begun_by} of data-parallel wrote the checkpoint, and this is version {this}: results may differ in \
                 the last digits"
            ));
        }
        Ok(GoesOn {
            network: names.zip(found).collect(),
            trainers: checked,
            own,
            progress,
            algorithms: settings::pairs(text(ALGORITHMS)?),
            notes,
        })
    }

    /// Takes up what was checked.
    fn go_on(&mut self, from: GoesOn, trainers: &mut [&mut Trainer]) -> Result<()> {
        functional::set_algorithms(&from.algorithms);
        self.net.load_state_dict(&from.network)?;
        for (trainer, (state, losses)) in trainers.iter_mut().zip(from.trainers) {
            trainer.set_state(state)?;
            [trainer.losses, trainer.epoch_losses] = losses;
        }
        self.own = from.own;
        self.notes = from.notes;
        self.saved.position = Some(from.progress.position());
        self.progress = Arc::new(Mutex::new(from.progress));
        Ok(())
    }

    /// Writes the parameters and running statistics of the network.
    fn save_best(&self) -> Result<()> {
        let state = self.net.state_dict()?;
        self.net.processes.from_first(|| {
            let folder = self
                .folder
                .as_ref()
                .context("the first process has the folder")?;
            folder.folder().check()?;
            weights::save(&self.path.join(BEST), &state)?;
            Ok(Vec::new())
        })?;
        Ok(())
    }

    fn of_another_run(&self, why: &candle_core::Error) -> candle_core::Error {
        let path = self.path.display();
        let text = format!("{path} holds another run: {why}; open another folder");
        wrap(CheckpointError::OtherRun(text))
    }

    fn other_settings(&self, this: &str, other: &str) -> candle_core::Error {
        let path = self.path.display();
        let advice = if other.starts_with("replicas ") {
            format!(
                ", and each minibatch is split over the replicas; open another folder, and begin with its parameters: \
                 net.load({:?})",
                self.path.join(BEST)
            )
        } else {
            "; open another folder".to_owned()
        };
        let text = format!("{path} holds another run: it has {other:?}, this one {this:?}{advice}");
        wrap(CheckpointError::OtherRun(text))
    }

    /// An error that names the folder.
    fn in_folder(&self, error: candle_core::Error) -> candle_core::Error {
        match devices::find::<position::OtherData>(&error) {
            Some(data) => self.other_settings(&data.this, &data.other),
            None => error,
        }
    }
}

/// Opens and locks the folder, and reads its newest checkpoint, and what is to be said of it.
fn take(path: &Path) -> Result<(CheckpointFolder, Option<(usize, Checkpoint)>)> {
    let made = std::fs::create_dir_all(path).and_then(|()| CheckpointFolder::open(path));
    let mut folder = made.with_context(|| format!("cannot make the folder {}", path.display()))?;
    folder.folder().lock()?;
    Folder::remove_partial(folder.folder(), &[BEST])?;
    let Some(found) = folder.newest()? else {
        return Ok((folder, None));
    };
    let mut checkpoint = found.checkpoint;
    if let Some(why) = found.damaged {
        let note = format!(
            "{why}; an older checkpoint is taken, after minibatch {}",
            found.step
        );
        checkpoint.texts.insert(NOTE.to_owned(), note);
    }
    Ok((folder, Some((found.step, checkpoint))))
}

/// The tensors whose names begin with `prefix`, without it.
fn take_prefix(tensors: &mut BTreeMap<String, Tensor>, prefix: &str) -> BTreeMap<String, Tensor> {
    let all = std::mem::take(tensors);
    let mut taken = BTreeMap::new();
    for (name, tensor) in all {
        match name.strip_prefix(prefix) {
            Some(rest) => taken.insert(rest.to_owned(), tensor),
            None => tensors.insert(name, tensor),
        };
    }
    taken
}

/// The flag of the first trainer that has one that can be set.
fn stopping(trainers: &[&mut Trainer]) -> Arc<AtomicBool> {
    let stops = trainers.iter().find(|trainer| trainer.can_stop());
    let trainer = stops.or(trainers.first());
    trainer.map_or_else(Arc::default, |trainer| trainer.stopping())
}

/// The sums of a trainer's losses and the numbers of their examples.
fn losses_tensor(trainer: &Trainer) -> Result<Tensor> {
    let mut numbers = Vec::new();
    for LossSum { sum, examples } in trainer.all_losses_so_far()? {
        ensure!(sum.is_finite(), "a loss is NaN or infinite");
        numbers.extend([sum, examples as f64]);
    }
    Tensor::new(numbers, &candle_core::Device::Cpu)
}

/// What [`losses_tensor`] had.
fn losses_of(tensor: &Tensor) -> Result<[LossSum; 2]> {
    let numbers = tensor.to_vec1()?;
    let &[sum, examples, of_epoch, examples_of_epoch] = &numbers[..] else {
        bail!(
            "the checkpoint has {} numbers of losses, expected 4",
            numbers.len()
        )
    };
    let sum_of = |sum: f64, examples: f64| LossSum {
        sum,
        examples: examples as usize,
    };
    Ok([sum_of(sum, examples), sum_of(of_epoch, examples_of_epoch)])
}

fn as_shared<'a>(trainers: &'a [&mut Trainer]) -> Vec<&'a Trainer> {
    trainers.iter().map(|trainer| &**trainer).collect()
}

fn steps(trainers: &[&Trainer]) -> Vec<usize> {
    trainers.iter().map(|trainer| trainer.steps()).collect()
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
