//! The content of a checkpoint, as tensors and texts: writes it, and checks a found one against the program that goes on.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Result, Tensor};
use devices::{Context, bail, ensure, find, message};
use training::{Checkpoint, CheckpointError, weights};

use super::another_run::{another_run, other_settings};
use super::position::Progress;
use super::settings;
use crate::data_parallel::DataParallel;
use crate::trainer::{CheckedState, LossSum, PresentSettings, Trainer};

/// The name of the sums of a trainer's losses and their divisors.
const LOSSES: &str = "losses";
/// The prefix of the names of the user's own tensors.
const OWN: &str = "own/";

const VERSION: &str = "version";
const SETTINGS: &str = "settings";
const DATA: &str = "data";
/// Stands between the settings of two data.
const BETWEEN_DATA: &str = "\n\n";
const POSITION: &str = "position";
const HISTORY: &str = "history";
/// The CRC-32 of the best parameters.
const BEST_CRC: &str = "best";
/// The settings that the program may have changed since the run began: of each trainer a line, and the network's split.
const PRESENT: &str = "present";
const SPLIT: &str = "split";
const ALGORITHMS: &str = "algorithms";
/// Why a newer checkpoint was not taken: no file has it.
pub(super) const NOTE: &str = "note";

/// The prefix of the names of a trainer's tensors.
fn of_trainer(i: usize) -> String {
    format!("trainer {i}/")
}

/// The checkpoint of a folder, checked against the trainers.
pub(super) struct GoesOn {
    pub network: Vec<(String, Tensor)>,
    pub trainers: Vec<OfTrainer>,
    pub own: BTreeMap<String, Tensor>,
    pub progress: Progress,
    /// The weights of `DataParallel::set_split`.
    pub split: Vec<f64>,
    /// The algorithms that were chosen for a GPU.
    pub algorithms: Vec<(String, String)>,
    pub notes: Vec<String>,
}

/// The state that a trainer loads.
pub(super) struct OfTrainer {
    pub state: CheckedState,
    pub settings: PresentSettings,
    pub losses: LossSum,
    pub epoch_losses: LossSum,
}

/// An error if a parameter has a name that other tensors of a checkpoint have.
pub(super) fn check_names(net: &DataParallel) -> Result<()> {
    for (name, _) in net.tensors() {
        let is_taken = name.starts_with(OWN) || name.starts_with("trainer ");
        ensure!(
            !is_taken,
            "{name}: a checkpoint keeps other tensors under such names; rename the layer"
        );
    }
    Ok(())
}

/// The checkpoint of trainers and their network, in a run that `began` with these settings.
///
/// # Errors
/// If replicas differ, a number is NaN or infinite, or gradients wait for their step.
pub(super) fn collect(
    net: &DataParallel,
    trainers: &[&Trainer],
    own: &BTreeMap<String, Tensor>,
    progress: &Progress,
    began: &str,
) -> Result<Checkpoint> {
    net.check_replicas()?;
    let network = net.state_dict()?;
    weights::check_all_numbers(&network).map_err(diverged)?;
    let mut tensors: BTreeMap<String, Tensor> = network.into_iter().collect();
    for (i, trainer) in trainers.iter().enumerate() {
        let prefix = of_trainer(i);
        let losses = losses_tensor(trainer)?;
        let state = trainer.state_dict()?.into_iter();
        for (name, tensor) in state.chain([(LOSSES.to_owned(), losses)]) {
            tensors.insert(format!("{prefix}{name}"), tensor);
        }
    }
    for (name, tensor) in own {
        tensors.insert(format!("{OWN}{name}"), tensor.clone());
    }
    let schedules = settings::of_schedules(trainers, &steps(trainers));
    let present = trainers
        .iter()
        .map(|trainer| PresentSettings::of(trainer).to_line());
    let present: Vec<String> = present.collect();
    let split: Vec<String> = net
        .split_weights()
        .iter()
        .map(|weight| format!("{weight:?}"))
        .collect();
    let texts = [
        (VERSION, env!("CARGO_PKG_VERSION").to_owned()),
        (SETTINGS, format!("{began}\n{schedules}")),
        (PRESENT, present.join("\n")),
        (SPLIT, split.join(" ")),
        (DATA, progress.data.join(BETWEEN_DATA)),
        (POSITION, progress.position_text()),
        (HISTORY, progress.history_text()),
        (
            BEST_CRC,
            progress
                .best_crc32
                .map_or_else(String::new, |crc32| crc32.to_string()),
        ),
        (ALGORITHMS, settings::pairs_text(&functional::algorithms())),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), text));
    Ok(Checkpoint {
        texts: texts.collect(),
        tensors,
    })
}

/// The error of a parameter that is NaN or infinite.
pub(super) fn diverged(error: candle_core::Error) -> candle_core::Error {
    message(format!(
        "{error}; try a smaller learning rate, or clip_norm"
    ))
}

/// The part of a checkpoint that the trainers and their network load.
///
/// # Errors
/// If it is of another run. Nothing was changed.
pub(super) fn read(
    found: Checkpoint,
    path: &Path,
    net: &DataParallel,
    trainers: &[&mut Trainer],
) -> Result<GoesOn> {
    let checked = checked(found, path, net, trainers);
    checked.map_err(|error| {
        if find::<CheckpointError>(&error).is_some() {
            error
        } else {
            another_run(path, &error)
        }
    })
}

fn checked(
    found: Checkpoint,
    path: &Path,
    net: &DataParallel,
    trainers: &[&mut Trainer],
) -> Result<GoesOn> {
    let Checkpoint { texts, mut tensors } = found;
    let text = |key: &str| {
        let text = texts.get(key).map(String::as_str);
        text.with_context(|| format!("it is of another program: its checkpoint has no {key:?}"))
    };
    let saved_settings = text(SETTINGS)?;
    let first = |settings: &str| settings.lines().next().unwrap_or_default().to_owned();
    let began = settings::of_run(trainers);
    if let Some((this, other)) = training::difference(&first(&began), &first(saved_settings)) {
        return Err(other_settings(path, &this, &other)); // another number of trainers
    }
    let own = take_own(&mut tensors);
    let states: Vec<BTreeMap<String, Tensor>> = (0..trainers.len())
        .map(|i| take_prefix(&mut tensors, &of_trainer(i)))
        .collect();
    let network = network_of(tensors, net)?;
    let steps: Vec<usize> = states.iter().filter_map(Trainer::steps_in).collect();
    let own_settings = format!("{began}\n{}", settings::of_schedules(trainers, &steps));
    if let Some((this, other)) = training::difference(&own_settings, saved_settings) {
        return Err(other_settings(path, &this, &other));
    }
    let mut progress = Progress::read(text(POSITION)?, text(HISTORY)?)?;
    let data = text(DATA)?
        .split(BETWEEN_DATA)
        .filter(|data| !data.is_empty());
    progress.data = data.map(str::to_owned).collect();
    progress.best_crc32 = text(BEST_CRC)?.parse().ok();
    let mut notes: Vec<String> = texts.get(NOTE).cloned().into_iter().collect();
    notes.push(format!(
        "{} goes on {}",
        path.display(),
        progress.position()
    ));
    notes.extend(of_another_version(text(VERSION)?));
    Ok(GoesOn {
        network,
        trainers: of_trainers(trainers, states, text(PRESENT)?)?,
        own,
        progress,
        split: split_of(text(SPLIT)?, net)?,
        algorithms: settings::pairs(text(ALGORITHMS)?),
        notes,
    })
}

/// The states of the trainers, and their `present` settings, a line each.
fn of_trainers(
    trainers: &[&mut Trainer],
    states: Vec<BTreeMap<String, Tensor>>,
    present: &str,
) -> Result<Vec<OfTrainer>> {
    let mut present = present.lines();
    let with_states = trainers.iter().zip(states);
    let checked = with_states.map(|(trainer, mut state)| {
        let no_settings = "there are no settings of a trainer";
        let settings = PresentSettings::from_line(present.next().context(no_settings)?, trainer)?;
        let sums = state.remove(LOSSES).context("there are no losses")?;
        let [losses, epoch_losses] = losses_of(&sums)?;
        Ok(OfTrainer {
            state: trainer.check_state(&state, settings.trained())?,
            settings,
            losses,
            epoch_losses,
        })
    });
    checked.collect()
}

/// The weights of a split, for a network.
fn split_of(text: &str, net: &DataParallel) -> Result<Vec<f64>> {
    let weights: Option<Vec<f64>> = text.split(' ').map(|word| word.parse().ok()).collect();
    let is_split = |weights: &Vec<f64>| {
        let are_weights = weights.iter().all(|w| w.is_finite() && *w > 0.0);
        are_weights && weights.len() == net.split_weights().len()
    };
    let weights = weights.filter(is_split);
    weights.with_context(|| format!("the split of a minibatch cannot be read: {text:?}"))
}

/// The tensors of the network, in its order; no other may be left.
fn network_of(
    found: BTreeMap<String, Tensor>,
    net: &DataParallel,
) -> Result<Vec<(String, Tensor)>> {
    let expected = net.tensors();
    for (name, own) in &expected {
        let dtype = found.get(name).map_or(own.dtype(), Tensor::dtype);
        ensure!(
            dtype == own.dtype(),
            "tensor {name:?} has type {dtype:?}, expected {:?}",
            own.dtype()
        );
    }
    let taken = weights::take(found.into_iter().collect(), &expected)?;
    let names = expected.into_iter().map(|(name, _)| name);
    Ok(names.zip(taken).collect())
}

/// What is to be said if another version wrote the checkpoint.
fn of_another_version(begun_by: &str) -> Option<String> {
    let this = env!("CARGO_PKG_VERSION");
    (begun_by != this).then(|| {
        format!(
            "version {begun_by} of data-parallel wrote the checkpoint, and this is version {this}: results may differ in \
             the last digits"
        )
    })
}

/// The tensors of one's own of a checkpoint.
pub(super) fn take_own(tensors: &mut BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    take_prefix(tensors, OWN)
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

/// The sums of a trainer's losses and their divisors.
fn losses_tensor(trainer: &Trainer) -> Result<Tensor> {
    let mut numbers = Vec::new();
    for LossSum { sum, divisor } in trainer.losses.so_far()? {
        let counts = sum.is_finite() || !trainer.checks_numbers;
        ensure!(counts, "a loss is NaN or infinite");
        numbers.extend([sum, divisor]);
    }
    Tensor::new(numbers, &Device::Cpu)
}

/// What [`losses_tensor`] had.
fn losses_of(tensor: &Tensor) -> Result<[LossSum; 2]> {
    let numbers = tensor.to_vec1()?;
    let &[sum, divisor, of_epoch, divisor_of_epoch] = &numbers[..] else {
        bail!(
            "the checkpoint has {} numbers of losses, expected 4",
            numbers.len()
        )
    };
    let losses = LossSum { sum, divisor };
    let epoch_losses = LossSum {
        sum: of_epoch,
        divisor: divisor_of_epoch,
    };
    Ok([losses, epoch_losses])
}

fn steps(trainers: &[&Trainer]) -> Vec<usize> {
    trainers.iter().map(|trainer| trainer.steps()).collect()
}
