//! Sources of the bytes: their order, and one line that says which it was.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::options::{Data, Name, Options};
use crate::split::{COUNTS, Split};
use crate::{idx, synthetic};

/// Source of a dataset's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// In a line, for the user.
    pub line: String,
    /// True if the images are synthetic, so that accuracies say nothing about the real dataset.
    pub is_synthetic: bool,
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
    let read = idx::read_dir(name, &dir)
        .with_context(|| format!("cannot load {name} from {}", dir.display()));
    let (train, test, as_published) = read?;
    let dir = dir.display();
    // by the MD5 sums of what they hold
    let known = match as_published {
        0 => "none as published".to_owned(),
        4 => "MD5 as published".to_owned(),
        n => format!("{n} with the MD5 as published"),
    };
    let line = format!("{name} from {dir} (4 IDX files, {known})");
    let is_synthetic = false;
    Ok((train, test, Source { line, is_synthetic }))
}

/// The folder that the system's package of the dataset installs; Debian and Ubuntu have `dataset-fashion-mnist`.
fn packaged(name: Name) -> Option<PathBuf> {
    let dirs = env::var_os("XDG_DATA_DIRS")
        .filter(|dirs| !dirs.is_empty())
        .unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let mut folders =
        env::split_paths(&dirs).map(|dir| dir.join("datasets").join(name.to_string()));
    folders.find(|folder| folder.is_dir())
}

#[cfg(feature = "hub")]
fn from_the_hub(options: &Options) -> Result<(Split, Split, Source)> {
    use crate::hub::{self, Answer};

    let name = options.name;
    let variable = name.env_var();
    let answer = hub::load(name, &options.stop).with_context(|| {
        format!(
            "cannot load {name} from the Hugging Face Hub; name a folder with the four IDX files \
             ({variable}), or use the synthetic images"
        )
    });
    match answer? {
        Answer::Loaded(train, test, cached) => {
            let line = if cached {
                format!("{name} from an earlier download from the Hugging Face Hub")
            } else {
                format!("{name} from the Hugging Face Hub")
            };
            let is_synthetic = false;
            Ok((train, test, Source { line, is_synthetic }))
        }
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
    let name = options.name;
    let seed = options.seed;
    let threads = devices::cores();
    let make = |part, limit: Option<usize>, all| {
        synthetic::make(name, seed, part, limit.unwrap_or(all).min(all), threads)
    };
    let train = make(synthetic::TRAIN, options.limit_train, COUNTS[0]);
    let test = make(synthetic::TEST, options.limit_test, COUNTS[1]);
    let line = format!("synthetic images in place of {name} ({why})");
    let is_synthetic = true;
    (train, test, Source { line, is_synthetic })
}
