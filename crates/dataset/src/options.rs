//! Options of the user: which dataset, from where, how much of it. Opens nothing.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};

/// One of the two datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Name {
    /// Ten kinds of garments, Zalando SE.
    #[default]
    FashionMnist,
    /// Ten handwritten digits.
    Mnist,
}

impl Name {
    /// The environment variable that names a folder with the IDX files.
    pub fn env_var(self) -> &'static str {
        match self {
            Name::FashionMnist => "FASHION_MNIST_DIR",
            Name::Mnist => "MNIST_DIR",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Name::FashionMnist => "fashion-mnist",
            Name::Mnist => "mnist",
        })
    }
}

impl FromStr for Name {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "fashion-mnist" => Ok(Name::FashionMnist),
            "mnist" => Ok(Name::Mnist),
            _ => bail!("unknown dataset {name:?}; choose fashion-mnist or mnist"),
        }
    }
}

/// Value of `--data`: a folder, or the word `synthetic`.
///
/// ```
/// use dataset::Data;
///
/// assert_eq!(Data::from("synthetic"), Data::Synthetic);
/// assert_eq!(Data::from("./synthetic"), Data::Dir("./synthetic".into())); // a folder of that name
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// A folder with the four official IDX files.
    Dir(PathBuf),
    /// The built-in synthetic set: garments, or for MNIST seven-segment digits, drawn at random.
    Synthetic,
}

impl<S: AsRef<OsStr> + ?Sized> From<&S> for Data {
    fn from(says: &S) -> Self {
        match says.as_ref() {
            word if word == "synthetic" => Data::Synthetic,
            dir => Data::Dir(dir.into()),
        }
    }
}

impl FromStr for Data {
    type Err = Infallible;

    fn from_str(says: &str) -> Result<Self, Infallible> {
        Ok(Data::from(says))
    }
}

/// Which images to load, and in which order to hand them out.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The dataset.
    pub name: Name,
    /// Place to take it from; `None` asks the environment variable, then the Hub.
    pub data: Option<Data>,
    /// Decides the order of the training images, and what the synthetic set looks like.
    pub seed: u64,
    /// True if the training images keep the order of the files, as the test images always do.
    pub no_shuffle: bool,
    /// Take only the first n training images, in file order.
    pub limit_train: Option<usize>,
    /// Take only the first n test images, in file order.
    pub limit_test: Option<usize>,
    /// Loading ends with [`Interrupted`] once this is set, also in the middle of a download.
    pub stop: StopFlag,
}

/// A flag that ends work early, where there is one.
pub type StopFlag = Option<Arc<AtomicBool>>;

/// The error where [`Options::stop`] was set.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted while the dataset was loaded")
    }
}

impl std::error::Error for Interrupted {}

impl Options {
    /// True if `--data` or the environment variable names the source: then a failure is an error in the input.
    pub fn names_a_source(&self) -> bool {
        self.named().is_some()
    }

    /// The source that was named. An empty environment variable counts as unset.
    pub(crate) fn named(&self) -> Option<Data> {
        let from_env = || std::env::var_os(self.name.env_var()).filter(|says| !says.is_empty());
        self.data
            .clone()
            .or_else(|| from_env().map(|says| Data::from(&says)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_they_are_read() {
        for name in [Name::FashionMnist, Name::Mnist] {
            assert_eq!(name.to_string().parse::<Name>().unwrap(), name);
        }
        let error = "cifar".parse::<Name>().unwrap_err().to_string();
        let says = "unknown dataset \"cifar\"; choose fashion-mnist or mnist";
        assert_eq!(error, says);
    }
}
