//! Checkpoints: tensors and texts that a program goes on from, each in a safetensors file, in the folder of a run.
//!
//! The last ones are kept. A new one is written beside them under another name and flushed to the disk. Then the last
//! one gets the number of its step as its name, and the new one its own: whatever interrupts that, at least one of
//! them is whole, or the new one. A checksum tells a damaged one, which gives way to the one before it; one that is
//! whole and of another format is refused. No network is known here, and no trainer.
//!
//! When a run replaces another, one rename puts its first checkpoint in the place of the other's newest. Before it the
//! old run can be resumed; after it the new one can be resumed. No exchange of folders is needed, and files of other
//! programs stay.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{Device, Result, Tensor};
use devices::{Context, bail, ensure, find, io_kind, wrap};
use safetensors::SafeTensors;

use crate::checkpoint_error::CheckpointError;
use crate::files::{self, quote};
use crate::folder::{Folder, with_way_out};
use crate::weights;

/// The file of the newest checkpoint of a run.
pub const NEWEST: &str = "checkpoint.safetensors";
/// A new one, until it gets its name. Scripts look for `checkpoint*`, which it is not yet.
const NEXT: &str = ".checkpoint.next.safetensors";

const FORMAT: &str = "multiple-gpus checkpoint 3";
/// Text before the checksum, and the digits in its place while it is computed.
const SUM: &str = "\"crc32\":\"";
const NO_SUM: &str = "00000000";
/// The texts that each file has beside those of the program.
const OWN_TEXTS: [&str; 3] = ["format", "crc32", "step"];

/// The file of an older checkpoint.
fn of_step(step: usize) -> String {
    format!("checkpoint-{step}.safetensors")
}

/// The step of the file of an older checkpoint; none if it is another file.
fn step_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix("checkpoint-")?;
    number.strip_suffix(".safetensors")?.parse().ok()
}

/// State from which a program goes on.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// By their names.
    pub texts: BTreeMap<String, String>,
    /// By their names.
    pub tensors: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    /// The content of a checkpoint's file, after `step` steps.
    ///
    /// # Errors
    /// If a device fails.
    pub fn to_bytes(&self, step: usize) -> Result<Vec<u8>> {
        let Self { texts, tensors } = self;
        if let Some(taken) = OWN_TEXTS.iter().find(|own| texts.contains_key(**own)) {
            bail!("a checkpoint has a text {taken:?} of its own; give yours another name")
        }
        let own = [
            ("format".to_owned(), FORMAT.to_owned()),
            ("crc32".to_owned(), NO_SUM.to_owned()),
            ("step".to_owned(), step.to_string()),
        ];
        let texts: HashMap<String, String> = texts.clone().into_iter().chain(own).collect();
        let tensors: Vec<(String, Tensor)> = tensors.clone().into_iter().collect();
        let mut bytes =
            weights::to_bytes(&tensors, Some(texts)).context("cannot make a checkpoint")?;
        weights::check_header(&bytes)?; // or it could not be read
        let (sum, place) = checksum(&mut bytes)?;
        bytes[place].copy_from_slice(sum.as_bytes());
        Ok(bytes)
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes); returns also the number of steps.
    ///
    /// # Errors
    /// If it is damaged, or of another format.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<(usize, Self)> {
        let (_, metadata) = SafeTensors::read_metadata(&bytes).context("the file is damaged")?;
        let mut texts = metadata.metadata().clone().unwrap_or_default();
        let mut text = |key: &str| {
            let text = texts.remove(key);
            text.with_context(|| format!("not a checkpoint: its metadata has no {key:?}"))
        };
        let format = text("format")?;
        let expected = text("crc32")?;
        let (found, _) = checksum(&mut bytes)?;
        ensure!(
            found == expected,
            "the file is damaged: its CRC-32 is {found}, expected {}",
            quote(&expected)
        );
        if format != FORMAT {
            return Err(wrap(CheckpointError::OtherFormat(format!(
                "its format is {}, this program reads {FORMAT:?}: go on with the version that wrote it",
                quote(&format)
            ))));
        }
        let step = text("step")?;
        let Ok(step) = step.parse() else {
            bail!("its step is {}", quote(&step))
        };
        let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?;
        let checkpoint = Self {
            texts: texts.into_iter().collect(),
            tensors: tensors.into_iter().collect(),
        };
        Ok((step, checkpoint))
    }
}

/// A checkpoint that was found.
#[derive(Debug)]
pub struct Found {
    /// Its file.
    pub path: PathBuf,
    /// The steps that were taken before it.
    pub step: usize,
    /// Its content.
    pub checkpoint: Checkpoint,
    /// Why it is none of the newer files, where there are some.
    pub damaged: Option<String>,
}

/// The checkpoints in the folder of a run: `checkpoint.safetensors` is the newest, `checkpoint-STEP.safetensors` are
/// older ones.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use data_parallel_training::{Checkpoint, CheckpointFolder};
///
/// let place = tempfile::tempdir()?;
/// let mut folder = CheckpointFolder::open(place.path())?;
/// assert!(folder.newest()?.is_none());
/// let mut checkpoint = Checkpoint::default();
/// for step in [10, 20, 30] {
///     checkpoint.tensors.insert("w".into(), Tensor::new(&[step as f32], &Device::Cpu)?);
///     folder.save(step, &checkpoint, 2)?; // keeps two
/// }
/// assert_eq!(folder.newest()?.unwrap().step, 30);
/// std::fs::write(place.path().join("checkpoint.safetensors"), "damaged")?;
/// assert_eq!(folder.newest()?.unwrap().step, 20);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct CheckpointFolder {
    folder: Folder,
    /// The step of the newest checkpoint, if it is there and whole.
    newest: Option<usize>,
    /// Files that are damaged, or newer than the checkpoint that the run goes on from: they go before the next save.
    to_remove: Vec<String>,
}

impl CheckpointFolder {
    /// Opens a folder that is there.
    ///
    /// # Errors
    /// If it is none.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Self {
            folder: Folder::open(path)?,
            newest: None,
            to_remove: Vec::new(),
        })
    }

    /// The folder itself.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The newest checkpoint that is whole; none where there is no checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::NoneIsWhole`]; and [`CheckpointError::OtherFormat`] for one that is whole, because an older
    /// one would lose the progress since. If one cannot be read, as without permission.
    pub fn newest(&mut self) -> Result<Option<Found>> {
        (self.newest, self.to_remove) = (None, Vec::new());
        let mut errors = Vec::new();
        for name in self.all()? {
            match self.read(&name) {
                Ok((step, checkpoint)) => {
                    self.newest = (name == NEWEST).then_some(step);
                    let damaged = (!errors.is_empty()).then(|| errors.join("; "));
                    return Ok(Some(Found {
                        path: self.folder.path().join(name),
                        step,
                        checkpoint,
                        damaged,
                    }));
                }
                // the run was ended between two renames
                Err(error) if io_kind(&error) == Some(ErrorKind::NotFound) => (),
                Err(error) if find::<CheckpointError>(&error).is_some() => return Err(error),
                // it could not be read, and may be whole: an older one would lose the progress since
                Err(error) if io_kind(&error).is_some_and(|kind| kind != ErrorKind::Other) => {
                    let way_out = "a checkpoint cannot be read and may be whole; move it away to go on from the one before";
                    return Err(error.context(way_out));
                }
                Err(error) => {
                    errors.push(error.to_string());
                    self.to_remove.push(name);
                }
            }
        }
        if errors.is_empty() {
            return Ok(None);
        }
        Err(CheckpointError::NoneIsWhole(errors.join("; ")).into())
    }

    /// Writes a checkpoint, and keeps the last `keep`. If that fails, those before it stay.
    ///
    /// # Errors
    /// If it cannot be written; [`CheckpointError::Moved`], if the folder was moved before or meanwhile.
    pub fn save(&mut self, step: usize, checkpoint: &Checkpoint, keep: usize) -> Result<()> {
        self.folder.check()?;
        self.write_and_rename(step, checkpoint, keep)
            .map_err(|error| self.folder.check().err().unwrap_or(error))
    }

    fn write_and_rename(
        &mut self,
        step: usize,
        checkpoint: &Checkpoint,
        keep: usize,
    ) -> Result<()> {
        let bytes = checkpoint.to_bytes(step)?;
        self.write_next(&bytes)?;
        for name in std::mem::take(&mut self.to_remove) {
            self.folder.remove(&name)?;
        }
        match self.newest {
            Some(newest) if newest != step => self.folder.rename(NEWEST, &of_step(newest))?,
            _ => (),
        }
        self.folder.rename(NEXT, NEWEST)?;
        self.newest = Some(step);
        self.flush()?;
        self.remove_old(step, keep);
        Ok(())
    }

    /// Removes the checkpoints that are too many, and those of later steps, which are of a part of the run that comes
    /// again. What cannot be removed, because another program reads it, goes after the next checkpoint.
    fn remove_old(&self, step: usize, keep: usize) {
        let all = self.older().unwrap_or_default();
        let (later, older): (Vec<usize>, Vec<usize>) =
            all.into_iter().partition(|old| *old >= step);
        let too_many = older.into_iter().skip(keep.max(1) - 1);
        for old in later.into_iter().chain(too_many) {
            let _ = self.folder.remove(&of_step(old));
        }
    }

    /// True if there is a checkpoint, whole or damaged.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn is_begun(&self) -> Result<bool> {
        let names = self.folder.names()?;
        Ok(names.iter().any(|name| Self::is_checkpoint(name)))
    }

    /// Writes the first checkpoint of a run in the place of an earlier run's. The newest of that run stays until this one
    /// is whole.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(&mut self, step: usize, checkpoint: &Checkpoint) -> Result<()> {
        self.write_next(&checkpoint.to_bytes(step)?)?;
        for old in self.older()? {
            self.folder.remove(&of_step(old))?;
        }
        self.folder.rename(NEXT, NEWEST)?;
        self.newest = Some(step);
        self.to_remove.clear();
        self.flush()
    }

    /// True if a file of this name is a checkpoint.
    pub fn is_checkpoint(name: &str) -> bool {
        name == NEWEST || step_of(name).is_some()
    }

    /// True if a file of this name is a checkpoint, or one that is not whole yet.
    pub fn is_own(name: &str) -> bool {
        let is_partial = || files::is_partial(name, NEWEST) || files::is_partial(name, NEXT);
        Self::is_checkpoint(name) || name == NEXT || is_partial()
    }

    /// The files of the checkpoints, from the newest on.
    fn all(&self) -> Result<Vec<String>> {
        let older = self.older()?.into_iter().map(of_step);
        Ok([NEWEST.to_owned()].into_iter().chain(older).collect())
    }

    /// The steps of those that are not the newest, the last ones first.
    fn older(&self) -> Result<Vec<usize>> {
        let names = self.folder.names()?;
        let mut steps: Vec<usize> = names.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// Writes the file that becomes the newest checkpoint, and waits until the disk has its content.
    fn write_next(&self, bytes: &[u8]) -> Result<()> {
        let path = self.folder.path().join(NEXT);
        self.folder.remove(NEXT)?;
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(bytes)?;
            files::flush(&file)
        };
        let written = write().inspect_err(|_| drop(fs::remove_file(&path)));
        with_way_out(written).with_context(|| format!("cannot write {}", path.display()))
    }

    fn flush(&self) -> Result<()> {
        let path = self.folder.path();
        files::flush_folder(path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn read(&self, name: &str) -> Result<(usize, Checkpoint)> {
        let cannot = || {
            format!(
                "cannot go on from {}",
                self.folder.path().join(name).display()
            )
        };
        let bytes = self.folder.read(name).with_context(cannot)?;
        Checkpoint::from_bytes(weights::read(bytes).with_context(cannot)?).with_context(cannot)
    }
}

/// The checksum of a file, and where it stands; zeros stand there afterwards.
fn checksum(bytes: &mut [u8]) -> Result<(String, Range<usize>)> {
    // no text inside of the header has quotation marks without a backslash
    let mut windows = bytes.windows(SUM.len());
    let found = windows.position(|window| window == SUM.as_bytes());
    let begin = found.context("the file is damaged: it has no checksum")? + SUM.len();
    let place = begin..begin + NO_SUM.len();
    let digits = bytes
        .get_mut(place.clone())
        .context("the file is damaged: it ends inside its checksum")?;
    digits.copy_from_slice(NO_SUM.as_bytes());
    Ok((format!("{:08x}", crc32fast::hash(bytes)), place))
}

/// The first line of `other` that `own` has not, and the line of `own` that begins with the same word.
///
/// ```
/// let differs = data_parallel_training::difference("seed 1\nreplicas 2", "replicas 4\nseed 1");
/// assert_eq!(differs, Some(("replicas 2".into(), "replicas 4".into())));
/// ```
pub fn difference(own: &str, other: &str) -> Option<(String, String)> {
    let missing = |line: &&str| !own.lines().any(|own| own == *line);
    let line = other.lines().find(missing)?;
    let key = |line: &str| line.split(' ').next().unwrap_or(line).to_owned();
    let same_key = |own: &&str| key(own) == key(line);
    let mut instead: Vec<&str> = own.lines().filter(same_key).collect();
    instead.sort_unstable();
    instead.dedup(); // the library and the program may both have it
    Some((instead.join(", "), line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that could be taken for the checksum, and a tensor.
    fn checkpoint(value: f32) -> Checkpoint {
        let w = Tensor::new(&[value, 2.0], &Device::Cpu).unwrap();
        Checkpoint {
            texts: [(
                "settings".into(),
                "lr 0.1\nimages \"crc32\":\"12345678\"".into(),
            )]
            .into(),
            tensors: [("W".into(), w)].into(),
        }
    }

    /// Checkpoints of the steps 5 and 10.
    fn two() -> Result<(tempfile::TempDir, CheckpointFolder)> {
        let place = tempfile::tempdir()?;
        let mut folder = CheckpointFolder::open(place.path())?;
        folder.save(5, &checkpoint(5.0), 2)?;
        folder.save(10, &checkpoint(10.0), 2)?;
        Ok((place, folder))
    }

    fn damage(path: &Path, i: usize) -> Result<()> {
        let mut bytes = fs::read(path)?;
        bytes[i] ^= 1;
        Ok(fs::write(path, bytes)?)
    }

    fn names(place: &tempfile::TempDir) -> Result<Vec<String>> {
        let mut names = Folder::open(place.path())?.names()?;
        names.sort_unstable();
        Ok(names)
    }

    #[test]
    fn the_newest_is_found_and_what_it_has() -> Result<()> {
        let (place, mut folder) = two()?;
        let found = folder.newest()?.context("there is none")?;
        assert_eq!((found.step, found.damaged), (10, None));
        assert_eq!(found.checkpoint.texts, checkpoint(10.0).texts);
        assert_eq!(found.checkpoint.tensors["W"].to_vec1::<f32>()?, [10.0, 2.0]);
        fs::remove_file(place.path().join(NEWEST))?; // as between two renames
        let found = folder.newest()?.context("there is none")?;
        assert_eq!((found.step, found.damaged), (5, None));
        folder.save(12, &checkpoint(12.0), 2)?;
        assert_eq!(names(&place)?, ["checkpoint-5.safetensors", NEWEST]);
        folder.save(12, &checkpoint(12.0), 2)?; // again at the same step
        assert_eq!(names(&place)?, ["checkpoint-5.safetensors", NEWEST]);
        folder.save(14, &checkpoint(14.0), 1)?;
        assert_eq!(names(&place)?, [NEWEST]);
        // a user goes back to an older one
        folder.save(20, &checkpoint(20.0), 2)?;
        fs::rename(
            place.path().join("checkpoint-14.safetensors"),
            place.path().join("14"),
        )?;
        fs::rename(
            place.path().join(NEWEST),
            place.path().join("checkpoint-20.safetensors"),
        )?;
        fs::rename(place.path().join("14"), place.path().join(NEWEST))?;
        assert_eq!(folder.newest()?.map(|found| found.step), Some(14));
        folder.save(16, &checkpoint(16.0), 2)?;
        assert_eq!(names(&place)?, ["checkpoint-14.safetensors", NEWEST]);
        Ok(())
    }

    /// A bit anywhere, also in what is metadata.
    #[test]
    fn a_damaged_one_is_known_and_the_one_before_it_taken() -> Result<()> {
        let (place, mut folder) = two()?;
        let newest = place.path().join(NEWEST);
        let whole = fs::read(&newest)?;
        for i in 0..whole.len() {
            damage(&newest, i)?;
            let found = folder.newest().with_context(|| format!("byte {i}"))?;
            let found = found.context("there is none")?;
            assert_eq!(found.step, 5, "byte {i}");
            assert!(
                found.damaged.is_some_and(|why| why.contains(NEWEST)),
                "byte {i}"
            );
            fs::write(&newest, &whole)?;
        }
        for len in 0..whole.len() {
            fs::write(&newest, &whole[..len])?;
            assert_eq!(folder.newest()?.map(|found| found.step), Some(5), "{len}");
        }
        // it does not become the one before the next
        folder.save(7, &checkpoint(7.0), 3)?;
        assert_eq!(names(&place)?, ["checkpoint-5.safetensors", NEWEST]);
        Ok(())
    }

    /// Another program has it open, or it may not be removed; here it is a folder that is not empty.
    #[test]
    fn an_old_one_that_cannot_be_removed_costs_nothing() -> Result<()> {
        let (place, mut folder) = two()?;
        fs::create_dir_all(place.path().join("checkpoint-3.safetensors/x"))?;
        folder.save(12, &checkpoint(12.0), 2)?;
        assert_eq!(folder.newest()?.map(|found| found.step), Some(12));
        fs::remove_dir(place.path().join("checkpoint-3.safetensors/x"))?;
        folder.save(13, &checkpoint(13.0), 2)?;
        assert_eq!(names(&place)?, ["checkpoint-12.safetensors", NEWEST]);
        Ok(())
    }

    #[test]
    fn where_none_is_whole_the_error_says_so() -> Result<()> {
        let (place, mut folder) = two()?;
        for name in [NEWEST, "checkpoint-5.safetensors"] {
            let path = place.path().join(name);
            damage(&path, fs::read(&path)?.len() - 1)?;
        }
        let error = folder.newest().unwrap_err();
        let both = error.to_string();
        assert!(
            both.contains(NEWEST) && both.contains("checkpoint-5"),
            "{both}"
        );
        assert!(matches!(
            find(&error),
            Some(CheckpointError::NoneIsWhole(_))
        ));
        for name in [NEWEST, "checkpoint-5.safetensors"] {
            fs::remove_file(place.path().join(name))?;
        }
        assert!(folder.newest()?.is_none());
        Ok(())
    }

    /// The one before it could be read, and then the later progress would be lost.
    #[test]
    fn another_format_is_refused_and_named() -> Result<()> {
        let (place, mut folder) = two()?;
        let newest = place.path().join(NEWEST);
        let mut bytes = fs::read(&newest)?;
        let mut windows = bytes.windows(FORMAT.len());
        let at = windows.position(|window| window == FORMAT.as_bytes());
        bytes[at.context("no format")? + FORMAT.len() - 1] = b'2';
        let (sum, place) = checksum(&mut bytes)?;
        bytes[place].copy_from_slice(sum.as_bytes());
        fs::write(&newest, bytes)?;
        let error = folder.newest().unwrap_err().to_string();
        let words = "its format is \"multiple-gpus checkpoint 2\", this program reads \"multiple-gpus checkpoint 3\"";
        assert!(error.contains(words), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_checkpoint_is_not_read() -> Result<()> {
        let (place, mut folder) = two()?;
        let newest = place.path().join(NEWEST);
        let mut error = || {
            let found = folder.newest()?.context("there is none")?;
            assert_eq!(found.step, 5);
            found.damaged.context("nothing is said")
        };
        let w = [("W".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu)?)];
        weights::save(&newest, &w)?; // the parameters of a model
        assert!(error()?.contains("not a checkpoint"), "{}", error()?);
        #[cfg(unix)]
        {
            fs::remove_file(&newest)?;
            std::os::unix::fs::symlink(place.path().join("checkpoint-5.safetensors"), &newest)?;
            assert!(error()?.contains("it is a symbolic link"), "{}", error()?);
        }
        fs::remove_file(&newest)?;
        fs::create_dir(&newest)?;
        assert!(error()?.contains("it is a folder"), "{}", error()?);
        folder.save(6, &checkpoint(6.0), 2)?;
        assert_eq!(names(&place)?, ["checkpoint-5.safetensors", NEWEST]);
        Ok(())
    }

    #[test]
    fn two_runs_cannot_write_to_one_folder() -> Result<()> {
        let place = tempfile::tempdir()?;
        let open = || Folder::open(place.path()).context("cannot open it");
        let first = open()?;
        first.lock()?;
        let error = open()?.lock().unwrap_err();
        assert!(matches!(find(&error), Some(CheckpointError::InUse(_))));
        assert!(
            error.to_string().starts_with("another run is writing to "),
            "{error}"
        );
        drop(first);
        open()?.lock()
    }
}
