//! What a checkpoint of a run of the book's programs has: where the run stands, what it is, its lines and its tensors.
//! The file and the folder are those of `training`.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use training::CheckpointFolder;

use crate::lines::Lines;

/// So many checkpoints stay.
pub(crate) const KEPT: usize = 2;

/// The tensor that has the loss of each step. No network has such a name: its names have dots.
const LOSSES: &str = "run/losses";
/// The texts that have the [`Header`] and the epochs.
const RUN: &str = "run";
const EPOCHS: &str = "epochs";

/// Where a run stands, and what it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The version of the program that wrote it.
    pub version: String,
    /// What the result of the run depends on, a line each.
    pub settings: String,
    /// The command line, as far as it says what to do.
    pub arguments: Vec<String>,
    /// Seconds of training in the epoch that is not complete.
    pub seconds: f64,
    /// The algorithms that were chosen for a GPU, so that a resumed run has the same bits: pairs of a convolution and its
    /// algorithm, as `functional::algorithms` gives them.
    #[serde(default)]
    pub algorithms: Vec<(String, String)>,
}

/// What a checkpoint has.
#[derive(Debug)]
pub(crate) struct SavedRun {
    pub header: Header,
    /// What the tables had.
    pub lines: Lines,
    pub tensors: HashMap<String, Tensor>,
}

impl SavedRun {
    /// The newest one of a folder that is whole; and if that is not the newest one, why.
    pub fn load(folder: &mut CheckpointFolder) -> Result<(Self, Option<String>)> {
        let found = folder
            .newest()?
            .ok_or_else(|| anyhow!(holds_none(folder.folder().path())))?;
        let checkpoint = Self::of(found.checkpoint)
            .with_context(|| format!("cannot resume from {}", found.path.display()))?;
        Ok((checkpoint, found.damaged))
    }

    fn of(found: training::Checkpoint) -> Result<Self> {
        let training::Checkpoint { texts, mut tensors } = found;
        let text = |key| {
            let text = texts.get(key).map(String::as_str);
            text.context("it is not of a program of the book: go on with the program that wrote it")
        };
        let losses = tensors.remove(LOSSES).context("it has no losses");
        Ok(Self {
            header: serde_json::from_str(text(RUN)?)?,
            lines: Lines {
                losses: losses?.to_vec1()?,
                epochs: serde_json::from_str(text(EPOCHS)?)?,
            },
            tensors: tensors.into_iter().collect(),
        })
    }
}

/// Opens the folder that `--resume` names.
pub(crate) fn folder_of_a_run(path: &Path) -> Result<CheckpointFolder> {
    CheckpointFolder::open(path).with_context(|| holds_none(path))
}

fn holds_none(path: &Path) -> String {
    let path = path.display();
    format!("{path} holds no checkpoint; name a folder that a run with --out wrote")
}

/// The checkpoint of a run that has these lines.
pub(crate) fn to_checkpoint(
    header: &Header,
    lines: &Lines,
    tensors: &[(String, Tensor)],
) -> Result<training::Checkpoint> {
    let losses = Tensor::from_slice(&lines.losses, lines.losses.len(), &Device::Cpu)?;
    let losses = (LOSSES.to_owned(), losses);
    let texts = [
        (RUN.to_owned(), serde_json::to_string(header)?),
        (EPOCHS.to_owned(), serde_json::to_string(&lines.epochs)?),
    ];
    Ok(training::Checkpoint {
        texts: texts.into(),
        tensors: tensors.iter().cloned().chain([losses]).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Epoch;

    #[test]
    fn what_a_run_keeps_comes_back() -> Result<()> {
        let place = tempfile::tempdir()?;
        let mut folder = folder_of_a_run(place.path())?;
        let none = SavedRun::load(&mut folder).unwrap_err().to_string();
        assert!(none.contains("holds no checkpoint"), "{none}");
        let header = Header {
            settings: "lr 0.1\nimages \"synthetic\"".into(),
            arguments: vec!["--gpus=2".into()],
            ..Header::default()
        };
        let epoch = Epoch {
            epoch: 1,
            loss: 0.1,
            test_acc: 0.7,
            seconds: 0.3,
        };
        let lines = Lines {
            losses: vec![0.1; 5],
            epochs: vec![epoch],
        };
        let w = [("W".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu)?)];
        folder.save(5, &to_checkpoint(&header, &lines, &w)?, KEPT)?;
        let (found, damaged) = SavedRun::load(&mut folder)?;
        assert_eq!((found.header, found.lines, damaged), (header, lines, None));
        assert_eq!(found.tensors["W"].to_vec1::<f32>()?, [1.0, 2.0]);
        folder.save(6, &training::Checkpoint::default(), KEPT)?;
        let other = format!("{:#}", SavedRun::load(&mut folder).unwrap_err());
        assert!(other.contains("not of a program of the book"), "{other}");
        Ok(())
    }
}
