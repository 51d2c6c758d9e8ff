//! `--trace FILE`: the first steps of a run as a Chrome trace, and one of them as a picture beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::timeline::Recording;

/// So many steps are recorded, and an evaluation that falls among them: enough to see them all, little enough
/// to be kept in memory.
const STEPS: usize = 50;

/// The recording of a run, until it is written.
#[derive(Debug)]
pub(crate) struct Trace {
    file: PathBuf,
    recording: Recording,
    steps: usize,
}

impl Trace {
    /// Whether the trace and the picture can be put there.
    pub fn check(file: &Path, overwrite: bool) -> Result<()> {
        let picture = picture(file);
        ensure!(
            file != picture,
            "--trace {}: the picture of a step is put there; name another file for the trace, such as {}",
            file.display(),
            file.with_extension("json").display()
        );
        for path in [file, &picture] {
            ensure!(
                overwrite || !path.exists(),
                "{} is there already: name another file for --trace, or give --overwrite",
                path.display()
            );
        }
        Ok(())
    }

    /// Makes both files, and begins to record.
    pub fn begin(file: &Path) -> Result<Self> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        write(file, "")?;
        write(&picture(file), "")?;
        Ok(Self {
            file: file.to_owned(),
            recording: Recording::start(),
            steps: 0,
        })
    }

    /// Counts a step; the last one has the files written, and ends the recording.
    pub fn step(mut self) -> Result<Option<Self>> {
        self.steps += 1;
        if self.steps < STEPS {
            return Ok(Some(self));
        }
        self.finish().map(|()| None)
    }

    /// Writes what was recorded, and a picture of a typical step.
    pub fn finish(self) -> Result<()> {
        let timeline = self.recording.end();
        write(&self.file, &timeline.chrome())?;
        let step = timeline.typical_step();
        write(&picture(&self.file), &step.unwrap_or(timeline).svg())
    }
}

fn picture(file: &Path) -> PathBuf {
    file.with_extension("svg")
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
