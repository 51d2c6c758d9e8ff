//! Checkpoints: all that the rest of a run depends on, in a safetensors file.
//!
//! The last two are kept. A new one is written beside them under another name, flushed to the disk, and renamed:
//! whatever interrupts that, the last two are whole, or one of them and the new one. A checksum tells a damaged one, which gives way to the one
//! before it; one that is whole and of another format is refused.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::folder::Folder;
use crate::lines::Lines;
use training::files::quote;
use training::weights;

pub(crate) const NEWEST: &str = "checkpoint.safetensors";
pub(crate) const PREVIOUS: &str = "checkpoint.previous.safetensors";
/// A new one, until it gets its name.
pub(crate) const NEXT: &str = "checkpoint.next.safetensors";

const FORMAT: &str = "multiple-gpus checkpoint 2";
/// The tensor that has the loss of each step. No network has such a name: its names have dots.
const LOSSES: &str = "run/losses";
/// Where the checksum stands, and what stands there while it is computed.
const SUM: &str = "\"crc32\":\"";
const NO_SUM: &str = "00000000";

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
    /// The algorithms that were chosen for a GPU, so that a resumed run has the same bits.
    #[serde(default)]
    pub algorithms: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub header: Header,
    /// What the tables had.
    pub lines: Lines,
    pub tensors: HashMap<String, Tensor>,
    /// It is the one before the newest, which is damaged, or not there.
    pub is_previous: bool,
}

impl Checkpoint {
    /// The newest one of a folder that is whole; and if that is not the newest one, why.
    pub fn load(folder: &Folder) -> Result<(Self, Option<String>)> {
        let newest = match Self::read(folder, NEWEST) {
            Ok(checkpoint) => return Ok((checkpoint, None)),
            Err(error) if is(&error, ErrorKind::Unsupported) => return Err(error),
            Err(error) => error,
        };
        match Self::read(folder, PREVIOUS) {
            // the run was ended between two renames
            Ok(checkpoint) if is_absent(&newest) => Ok((checkpoint, None)),
            Ok(checkpoint) => Ok((checkpoint, Some(format!("{newest:#}")))),
            Err(previous) if is_absent(&newest) && is_absent(&previous) => {
                bail!(holds_none(&folder.path))
            }
            Err(previous) if is_absent(&previous) => Err(newest),
            Err(previous) => bail!("{newest:#}; {previous:#}"),
        }
    }

    fn read(folder: &Folder, name: &str) -> Result<Self> {
        let read = || Self::decode(weights::read(folder.read(name)?)?, name == PREVIOUS);
        read().with_context(|| format!("cannot resume from {}", folder.path.join(name).display()))
    }

    fn decode(mut bytes: Vec<u8>, is_previous: bool) -> Result<Self> {
        let (_, metadata) = SafeTensors::read_metadata(&bytes).context("the file is damaged")?;
        let metadata = metadata.metadata().clone().unwrap_or_default();
        let text = |key: &str| {
            let text = metadata.get(key).map(String::as_str);
            text.with_context(|| format!("not a checkpoint: its metadata has no {key:?}"))
        };
        let (format, expected) = (text("format")?, text("crc32")?);
        let (found, _) = checksum(&mut bytes)?;
        ensure!(
            found == expected,
            "the file is damaged: its CRC-32 is {found}, expected {}",
            quote(expected)
        );
        if format != FORMAT {
            let format = quote(format);
            let why = format!(
                "its format is {format}, this program reads {FORMAT:?}: resume the run with the \
                 version that wrote it"
            );
            bail!(io::Error::new(ErrorKind::Unsupported, why));
        }
        let mut tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)?;
        let losses = tensors.remove(LOSSES).context("it has no losses")?;
        Ok(Self {
            header: serde_json::from_str(text("run")?)?,
            lines: Lines {
                losses: losses.to_vec1()?,
                epochs: serde_json::from_str(text("epochs")?)?,
            },
            tensors,
            is_previous,
        })
    }
}

/// Opens the folder that `--resume` names.
pub(crate) fn folder_of_a_run(path: &Path) -> Result<Folder> {
    Folder::open(path).with_context(|| holds_none(path))
}

fn holds_none(path: &Path) -> String {
    let path = path.display();
    format!("{path} holds no checkpoint; name a folder that a run with --out wrote")
}

/// Writes a checkpoint; the one that was the newest becomes the one before it. If that fails, they stay.
pub(crate) fn save(
    folder: &Folder,
    header: &Header,
    lines: &Lines,
    tensors: &[(String, Tensor)],
) -> Result<()> {
    folder.write(NEXT, &encode(header, lines, tensors)?)?;
    folder.rename(NEWEST, PREVIOUS)?;
    folder.rename(NEXT, NEWEST)
}

/// Writes the first checkpoint of a run. That of an earlier run in the folder stays until this one is whole.
pub(crate) fn begin(folder: &Folder, header: &Header, tensors: &[(String, Tensor)]) -> Result<()> {
    folder.write(NEWEST, &encode(header, &Lines::default(), tensors)?)
}

fn encode(header: &Header, lines: &Lines, tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let metadata = [
        ("format", FORMAT.to_owned()),
        ("run", serde_json::to_string(header)?),
        ("epochs", serde_json::to_string(&lines.epochs)?),
        ("crc32", NO_SUM.to_owned()),
    ];
    let metadata = metadata.map(|(key, text)| (key.to_owned(), text));
    let losses = Tensor::from_slice(&lines.losses, lines.losses.len(), &Device::Cpu)?;
    let tensors = [tensors, &[(LOSSES.to_owned(), losses)]].concat();
    let bytes = weights::to_bytes(&tensors, Some(HashMap::from(metadata)));
    let mut bytes = bytes.context("cannot make a checkpoint")?;
    let (sum, place) = checksum(&mut bytes)?;
    bytes[place].copy_from_slice(sum.as_bytes());
    Ok(bytes)
}

/// The checksum of a file, and where it stands; zeros stand there afterwards.
fn checksum(bytes: &mut [u8]) -> Result<(String, Range<usize>)> {
    // no text inside of the header has quotation marks without a backslash
    let mut windows = bytes.windows(SUM.len());
    let found = windows.position(|window| window == SUM.as_bytes());
    let begin = found.context("the file is damaged: it has no checksum")? + SUM.len();
    let place = begin..begin + NO_SUM.len();
    let digits = bytes.get_mut(place.clone());
    let digits = digits.context("the file is damaged: it ends inside its checksum")?;
    digits.copy_from_slice(NO_SUM.as_bytes());
    Ok((format!("{:08x}", crc32fast::hash(bytes)), place))
}

fn is_absent(error: &anyhow::Error) -> bool {
    is(error, ErrorKind::NotFound)
}

fn is(error: &anyhow::Error, kind: ErrorKind) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::Epoch;
    use std::fs;

    fn header() -> Header {
        Header {
            settings: "lr 0.1\nimages \"crc32\":\"12345678\"".into(),
            arguments: vec!["--gpus=2".into()],
            ..Header::default()
        }
    }

    fn folder() -> Result<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        let w = [("W".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu)?)];
        let opened = Folder::open(folder.path())?;
        save(&opened, &header(), &lines(5), &w)?;
        save(&opened, &header(), &lines(10), &w)?;
        Ok(folder)
    }

    /// An epoch of four steps, and the next one.
    fn lines(steps: usize) -> Lines {
        let epoch = Epoch {
            epoch: 1,
            loss: 0.1,
            test_acc: 0.7,
            seconds: 0.3,
        };
        Lines {
            losses: vec![0.1; steps],
            epochs: vec![epoch],
        }
    }

    fn load(folder: &tempfile::TempDir) -> Result<(Checkpoint, Option<String>)> {
        Checkpoint::load(&Folder::open(folder.path())?)
    }

    fn damage(path: &Path, i: usize) -> Result<()> {
        let mut bytes = fs::read(path)?;
        bytes[i] ^= 1;
        Ok(fs::write(path, bytes)?)
    }

    #[test]
    fn the_newest_of_two_is_loaded() -> Result<()> {
        let folder = folder()?;
        let (found, note) = load(&folder)?;
        assert_eq!((found.header, note), (header(), None));
        assert_eq!(found.lines, lines(10));
        assert_eq!(found.tensors["W"].to_vec1::<f32>()?, [1.0, 2.0]);
        fs::remove_file(folder.path().join(NEWEST))?; // as between two renames
        let (found, note) = load(&folder)?;
        assert_eq!((found.lines, note), (lines(5), None));
        assert!(!folder.path().join(NEXT).exists());
        Ok(())
    }

    /// A bit anywhere, also in what is metadata.
    #[test]
    fn a_damaged_one_is_known_and_the_one_before_it_taken() -> Result<()> {
        let folder = folder()?;
        let newest = folder.path().join(NEWEST);
        let whole = fs::read(&newest)?;
        for i in 0..whole.len() {
            damage(&newest, i)?;
            let (found, note) = load(&folder).with_context(|| format!("byte {i}"))?;
            assert_eq!(found.lines, lines(5), "byte {i}");
            assert!(note.is_some_and(|note| note.contains(NEWEST)), "byte {i}");
            fs::write(&newest, &whole)?;
        }
        for len in 0..whole.len() {
            fs::write(&newest, &whole[..len])?;
            assert_eq!(load(&folder)?.0.lines, lines(5), "{len}");
        }
        Ok(())
    }

    #[test]
    fn where_none_is_whole_the_error_says_so() -> Result<()> {
        let folder = folder()?;
        let error = || format!("{:#}", load(&folder).unwrap_err());
        for name in [NEWEST, PREVIOUS] {
            let path = folder.path().join(name);
            damage(&path, fs::read(&path)?.len() - 1)?;
        }
        let both = error();
        assert!(both.contains(NEWEST) && both.contains(PREVIOUS), "{both}");
        for name in [NEWEST, PREVIOUS] {
            fs::remove_file(folder.path().join(name))?;
        }
        assert!(error().contains("holds no checkpoint"), "{}", error());
        Ok(())
    }

    /// The one before it could be read, and then the later progress would be lost.
    #[test]
    fn another_format_is_refused_and_named() -> Result<()> {
        let folder = folder()?;
        let newest = folder.path().join(NEWEST);
        let mut bytes = fs::read(&newest)?;
        let mut windows = bytes.windows(FORMAT.len());
        let at = windows.position(|window| window == FORMAT.as_bytes());
        bytes[at.context("no format")? + FORMAT.len() - 1] = b'3';
        let (sum, place) = checksum(&mut bytes)?;
        bytes[place].copy_from_slice(sum.as_bytes());
        fs::write(&newest, bytes)?;
        let error = format!("{:#}", load(&folder).unwrap_err());
        let words = "its format is \"multiple-gpus checkpoint 3\", this program reads \
                     \"multiple-gpus checkpoint 2\"";
        assert!(error.contains(words), "{error}");
        Ok(())
    }

    #[test]
    fn what_is_no_checkpoint_is_not_read() -> Result<()> {
        let folder = folder()?;
        let newest = folder.path().join(NEWEST);
        let error = || {
            let (found, why) = load(&folder)?;
            assert_eq!(found.lines, lines(5));
            why.context("nothing is said")
        };
        let w = [("W".to_owned(), Tensor::new(&[1f32, 2.0], &Device::Cpu)?)];
        weights::save(&newest, &w)?; // the parameters of a model
        assert!(error()?.contains("not a checkpoint"), "{}", error()?);
        #[cfg(unix)]
        {
            fs::remove_file(&newest)?;
            std::os::unix::fs::symlink(folder.path().join(PREVIOUS), &newest)?;
            assert!(error()?.contains("it is a symbolic link"), "{}", error()?);
        }
        Ok(())
    }
}
