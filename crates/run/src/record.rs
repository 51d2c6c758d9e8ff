//! The folder that `--out` names: what a run leaves there.
//!
//! `checkpoint.safetensors` is what `--resume` goes on from. From the same lines are drawn: `steps.csv`, a line a step;
//! `epochs.csv`, a line an epoch; `loss.svg`, the training loss by step; `accuracy.svg`, the test accuracy by epoch.
//! They grow while the run goes on. `model.safetensors` has the parameters at the end. A folder that holds a run already
//! is refused. While the run goes on, a full disk costs what cannot be written, and not the run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

use crate::checkpoint::{self, Header};
use crate::folder::Folder;
use crate::lines::{ACCURACY, EPOCHS, Epoch, LOSS, Lines, STEPS, Sizes};
use crate::say::warn;
use crate::weights;

const MODEL: &str = "model.safetensors";
const ALL: [&str; 8] = [
    checkpoint::NEWEST,
    checkpoint::PREVIOUS,
    checkpoint::NEXT,
    MODEL,
    STEPS,
    EPOCHS,
    LOSS,
    ACCURACY,
];

/// The least time between two drawings while an epoch goes on.
const DRAW_EVERY: Duration = Duration::from_secs(2);
/// Drawing takes no more than this part of a run's time.
const DRAWING_SHARE: u32 = 500;

#[derive(Debug)]
pub(crate) struct Record {
    pub header: Header,
    /// The names of the tensors that are state.
    pub names: Vec<String>,
    pub lines: Lines,
    pub sizes: Sizes,
    /// The step of the newest checkpoint.
    pub kept: usize,
    /// The run's own folder; none where nothing is written.
    pub folder: Option<Folder>,
    /// There are lines that are not drawn.
    is_new: bool,
    /// When they are drawn at the earliest.
    next_drawing: Instant,
    /// What could not be written the last time.
    failing: BTreeSet<&'static str>,
}

impl Record {
    /// A run without a folder.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            header: Header::default(),
            names: Vec::new(),
            lines: Lines::default(),
            sizes,
            kept: 0,
            folder: None,
            is_new: false,
            next_drawing: Instant::now(),
            failing: BTreeSet::new(),
        }
    }

    /// Whether a folder can be taken: it holds no run, or may be overwritten.
    pub fn check(folder: &Path, overwrite: bool) -> Result<()> {
        for name in ALL {
            let path = folder.join(name);
            ensure!(
                overwrite || !path.exists(),
                "{0} already holds a run ({name}): name another folder, resume it with --resume \
                 {0}, or give --overwrite",
                folder.display()
            );
            ensure!(
                !path.is_dir(),
                "{} is a folder, not a file of a run",
                path.display()
            );
        }
        Ok(())
    }

    /// Makes a folder, or takes one that holds no run or may be overwritten. What is there stays.
    pub fn take(path: &Path, overwrite: bool) -> Result<Folder> {
        let folder = fs::create_dir_all(path).and_then(|()| Folder::open(path));
        let folder =
            folder.with_context(|| format!("cannot make the folder {}", path.display()))?;
        folder.lock()?;
        // another run may have been here since the options were checked
        Self::check(path, overwrite)?;
        Ok(folder)
    }

    /// Begins a run in a folder. The first checkpoint takes the place of an earlier run's, and only then its other
    /// files go: at any moment the folder holds one run or the other.
    pub fn begin(&mut self, folder: Folder, tensors: &[(String, Tensor)]) -> Result<()> {
        checkpoint::begin(&folder, &self.header, tensors)?;
        ALL[1..].iter().try_for_each(|name| folder.remove(name))?;
        self.folder = Some(folder);
        self.write_drawings()
    }

    /// Goes on with a run from a checkpoint that has these lines: the newest one of the folder, or the previous one. What
    /// came later is removed.
    pub fn go_on(&mut self, folder: Folder, from_previous: bool) -> Result<()> {
        for name in ALL.map(|name| format!(".{name}.partial")) {
            folder.remove(&name)?;
        }
        folder.remove(MODEL)?; // of an earlier step
        if from_previous {
            // or the next checkpoint would put a damaged one in the place of the only good one
            folder.remove(checkpoint::NEWEST)?;
            folder.rename(checkpoint::PREVIOUS, checkpoint::NEWEST)?;
        }
        folder.remove(checkpoint::NEXT)?;
        self.kept = self.lines.losses.len();
        self.folder = Some(folder);
        self.write_drawings()
    }

    /// Whether the run that a folder holds went to its end.
    pub fn is_finished(folder: &Folder) -> bool {
        folder.path.join(MODEL).exists()
    }

    /// Adds a step. From time to time the drawings show it.
    pub fn step(&mut self, loss: f32) -> Result<()> {
        self.lines.losses.push(loss);
        self.draw_if_due(DRAW_EVERY)
    }

    pub fn epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.lines.epochs.push(epoch);
        self.draw_if_due(Duration::ZERO)
    }

    /// Keeps what [`go_on`](Self::go_on) needs, if it can; the run has trained so many seconds in this epoch.
    pub fn checkpoint(&mut self, seconds: f64, tensors: &[(String, Tensor)]) -> Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        folder.check()?;
        self.header.seconds = seconds;
        self.header.algorithms = functional::algorithms();
        let saved = checkpoint::save(folder, &self.header, &self.lines, tensors);
        if self.tolerate("checkpoints", saved) {
            self.kept = self.lines.losses.len();
        }
        Ok(())
    }

    /// Writes the drawings of all lines, and the parameters. What cannot be written costs nothing else.
    pub fn finish(&mut self, model: &[(String, Tensor)]) -> Result<()> {
        let drawn = self.write_drawings();
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        folder.check()?;
        weights::save(&folder.path.join(MODEL), model).and(drawn)
    }

    /// Gives the tensors of the state their names.
    pub fn named(&self, tensors: Vec<Tensor>) -> Vec<(String, Tensor)> {
        self.names.iter().cloned().zip(tensors).collect()
    }

    /// Where an error leaves the reader.
    pub fn has_kept(&self) -> String {
        let folder = self.folder.as_ref().map(|folder| folder.path.display());
        let kept = |folder| format!("; {folder} holds the checkpoint of step {}", self.kept);
        folder.map(kept).unwrap_or_default()
    }

    fn draw_if_due(&mut self, pause: Duration) -> Result<()> {
        self.is_new = true;
        let start = Instant::now();
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        if start < self.next_drawing + pause {
            return Ok(());
        }
        folder.check()?;
        let drawn = self.write_drawings();
        self.tolerate("drawings", drawn);
        self.next_drawing = Instant::now() + start.elapsed() * DRAWING_SHARE;
        Ok(())
    }

    /// Writes all that is drawn from the lines, as far as it can.
    fn write_drawings(&mut self) -> Result<()> {
        self.is_new = false;
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        folder.check()?;
        let drawn = self.lines.drawn(self.sizes)?;
        let written = drawn.map(|(name, bytes)| folder.write(name, &bytes));
        written.into_iter().collect()
    }

    /// Whether something was written. The first time that it cannot be is said, and the run goes on.
    fn tolerate(&mut self, what: &'static str, written: Result<()>) -> bool {
        let Err(error) = written else {
            self.failing.remove(what);
            return true;
        };
        if self.failing.insert(what) {
            warn(format_args!("{error:#}; the run goes on"));
        }
        false
    }
}

impl Drop for Record {
    /// A run that ends with an error leaves its last lines, too.
    fn drop(&mut self) {
        if self.is_new {
            let _ = self.write_drawings(); // the error itself says more
        }
    }
}

/// Whether a path leads to a file that a run writes in its folder.
pub(crate) fn is_own(folder: &Path, path: &Path) -> bool {
    // a link counts as what it leads to
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let is_inside = folder.canonicalize().ok() == parent.canonicalize().ok();
    let is = |name: &str| path.ends_with(name) || path.ends_with(format!(".{name}.partial"));
    is_inside && ALL.into_iter().any(is)
}
