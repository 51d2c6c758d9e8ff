//! The folder that `--out` names: what a run leaves there.
//!
//! `steps.csv` has a line a step, `epochs.csv` a line an epoch; `loss.svg` is the training loss by step and
//! `accuracy.svg` the test accuracy by epoch, which grow while the run goes on; `checkpoint.safetensors` is what
//! `--resume` goes on from; `model.safetensors` has the parameters at the end. A folder that holds a run already
//! is refused. While the run goes on, a full disk costs what cannot be written, and not the run.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;
use d2l::Animator;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, Checkpoint, Header};
use crate::loss_curve::LossCurve;
use crate::say::warn;
use crate::table::Table;
use crate::{atomic, weights};

const STEPS: &str = "steps.csv";
const EPOCHS: &str = "epochs.csv";
const LOSS: &str = "loss.svg";
const ACCURACY: &str = "accuracy.svg";
const MODEL: &str = "model.safetensors";
const ALL: [&str; 7] = [
    STEPS,
    EPOCHS,
    LOSS,
    ACCURACY,
    MODEL,
    checkpoint::NEWEST,
    checkpoint::PREVIOUS,
];

const STEP_COLUMNS: [&str; 4] = ["epoch", "step", "examples", "loss"];
const EPOCH_COLUMNS: [&str; 4] = ["epoch", "loss", "test_acc", "seconds"];

/// The least time between two drawings while an epoch goes on.
const DRAW_EVERY: Duration = Duration::from_secs(2);
/// Drawing takes no more than this part of a run's time.
const DRAWING_SHARE: u32 = 500;

/// One line of `steps.csv`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    pub epoch: usize,
    pub step: usize,
    pub examples: usize,
    pub loss: f32,
}

/// One line of `epochs.csv`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Epoch {
    pub epoch: usize,
    pub loss: f64,
    pub test_acc: f64,
    pub seconds: f64,
}

#[derive(Debug)]
pub(crate) struct Record {
    pub folder: PathBuf,
    /// The step of the newest checkpoint.
    pub kept: usize,
    /// Held as long as this run writes there.
    _lock: Option<File>,
    steps: Table,
    epochs: Table,
    loss: LossCurve,
    /// When it is drawn anew at the earliest.
    next_drawing: Instant,
    checkpoints: Trouble,
    pictures: Trouble,
}

/// Whether the last thing of a kind could not be written.
#[derive(Debug, Default)]
struct Trouble(bool);

impl Trouble {
    /// Whether something was written. That it cannot be is said when it begins, and the run goes on.
    fn tolerate(&mut self, written: Result<()>) -> bool {
        let Err(error) = written else {
            self.0 = false;
            return true;
        };
        if !std::mem::replace(&mut self.0, true) {
            warn(format_args!("{error:#}; the run goes on"));
        }
        false
    }
}

impl Record {
    /// Whether a folder can be taken: it holds no run, or may be overwritten.
    pub fn check(folder: &Path, overwrite: bool) -> Result<()> {
        for name in ALL {
            ensure!(
                overwrite || !folder.join(name).exists(),
                "{0} already holds a run ({name}): name another folder, resume it with --resume \
                 {0}, or give --overwrite",
                folder.display()
            );
        }
        Ok(())
    }

    /// Takes a folder for a run: makes it, or removes the run that it holds. From then on it holds a checkpoint.
    pub fn open(
        folder: &Path,
        overwrite: bool,
        loss: LossCurve,
        header: &Header,
        tensors: &[(String, Tensor)],
    ) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let lock = lock(folder)?;
        // another run may have been here since the options were checked
        Self::check(folder, overwrite)?;
        for name in ALL {
            remove(&folder.join(name))?;
        }
        checkpoint::save(folder, header, tensors)?;
        Self::new(folder, lock, loss, header)
    }

    /// The lines of the run that a folder holds, up to a checkpoint.
    pub fn lines(folder: &Path, at: &Header) -> Result<(Vec<Step>, Vec<Epoch>)> {
        Ok((
            Table::rows(&folder.join(STEPS), &STEP_COLUMNS, at.steps)?,
            Table::rows(&folder.join(EPOCHS), &EPOCH_COLUMNS, at.epochs)?,
        ))
    }

    /// Takes the folder of a run that goes on from a checkpoint, and is locked; what came later is removed.
    pub fn go_on(
        folder: &Path,
        lock: Option<File>,
        loss: LossCurve,
        from: &Checkpoint,
    ) -> Result<Self> {
        // of an earlier step, or half of one
        remove(&folder.join(MODEL))?;
        remove(&atomic::partial(&folder.join(checkpoint::NEWEST)))?;
        if from.is_previous {
            // or the next checkpoint would put a damaged one in the place of the only good one
            checkpoint::previous_is_newest(folder)?;
        }
        Self::new(folder, lock, loss, &from.header)
    }

    /// Whether the run that a folder holds went to its end.
    pub fn is_finished(folder: &Path) -> bool {
        folder.join(MODEL).exists()
    }

    /// A record that goes on after the lines that a checkpoint counts.
    fn new(folder: &Path, lock: Option<File>, loss: LossCurve, at: &Header) -> Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            kept: at.steps,
            _lock: lock,
            steps: Table::open(&folder.join(STEPS), &STEP_COLUMNS, at.steps)?,
            epochs: Table::open(&folder.join(EPOCHS), &EPOCH_COLUMNS, at.epochs)?,
            loss,
            next_drawing: Instant::now(),
            checkpoints: Trouble::default(),
            pictures: Trouble::default(),
        })
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.steps.add(step)?;
        self.loss.add(step.loss)?;
        if Instant::now() >= self.next_drawing + DRAW_EVERY {
            self.draw(None);
        }
        Ok(())
    }

    pub fn epoch(&mut self, epoch: &Epoch, accuracy: &Animator) -> Result<()> {
        self.epochs.add(epoch)?;
        if Instant::now() >= self.next_drawing {
            self.draw(Some(accuracy));
        }
        Ok(())
    }

    /// Keeps what [`go_on`](Self::go_on) needs, if it can. The tables go first: a checkpoint is of lines that are
    /// there.
    pub fn checkpoint(&mut self, header: &Header, tensors: &[(String, Tensor)]) {
        let tables = self.steps.sync().and_then(|()| self.epochs.sync());
        let saved = tables.and_then(|()| checkpoint::save(&self.folder, header, tensors));
        if self.checkpoints.tolerate(saved) {
            self.kept = header.steps;
        }
    }

    /// What cannot be written costs nothing else.
    pub fn finish(&mut self, model: &[(String, Tensor)], accuracy: &Animator) -> Result<()> {
        let flushed = self.flush();
        self.draw(Some(accuracy));
        weights::save(&self.folder.join(MODEL), model).and(flushed)
    }

    /// Writes the lines that wait.
    pub fn flush(&mut self) -> Result<()> {
        self.steps.flush()?;
        self.epochs.flush()
    }

    /// Draws the loss; the accuracy as well, where it is new.
    fn draw(&mut self, accuracy: Option<&Animator>) {
        let start = Instant::now();
        let drawn = self.write_pictures(accuracy);
        self.pictures.tolerate(drawn);
        self.next_drawing = Instant::now() + start.elapsed() * DRAWING_SHARE;
    }

    fn write_pictures(&self, accuracy: Option<&Animator>) -> Result<()> {
        self.write(LOSS, &self.loss.svg()?)?;
        accuracy.map_or(Ok(()), |curve| self.write(ACCURACY, &curve.svg()?))
    }

    /// Writes a picture, which a viewer may load anew at any time: it sees the old one or the new one.
    fn write(&self, name: &str, picture: &str) -> Result<()> {
        let beside = self.folder.join(format!(".{name}"));
        let written =
            fs::write(&beside, picture).and_then(|()| fs::rename(&beside, self.folder.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.with_context(|| format!("cannot write {}", self.folder.join(name).display()))
    }
}

/// Locks a folder, so that no second run writes to it. None, without a check, where a folder cannot be locked.
pub(crate) fn lock(folder: &Path) -> Result<Option<File>> {
    let Ok(file) = File::open(folder) else {
        return Ok(None);
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!(
            "another run is writing to {}; name another folder, or wait for its end",
            folder.display()
        ),
        locked => Ok(locked.ok().map(|()| file)),
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(steps: usize) -> Header {
        Header {
            version: String::new(),
            settings: String::new(),
            arguments: Vec::new(),
            epochs: 0,
            steps,
            seconds: 0.0,
        }
    }

    fn begin(folder: &Path, overwrite: bool) -> Result<Record> {
        Record::open(folder, overwrite, LossCurve::new(1, 9), &header(0), &[])
    }

    /// Otherwise the next checkpoint would replace it by the damaged one.
    #[test]
    fn the_checkpoint_that_a_run_goes_on_from_is_the_newest() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut record = begin(folder.path(), false)?;
        let step = Step {
            epoch: 1,
            step: 1,
            examples: 1,
            loss: 1.0,
        };
        record.step(&step)?;
        record.checkpoint(&header(1), &[]);
        assert_eq!(record.kept, 1);
        drop(record);
        let newest = folder.path().join(checkpoint::NEWEST);
        fs::write(&newest, "damaged")?;
        let (from, damaged) = Checkpoint::load(folder.path())?;
        assert!(from.is_previous && damaged.is_some());
        Record::go_on(folder.path(), None, LossCurve::new(1, 9), &from)?;
        let (again, damaged) = Checkpoint::load(folder.path())?;
        assert_eq!(
            (again.header, again.is_previous, damaged),
            (header(0), false, None)
        );
        assert!(!folder.path().join(checkpoint::PREVIOUS).exists());
        Ok(())
    }

    /// It came after the options were checked.
    #[test]
    fn a_run_that_is_there_is_not_replaced_unasked() -> Result<()> {
        let folder = tempfile::tempdir()?;
        Record::check(folder.path(), false)?;
        drop(begin(folder.path(), false)?);
        let error = begin(folder.path(), false).unwrap_err().to_string();
        assert!(error.contains("already holds a run"), "{error}");
        begin(folder.path(), true)?;
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn two_runs_cannot_write_to_one_folder() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let first = lock(folder.path())?;
        let error = lock(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("another run is writing to "), "{error}");
        drop(first);
        lock(folder.path())?;
        Ok(())
    }
}
