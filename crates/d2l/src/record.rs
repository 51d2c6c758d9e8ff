//! The folder that `--out` names: what a run leaves there.
//!
//! `steps.csv` has a line a step, `epochs.csv` a line an epoch; `loss.svg` is the training loss by step and
//! `accuracy.svg` the test accuracy by epoch, which grow while the run goes on; `model.safetensors` has the
//! parameters. A folder that holds a run already is refused.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use serde::Serialize;

use crate::loss_curve::LossCurve;
use crate::{Animator, weights};

const STEPS: &str = "steps.csv";
const EPOCHS: &str = "epochs.csv";
const LOSS: &str = "loss.svg";
const ACCURACY: &str = "accuracy.svg";
const MODEL: &str = "model.safetensors";
const ALL: [&str; 5] = [STEPS, EPOCHS, LOSS, ACCURACY, MODEL];

/// How often the loss is drawn anew while an epoch goes on.
const DRAW_EVERY: Duration = Duration::from_secs(2);
/// Drawing takes no more than this part of a run's time.
const DRAWING_SHARE: u32 = 500;

/// One line of `steps.csv`.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    pub epoch: usize,
    pub step: usize,
    pub examples: usize,
    pub loss: f32,
}

/// One line of `epochs.csv`.
#[derive(Debug, Serialize)]
pub(crate) struct Epoch {
    pub epoch: usize,
    pub loss: f64,
    pub test_acc: f64,
    pub seconds: f64,
}

#[derive(Debug)]
pub(crate) struct Record {
    folder: PathBuf,
    steps: csv::Writer<File>,
    epochs: csv::Writer<File>,
    loss: LossCurve,
    /// When the loss is drawn anew.
    next_drawing: Instant,
}

impl Record {
    /// Whether a folder can be taken: it holds no run, or may be overwritten.
    pub fn check(folder: &Path, overwrite: bool) -> Result<()> {
        for name in ALL {
            ensure!(
                overwrite || !folder.join(name).exists(),
                "{} holds a run already ({name}): name another folder, or give --overwrite",
                folder.display()
            );
        }
        Ok(())
    }

    /// Takes a folder for a run: makes it, or removes the run that it holds.
    pub fn open(folder: &Path, loss: LossCurve) -> Result<Self> {
        for name in ALL {
            let path = folder.join(name);
            if path.exists() {
                let cannot = || format!("cannot replace {}", path.display());
                fs::remove_file(&path).with_context(cannot)?;
            }
        }
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        Ok(Self {
            steps: csv_file(&folder.join(STEPS), &["epoch", "step", "examples", "loss"])?,
            epochs: csv_file(
                &folder.join(EPOCHS),
                &["epoch", "loss", "test_acc", "seconds"],
            )?,
            folder: folder.to_owned(),
            loss,
            next_drawing: Instant::now() + DRAW_EVERY,
        })
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.steps
            .serialize(step)
            .context("cannot write steps.csv")?;
        self.loss.add(step.loss)?;
        match Instant::now() < self.next_drawing {
            true => Ok(()),
            false => self.draw_loss(),
        }
    }

    pub fn epoch(&mut self, epoch: &Epoch, accuracy: &Animator) -> Result<()> {
        self.epochs
            .serialize(epoch)
            .context("cannot write epochs.csv")?;
        self.draw_loss()?;
        self.write(ACCURACY, &accuracy.svg()?)?;
        self.flush()
    }

    pub fn finish(&mut self, model: &[(String, Tensor)], accuracy: &Animator) -> Result<()> {
        self.draw_loss()?;
        self.write(ACCURACY, &accuracy.svg()?)?;
        self.flush()?;
        weights::save(&self.folder.join(MODEL), model)
    }

    fn draw_loss(&mut self) -> Result<()> {
        let start = Instant::now();
        self.write(LOSS, &self.loss.svg()?)?;
        let pause = DRAW_EVERY.max(start.elapsed() * DRAWING_SHARE);
        self.next_drawing = Instant::now() + pause;
        Ok(())
    }

    /// Writes a picture, which a viewer may load anew at any time: it sees the old one or the new one.
    fn write(&self, name: &str, picture: &str) -> Result<()> {
        let beside = self.folder.join(format!(".{name}"));
        fs::write(&beside, picture)
            .and_then(|()| fs::rename(&beside, self.folder.join(name)))
            .with_context(|| format!("cannot write {name}"))
    }

    fn flush(&mut self) -> Result<()> {
        let folder = &self.folder;
        let cannot = || format!("cannot write to {}", folder.display());
        self.steps.flush().with_context(cannot)?;
        self.epochs.flush().with_context(cannot)
    }
}

/// The header is written at once: a run without an epoch leaves a table without a row.
fn csv_file(path: &Path, header: &[&str]) -> Result<csv::Writer<File>> {
    let cannot = || format!("cannot write {}", path.display());
    let file = File::create(path).with_context(cannot)?;
    let mut writer = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(file);
    writer.write_record(header).with_context(cannot)?;
    writer.flush().with_context(cannot)?;
    Ok(writer)
}
