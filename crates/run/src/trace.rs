//! `--trace FILE`: the first steps of a run as a Chrome trace, and one of them as a picture beside it. Both are
//! written when all is recorded: a run that is killed before leaves neither.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files::check_is_file;
use crate::record;
use crate::say::warn;
use crate::timeline::Recording;

/// So many steps are recorded, and an evaluation that falls among them: enough to see them all, little enough
/// to be kept in memory.
const STEPS: usize = 50;

/// The recording of a run. It is written when it is dropped, also by a run that fails.
#[derive(Debug)]
pub(crate) struct Trace {
    file: PathBuf,
    recording: Recording,
    steps: usize,
}

impl Trace {
    /// Whether there may be a trace and a picture of these names.
    pub fn check(file: &Path, overwrite: bool) -> Result<()> {
        let picture = picture(file);
        ensure!(
            file != picture,
            "--trace {}: the picture of a step gets this name; choose another name for the trace, \
             such as {}",
            file.display(),
            file.with_extension("json").display()
        );
        for path in [file, &picture] {
            ensure!(
                overwrite || !path.exists(),
                "{} exists already: name another file for --trace, or give --overwrite",
                path.display()
            );
        }
        Ok(())
    }

    /// Checks that both files can be written, and that they are none of those in the folder of the run.
    pub fn try_files(file: &Path, run: Option<&Path>) -> Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("--trace {}: cannot make its folder", file.display()))?;
        }
        for path in [file, &picture(file)] {
            ensure!(
                !run.is_some_and(|run| record::is_own(run, path)),
                "--trace {}: {} is a file of the run itself; choose another name",
                file.display(),
                path.display()
            );
            can_be_written(path)?;
        }
        Ok(())
    }

    /// Begins to record.
    pub fn begin(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            recording: Recording::start(),
            steps: 0,
        }
    }

    /// Counts a step; the last one ends the recording.
    pub fn step(mut self) -> Option<Self> {
        self.steps += 1;
        (self.steps < STEPS).then_some(self)
    }

    /// Writes what was recorded, and a picture of a typical step.
    fn write(&self) -> Result<()> {
        let timeline = self.recording.timeline();
        write(&self.file, &timeline.chrome())?;
        let step = timeline.typical_step();
        write(&picture(&self.file), &step.unwrap_or(timeline).svg())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Err(error) = self.write() {
            warn(format_args!("--trace: {error:#}")); // the run does not fail
        }
    }
}

fn picture(file: &Path) -> PathBuf {
    file.with_extension("svg")
}

/// Whether a file can be written; what is there stays as it is.
fn can_be_written(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    let can = || {
        if !is_new {
            check_is_file(&fs::metadata(path)?)?;
        }
        OpenOptions::new().append(true).create(true).open(path)
    };
    can().with_context(|| format!("cannot write {}", path.display()))?;
    if is_new {
        let _ = fs::remove_file(path); // it is empty
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
