//! Where the bytes come from: the order of the sources, and one line that says which it was.

use std::path::PathBuf;
use std::{env, fmt};

use anyhow::{Context, Result};

use crate::options::{Data, Name, Options};
use crate::split::{COUNTS, Split};
use crate::{idx, synthetic};

/// Where a dataset's bytes came from; displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder with the four official IDX files.
    Dir {
        /// The dataset it was taken for.
        name: Name,
        /// The folder.
        dir: PathBuf,
        /// How many of the four files are the published ones, by their MD5 sums; raw files cannot be told.
        as_published: usize,
    },
    /// The Hugging Face Hub, now or at an earlier time.
    Hub {
        /// The dataset.
        name: Name,
        /// Whether nothing had to be downloaded.
        cached: bool,
    },
    /// The built-in synthetic set.
    Synthetic {
        /// The dataset it stands in for.
        name: Name,
        /// Why it was taken.
        why: String,
    },
}

impl Source {
    /// Whether the images are synthetic, so that accuracies say nothing about the real dataset.
    pub fn is_synthetic(&self) -> bool {
        matches!(self, Source::Synthetic { .. })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Dir {
                name,
                dir,
                as_published,
            } => {
                let md5 = match as_published {
                    0 => String::new(),
                    4 => ", MD5 as published".into(),
                    n => format!(", {n} with the MD5 as published"),
                };
                write!(f, "{name} from {} (4 IDX files{md5})", dir.display())
            }
            Source::Hub { name, cached } => {
                let when = if *cached {
                    "an earlier download from "
                } else {
                    ""
                };
                write!(f, "{name} from {when}the Hugging Face Hub")
            }
            Source::Synthetic { name, why } => {
                write!(f, "synthetic images in place of {name} ({why})")
            }
        }
    }
}

/// The two parts from the first source that applies.
pub(crate) fn open(options: &Options) -> Result<(Split, Split, Source)> {
    let packaged = || packaged(options.name).map(Data::Dir);
    match options.named().or_else(packaged) {
        Some(Data::Dir(dir)) => from_dir(options.name, dir),
        Some(Data::Synthetic) => Ok(synthesize(options, "asked for".into())),
        None => from_the_hub(options),
    }
}

fn from_dir(name: Name, dir: PathBuf) -> Result<(Split, Split, Source)> {
    let read = idx::read_dir(name, &dir);
    let read = read.with_context(|| format!("cannot load {name} from {}", dir.display()));
    let (train, test, as_published) = read?;
    let source = Source::Dir {
        name,
        dir,
        as_published,
    };
    Ok((train, test, source))
}

/// The folder that the system's package of the dataset installs; Debian and Ubuntu have `dataset-fashion-mnist`.
fn packaged(name: Name) -> Option<PathBuf> {
    let dirs = env::var_os("XDG_DATA_DIRS").filter(|dirs| !dirs.is_empty());
    let dirs = dirs.unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let mut folders = env::split_paths(&dirs).map(|dir| dir.join(format!("datasets/{name}")));
    folders.find(|folder| folder.is_dir())
}

#[cfg(feature = "hub")]
fn from_the_hub(options: &Options) -> Result<(Split, Split, Source)> {
    use crate::hub::{self, Answer};

    let name = options.name;
    let variable = name.env_var();
    let answer = hub::load(name, options.stop).with_context(|| {
        format!(
            "cannot load {name} from the Hugging Face Hub; name a folder with the four IDX files \
             ({variable}), or use the synthetic images"
        )
    });
    match answer? {
        Answer::Loaded(train, test, cached) => Ok((train, test, Source::Hub { name, cached })),
        Answer::Unreachable(why) => Ok(synthesize(options, why)),
    }
}

#[cfg(not(feature = "hub"))]
fn from_the_hub(options: &Options) -> Result<(Split, Split, Source)> {
    let variable = options.name.env_var();
    let why = format!("built without the feature `hub`, and {variable} is not set");
    Ok(synthesize(options, why))
}

fn synthesize(options: &Options, why: String) -> (Split, Split, Source) {
    let (name, seed, threads) = (options.name, options.seed, devices::cores());
    let make = |part, limit: Option<usize>, all| {
        synthetic::make(name, seed, part, limit.unwrap_or(all).min(all), threads)
    };
    let train = make(synthetic::TRAIN, options.limit_train, COUNTS[0]);
    let test = make(synthetic::TEST, options.limit_test, COUNTS[1]);
    (train, test, Source::Synthetic { name, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other sources: `tests/sources.rs`.
    #[test]
    fn a_folder_says_how_many_files_are_as_published() {
        for (as_published, says) in [(4, ""), (3, "3 with the ")] {
            let (name, dir) = (Name::FashionMnist, PathBuf::from("a/folder"));
            let source = Source::Dir {
                name,
                dir,
                as_published,
            };
            let files = format!("(4 IDX files, {says}MD5 as published)");
            assert_eq!(
                source.to_string(),
                format!("fashion-mnist from a/folder {files}")
            );
        }
    }
}
