//! The folder that `--out` names: what a run leaves there.
//!
//! `steps.csv` has a line a step, `epochs.csv` a line an epoch; `loss.svg` is the training loss by step and
//! `accuracy.svg` the test accuracy by epoch, which grow while the run goes on; `checkpoint.safetensors` is what
//! `--resume` goes on from; `model.safetensors` has the parameters at the end. A folder that holds a run already
//! is refused. While the run goes on, a full disk costs what cannot be written, and not the run.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use d2l::Animator;
use training::weights;

use crate::checkpoint::{self, Checkpoint, Header};
use crate::folder::{Folder, partial};
use crate::lines::{Epoch, Lines, Sizes, Step};
use crate::loss_curve::LossCurve;
use crate::say::warn;
use crate::table::Table;

const STEPS: &str = "steps.csv";
const EPOCHS: &str = "epochs.csv";
const LOSS: &str = "loss.svg";
const ACCURACY: &str = "accuracy.svg";
const MODEL: &str = "model.safetensors";
const ALL: [&str; 7] = [
    checkpoint::NEWEST,
    checkpoint::PREVIOUS,
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
    pub folder: Folder,
    /// The step of the newest checkpoint.
    pub kept: usize,
    sizes: Sizes,
    lines: Lines,
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
        let folder = std::fs::create_dir_all(path).and_then(|()| Folder::open(path));
        let folder =
            folder.with_context(|| format!("cannot make the folder {}", path.display()))?;
        folder.lock()?;
        // another run may have been here since the options were checked
        Self::check(path, overwrite)?;
        Ok(folder)
    }

    /// Begins a run in a folder. The first checkpoint takes the place of an earlier run's, and only then its other
    /// files go: at any moment the folder holds one run or the other.
    pub fn begin(
        folder: Folder,
        sizes: Sizes,
        loss: LossCurve,
        header: &Header,
        tensors: &[(String, Tensor)],
    ) -> Result<Self> {
        checkpoint::begin(&folder, header, tensors)?;
        for name in &ALL[1..] {
            folder.remove(name)?;
        }
        Self::new(folder, sizes, Lines::default(), loss)
    }

    /// Goes on with a run from a checkpoint; what came later is removed.
    pub fn go_on(folder: Folder, sizes: Sizes, loss: LossCurve, from: &Checkpoint) -> Result<Self> {
        // of an earlier step, or half of one
        folder.remove(MODEL)?;
        folder.remove(&partial(checkpoint::NEWEST))?;
        if from.is_previous {
            // or the next checkpoint would put a damaged one in the place of the only good one
            folder.rename(checkpoint::PREVIOUS, checkpoint::NEWEST)?;
        }
        Self::new(folder, sizes, from.lines.clone(), loss)
    }

    /// Whether the run that a folder holds went to its end.
    pub fn is_finished(folder: &Folder) -> bool {
        folder.dir.exists(MODEL)
    }

    /// A record that goes on after these lines.
    fn new(folder: Folder, sizes: Sizes, lines: Lines, loss: LossCurve) -> Result<Self> {
        let [steps, epochs] = open_tables(&folder, &lines, sizes, !lines.losses.is_empty())?;
        Ok(Self {
            folder,
            kept: lines.losses.len(),
            sizes,
            lines,
            steps,
            epochs,
            loss,
            next_drawing: Instant::now(),
            checkpoints: Trouble::default(),
            pictures: Trouble::default(),
        })
    }

    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.lines.losses.push(step.loss);
        self.steps.add(step)?;
        self.loss.add(step.loss)?;
        if Instant::now() >= self.next_drawing + DRAW_EVERY {
            self.draw(None);
        }
        Ok(())
    }

    pub fn epoch(&mut self, epoch: Epoch, accuracy: &Animator) -> Result<()> {
        self.epochs.add(&epoch)?;
        self.lines.epochs.push(epoch);
        if Instant::now() >= self.next_drawing {
            self.draw(Some(accuracy));
        }
        Ok(())
    }

    /// Keeps what [`go_on`](Self::go_on) needs, if it can.
    pub fn checkpoint(&mut self, header: &Header, tensors: &[(String, Tensor)]) {
        let tables = self.flush();
        let save = || checkpoint::save(&self.folder, header, &self.lines, tensors);
        let saved = tables.and_then(|()| save());
        if self.checkpoints.tolerate(saved) {
            self.kept = self.lines.losses.len();
        }
    }

    /// What cannot be written costs nothing else.
    pub fn finish(&mut self, model: &[(String, Tensor)], accuracy: &Animator) -> Result<()> {
        let flushed = self.flush();
        self.draw(Some(accuracy));
        let written = weights::to_bytes(model, None);
        let written = written.and_then(|bytes| Ok(self.folder.write(MODEL, &bytes)?));
        written
            .with_context(|| self.folder.cannot_write(MODEL))
            .and(flushed)
    }

    /// Writes the lines that wait; writes a table anew that was removed or changed while the run went on.
    pub fn flush(&mut self) -> Result<()> {
        let Self {
            folder,
            steps,
            epochs,
            ..
        } = self;
        steps.flush(folder)?;
        epochs.flush(folder)?;
        if !steps.is_intact(folder) || !epochs.is_intact(folder) {
            [self.steps, self.epochs] = open_tables(folder, &self.lines, self.sizes, true)?;
        }
        Ok(())
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
        let drawn = self.folder.draw(name, picture);
        drawn.with_context(|| self.folder.cannot_write(name))
    }
}

/// The tables of these lines. One that has others is written anew, which is `said`.
fn open_tables(folder: &Folder, lines: &Lines, sizes: Sizes, said: bool) -> Result<[Table; 2]> {
    let [steps, epochs] = lines.tables(sizes)?;
    let open = |name, text: &[u8]| {
        let (table, wrong) = Table::open(folder, name, text)?;
        if let Some(wrong) = wrong.filter(|_| said) {
            let folder = folder.path.display();
            warn(format_args!("{folder}: {wrong}; it was written anew"));
        }
        anyhow::Ok(table)
    };
    Ok([open(STEPS, &steps)?, open(EPOCHS, &epochs)?])
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
    let is = |name: &str| path.ends_with(name) || path.ends_with(partial(name));
    is_inside && ALL.into_iter().any(is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const SIZES: Sizes = Sizes {
        examples: 9,
        batch: 1,
    };

    fn header() -> Header {
        Header {
            version: String::new(),
            settings: String::new(),
            arguments: Vec::new(),
            seconds: 0.0,
            algorithms: Vec::new(),
        }
    }

    fn begin(path: &Path, overwrite: bool) -> Result<Record> {
        let folder = Record::take(path, overwrite)?;
        Record::begin(folder, SIZES, LossCurve::new(1, 9), &header(), &[])
    }

    /// A run of three steps, with checkpoints after the second and the third.
    fn three_steps(path: &Path) -> Result<()> {
        let mut record = begin(path, false)?;
        for step in 1..=3 {
            record.step(&Step {
                epoch: 1,
                step,
                examples: 1,
                loss: 1.0 / step as f32,
            })?;
            if step > 1 {
                record.checkpoint(&header(), &[]);
                assert_eq!(record.kept, step);
            }
        }
        Ok(())
    }

    fn go_on(path: &Path) -> Result<Record> {
        let folder = Folder::open(path)?;
        let (from, _) = Checkpoint::load(&folder)?;
        Record::go_on(folder, SIZES, LossCurve::new(1, 9), &from)
    }

    /// Otherwise the next checkpoint would replace it by the damaged one.
    #[test]
    fn the_checkpoint_that_a_run_goes_on_from_is_the_newest() -> Result<()> {
        let folder = tempfile::tempdir()?;
        three_steps(folder.path())?;
        fs::write(folder.path().join(checkpoint::NEWEST), "damaged")?;
        go_on(folder.path())?;
        let (again, damaged) = Checkpoint::load(&Folder::open(folder.path())?)?;
        assert_eq!((again.lines.losses, damaged), (vec![1.0, 0.5], None));
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
        let first = Record::take(folder.path(), false)?;
        let error = Record::take(folder.path(), true).unwrap_err().to_string();
        assert!(error.starts_with("another run is writing to "), "{error}");
        drop(first);
        Record::take(folder.path(), false)?;
        Ok(())
    }

    #[test]
    fn tables_are_those_of_the_checkpoint() -> Result<()> {
        const WHOLE: &str = "epoch,step,examples,loss\n1,1,1,1.0\n1,2,1,0.5\n1,3,1,0.33333334\n";
        let (shorter, longer) = (&WHOLE[..40], format!("{WHOLE}1,4,1,9.0\n1,"));
        let changed = WHOLE.replace("0.5", "0.6");
        for (text, wrong) in [
            (Some(WHOLE), None),
            (Some(&*longer), None),
            (None, Some("steps.csv was missing")),
            (Some(""), Some("steps.csv ended in line 1")),
            (Some(shorter), Some("steps.csv ended in line 3")),
            (Some(&*changed), Some("steps.csv was changed in line 3")),
        ] {
            let folder = tempfile::tempdir()?;
            three_steps(folder.path())?;
            let steps = folder.path().join(STEPS);
            fs::remove_file(&steps)?;
            text.map_or(Ok(()), |text| fs::write(&steps, text))?;
            let opened = Folder::open(folder.path())?;
            let (_, found) = Table::open(&opened, STEPS, WHOLE.as_bytes())?;
            assert_eq!(found.as_deref(), wrong);
            drop(go_on(folder.path())?);
            assert_eq!(fs::read_to_string(&steps)?, WHOLE);
        }
        Ok(())
    }

    #[test]
    fn a_table_that_is_lost_on_the_way_is_written_anew() -> Result<()> {
        for lose in [
            |steps: &Path| fs::remove_file(steps),
            |steps: &Path| fs::write(steps, "another table"),
            |steps: &Path| fs::rename(steps, steps.with_extension("old")),
        ] {
            let folder = tempfile::tempdir()?;
            three_steps(folder.path())?;
            let mut record = go_on(folder.path())?;
            let steps = folder.path().join(STEPS);
            let whole = fs::read_to_string(&steps)?;
            lose(&steps)?;
            record.flush()?;
            assert_eq!(fs::read_to_string(&steps)?, whole);
        }
        Ok(())
    }
}
