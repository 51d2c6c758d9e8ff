//! The folder that `--out` names: what a run leaves there.
//!
//! From the same lines are drawn: `steps.csv`, a line a step; `epochs.csv`, a line an epoch; `loss.svg`, the training loss
//! by step; `accuracy.svg`, the test accuracy by epoch. They grow while the run goes on. `model.safetensors` has the
//! parameters at the end. Checkpoints beside them are not the record's. A folder that holds a run already is refused. While
//! the run goes on, a full disk costs what cannot be written, and not the run.
//!
//! Each file is drawn as a whole, so none has to be repaired. Before a resumed run replaces a table, it compares the
//! rows with the checkpoint's.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::Tensor;

use crate::lines::{ACCURACY, EPOCHS, Epoch, LOSS, Lines, STEPS, Sizes};
use crate::options::is_same_folder;
use crate::say::warn;
use dataset::quoted;
use training::{CheckpointFolder, Folder, NEWEST, files, weights};

const MODEL: &str = "model.safetensors";
/// The files of a run beside its checkpoints.
const ALL: [&str; 5] = [MODEL, STEPS, EPOCHS, LOSS, ACCURACY];

/// The least time between two drawings while an epoch goes on.
const DRAW_EVERY: Duration = Duration::from_secs(2);
/// Drawing takes no more than this part of a run's time.
const DRAWING_SHARE: u32 = 500;
/// The most time between two drawings, also where a network disk stood still in one of them.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Record {
    pub lines: Lines,
    pub sizes: Sizes,
    /// The run's own folder; none where nothing is written.
    folder: Option<Folder>,
    /// There are lines that are not drawn.
    is_new: bool,
    /// When they are drawn at the earliest.
    next_drawing: Instant,
    /// Names of what could not be written the last time.
    failing: BTreeSet<&'static str>,
}

impl Record {
    /// A run without a folder.
    pub fn new(sizes: Sizes) -> Self {
        Self {
            lines: Lines::default(),
            sizes,
            folder: None,
            is_new: false,
            next_drawing: Instant::now(),
            failing: BTreeSet::new(),
        }
    }

    /// Checks that a folder can be taken: it holds no run, or may be overwritten.
    pub fn check(folder: &Path, overwrite: bool) -> Result<()> {
        files::check_name(folder).with_context(|| format!("--out {}", folder.display()))?;
        for name in [NEWEST].into_iter().chain(ALL) {
            let path = folder.join(name);
            ensure!(
                !path.is_dir(),
                "{} is a folder, not a file of a run",
                path.display()
            );
        }
        let names = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok());
        let of_run =
            |name: &String| CheckpointFolder::is_checkpoint(name) || ALL.contains(&name.as_str());
        let first = names
            .filter(of_run)
            .min_by_key(|name| (name != NEWEST, name.clone()));
        if let Some(name) = first.filter(|_| !overwrite) {
            let resume = if CheckpointFolder::is_checkpoint(&name) {
                format!(", resume it with --resume {}", quoted(folder))
            } else {
                String::new()
            };
            bail!(
                "{} already holds a run ({name}): name another folder{resume}, or give --overwrite",
                folder.display()
            );
        }
        Ok(())
    }

    /// Takes a folder for this run alone, and makes it where it is not there. It holds no run, or one that may be
    /// overwritten and has no checkpoints.
    pub fn take(&mut self, path: &Path, overwrite: bool) -> Result<()> {
        let folder = files::make_folder(path).and_then(|()| Folder::open(path));
        let folder =
            folder.with_context(|| format!("cannot make the folder {}", path.display()))?;
        folder.lock()?;
        // another run may have been here since the options were checked
        Self::check(path, overwrite)?;
        ensure!(
            !CheckpointFolder::open(path)?.is_begun()?,
            "{} holds checkpoints, which belong to a run of another program: name another folder",
            path.display()
        );
        self.begin(folder)
    }

    /// Begins the record in a folder, in the place of an earlier one.
    pub fn begin(&mut self, folder: Folder) -> Result<()> {
        for name in ALL {
            folder.remove(name)?;
        }
        self.folder = Some(folder);
        self.write_drawings(Folder::write)
    }

    /// Goes on with the record of a run in its folder, after these lines. What came later is removed. A model of a run that
    /// was complete stays until the new one takes its place.
    ///
    /// # Errors
    /// If a table there contradicts the lines.
    pub fn go_on(&mut self, folder: Folder, lines: Lines) -> Result<()> {
        lines.check_tables(self.sizes, &folder)?;
        folder.remove_partial(&ALL);
        self.lines = lines;
        self.folder = Some(folder);
        self.write_drawings(Folder::write)
    }

    /// True if a folder has the model of a run that ends with these parameters: one of an earlier step is another one.
    ///
    /// # Errors
    /// If a parameter is NaN or infinite.
    pub fn is_finished(folder: &Folder, model: &[(String, Tensor)]) -> Result<bool> {
        let path = folder.path().join(MODEL);
        let Ok(found) = fs::read(&path) else {
            return Ok(false);
        };
        let expected = weights::to_finite_bytes(&path.display().to_string(), model)?;
        Ok(found == expected)
    }

    /// Adds a step. From time to time the drawings show it.
    pub fn step(&mut self, loss: f32) -> Result<()> {
        self.lines.losses.push(loss);
        self.draw_if_due(DRAW_EVERY)
    }

    /// Adds an epoch. Its table, which is small, shows it at once.
    pub fn epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.lines.epochs.push(epoch);
        if let Some(folder) = self.checked_folder()? {
            let table = self.lines.epochs_table()?;
            if let Err(error) = folder.write_unflushed(EPOCHS, &table) {
                self.tolerate("tables", Err(error.into()));
            }
        }
        self.draw_if_due(Duration::ZERO)
    }

    /// Writes the drawings of all lines, and the parameters. What cannot be written costs nothing else.
    pub fn finish(&mut self, model: &[(String, Tensor)]) -> Result<()> {
        let tables = self.write_drawings(Folder::write);
        match self.checked_folder()? {
            Some(folder) => {
                weights::save(&folder.path().join(MODEL), model)?;
                tables
            }
            None => Ok(()),
        }
    }

    /// The name of the folder of the run, if there is one.
    pub fn path(&self) -> Option<&Path> {
        Some(self.folder.as_ref()?.path())
    }

    /// The folder of the run, if there is one. An error, if it has another name now.
    fn checked_folder(&self) -> Result<Option<&Folder>> {
        self.folder.as_ref().map_or(Ok(()), Folder::check)?;
        Ok(self.folder.as_ref())
    }

    fn draw_if_due(&mut self, pause: Duration) -> Result<()> {
        self.is_new = true;
        let start = Instant::now();
        if start < self.next_drawing + pause || self.checked_folder()?.is_none() {
            return Ok(());
        }
        let tables = self.write_drawings(Folder::write_unflushed);
        self.tolerate("tables", tables);
        let pause = (start.elapsed() * DRAWING_SHARE).min(LONGEST_PAUSE);
        self.next_drawing = Instant::now() + pause;
        Ok(())
    }

    /// Writes all that is drawn from the lines, as far as it can. It is an error if a table cannot be written.
    fn write_drawings(
        &mut self,
        how: fn(&Folder, &str, &[u8]) -> candle_core::Result<()>,
    ) -> Result<()> {
        let Some(folder) = self.checked_folder()? else {
            return Ok(());
        };
        let write = |files: [(&str, Vec<u8>); 2]| -> Result<()> {
            let written = files.map(|(name, bytes)| how(folder, name, &bytes));
            Ok(written.into_iter().collect::<candle_core::Result<()>>()?)
        };
        let tables = write(self.lines.tables(self.sizes)?);
        let pictures = write(self.lines.pictures(self.sizes)?);
        self.tolerate("pictures", pictures);
        self.is_new = tables.is_err();
        tables
    }

    /// True if something was written. The first time that it cannot be is said, and the run goes on.
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
            let _ = self.write_drawings(Folder::write); // the error itself says more
        }
    }
}

/// True if a path leads to a file that a run writes in its folder.
pub(crate) fn is_own(folder: &Path, path: &Path) -> bool {
    // a link counts as what it leads to, also where that is not there yet
    let path = path
        .canonicalize()
        .or_else(|_| std::path::absolute(files::end_of_links(path)?))
        .unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is = |own: &&str| name == *own || files::is_partial(&name, own);
    let parent = path.parent().unwrap_or(Path::new("/"));
    is_same_folder(parent, folder) && (CheckpointFolder::is_own(&name) || ALL.iter().any(is))
}

/// True if a path leads to a file that a run has written in its folder.
pub(crate) fn is_of_a_run(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new("/"));
    folder.join(NEWEST).exists() && is_own(folder, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        epochs: 1,
        train: 9,
        test: 1,
        batch: 1,
    };

    /// A checkpoint of a run whose other files are gone would be lost.
    #[test]
    fn a_checkpoint_alone_is_a_run() -> Result<()> {
        let place = tempfile::tempdir()?;
        let older = place.path().join("checkpoint-500.safetensors");
        fs::write(&older, "")?;
        let error = Record::check(place.path(), false).unwrap_err().to_string();
        let words =
            "already holds a run (checkpoint-500.safetensors): name another folder, resume it";
        assert!(error.contains(words), "{error}");
        let error = Record::new(SIZES).take(place.path(), true).unwrap_err();
        assert!(error.to_string().contains("holds checkpoints"), "{error}");
        // of a run that was killed before its first checkpoint was whole, nothing can be taken up
        fs::rename(older, place.path().join(".checkpoint.next.safetensors"))?;
        Record::new(SIZES).take(place.path(), false)
    }

    /// Drawing may have taken long the last time, as on a network disk that stood still.
    #[test]
    fn an_epoch_is_in_its_table_at_once() -> Result<()> {
        let place = tempfile::tempdir()?;
        let mut record = Record::new(Sizes { epochs: 9, ..SIZES });
        record.take(place.path(), false)?;
        record.next_drawing = Instant::now() + Duration::from_secs(3600);
        for epoch in 1..=3 {
            record.epoch(Epoch {
                epoch,
                loss: 0.5,
                test_acc: 0.25,
                seconds: 1.0,
            })?;
            let table = fs::read_to_string(place.path().join(EPOCHS))?;
            assert_eq!(table.lines().count(), 1 + epoch, "{table}");
        }
        Ok(())
    }

    /// It ends in whatever way, without a word from the run.
    #[test]
    fn a_run_that_ends_early_leaves_all_its_lines() -> Result<()> {
        let place = tempfile::tempdir()?;
        let mut record = Record::new(SIZES);
        record.take(place.path(), false)?;
        for step in 1..=3 {
            record.step(1.0 / step as f32)?;
        }
        drop(record);
        let steps = fs::read_to_string(place.path().join(STEPS))?;
        assert_eq!(
            steps,
            "epoch,step,examples,loss\n1,1,1,1.0\n1,2,1,0.5\n1,3,1,0.33333334\n"
        );
        Ok(())
    }
}
