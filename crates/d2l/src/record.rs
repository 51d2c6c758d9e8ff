//! The folder that `--out` names: what a run leaves there.
//!
//! `steps.csv` has a line a step, `epochs.csv` a line an epoch, `accuracy.svg` the curve,
//! `model.safetensors` the parameters. A folder that holds a run already is refused.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use serde::Serialize;

use crate::{Animator, weights};

const STEPS: &str = "steps.csv";
const EPOCHS: &str = "epochs.csv";
const CURVE: &str = "accuracy.svg";
const MODEL: &str = "model.safetensors";

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
}

impl Record {
    /// Whether a folder can be taken: it holds no run, or may be overwritten.
    pub fn check(folder: &Path, overwrite: bool) -> Result<()> {
        for name in [STEPS, EPOCHS, CURVE, MODEL] {
            ensure!(
                overwrite || !folder.join(name).exists(),
                "{} holds a run already ({name}): name another folder, or give --overwrite",
                folder.display()
            );
        }
        Ok(())
    }

    /// Takes a folder for a run: makes it, or removes the run that it holds.
    pub fn open(folder: &Path) -> Result<Self> {
        for name in [STEPS, EPOCHS, CURVE, MODEL] {
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
        })
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.steps.serialize(step).context("cannot write steps.csv")
    }

    pub fn epoch(&mut self, epoch: &Epoch, curve: &Animator) -> Result<()> {
        self.epochs
            .serialize(epoch)
            .context("cannot write epochs.csv")?;
        self.draw(curve)?;
        self.flush()
    }

    pub fn finish(&mut self, model: &[(String, Tensor)], curve: &Animator) -> Result<()> {
        self.draw(curve)?;
        self.flush()?;
        weights::save(&self.folder.join(MODEL), model)
    }

    fn draw(&self, curve: &Animator) -> Result<()> {
        fs::write(self.folder.join(CURVE), curve.svg()?).context("cannot write accuracy.svg")
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
