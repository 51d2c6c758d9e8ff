//! `--trace FILE`: the first steps of a run as a Chrome trace, and one of them as a picture beside it. Both are
//! written when all is recorded: a run that is killed before leaves neither.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::record;
use crate::say::warn;
use crate::timeline::Recording;
use training::files::{check_is_file, check_name, end_of_links, make_folder};

/// Number of steps that are recorded, with an evaluation that falls among them: enough to see them all, little enough
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
    /// An error, if a trace and its picture cannot be written: they would replace a file that is there, or one in the
    /// folder of the run.
    pub fn check(file: &Path, run: Option<&Path>, overwrite: bool) -> Result<()> {
        let name = file.display();
        let picture = picture(file);
        ensure!(!file.is_dir(), "--trace {name}: it is a folder, not a file");
        ensure!(
            file != picture,
            "--trace {name}: the picture of a step gets this name; choose another name for the \
             trace, such as {}",
            file.with_extension("json").display()
        );
        check_name(file).with_context(|| format!("--trace {name}"))?;
        let folder = file.parent().map_or(Ok(()), make_folder);
        folder.with_context(|| format!("--trace {name}: cannot make its folder"))?;
        for path in [file, &picture] {
            let shown = path.display();
            ensure!(
                overwrite || !path.exists(),
                "{shown} exists already: name another file for --trace, or give --overwrite"
            );
            ensure!(
                !run.is_some_and(|run| record::is_own(run, path)),
                "--trace {name}: {shown} is a file of the run itself; choose another name"
            );
            ensure!(
                !record::is_of_a_run(path),
                "--trace {name}: {shown} is a file of the run in its folder; choose another name"
            );
            check_writable(path).with_context(|| format!("cannot write {shown}"))?;
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
}

impl Drop for Trace {
    /// Writes what was recorded, and a picture of a typical step.
    fn drop(&mut self) {
        let timeline = self.recording.timeline();
        let trace = timeline.chrome();
        let drawn = timeline.typical_step().unwrap_or(timeline).svg();
        for (path, text) in [(&self.file, trace), (&picture(&self.file), drawn)] {
            if let Err(error) = fs::write(path, text) {
                let path = path.display(); // the run does not fail
                warn(format_args!("--trace: cannot write {path}: {error}"));
            }
        }
    }
}

fn picture(file: &Path) -> PathBuf {
    file.with_extension("svg")
}

/// Checks that a file can be written; what is there stays as it is.
fn check_writable(path: &Path) -> std::io::Result<()> {
    if path.exists() {
        check_is_file(&fs::metadata(path)?)?;
        return OpenOptions::new().append(true).open(path).map(drop);
    }
    let path = end_of_links(path)?; // which stay
    fs::File::create_new(&path)?;
    fs::remove_file(path)
}
