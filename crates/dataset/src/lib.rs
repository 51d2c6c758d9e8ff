//! Fashion-MNIST and MNIST: bytes in, shuffled minibatches (X, y) out.
//!
//! This crate is the only one that downloads or opens a dataset file. It knows candle, and no model, loss or
//! replica: it makes X on the CPU or on one device, and the training code moves X to the replicas. It never
//! returns data that it has not checked, and never ignores a folder that the user named.
//!
//! ```
//! use dataset::{Data, Options};
//!
//! let options = Options {
//!     data: Some(Data::Synthetic), // offline; `None` looks for the real images
//!     limit_train: Some(600),
//!     limit_test: Some(100),
//!     ..Options::default()
//! };
//! let (train_iter, test_iter) = dataset::load(&options)?.iters(256)?;
//! for batch in train_iter.epoch(1) {
//!     let (x, y) = batch?;
//!     assert_eq!(x.dims()[1..], [1, 28, 28]);
//!     assert_eq!(x.dim(0)?, y.dim(0)?);
//! }
//! assert_eq!((train_iter.num_batches(), test_iter.num_batches()), (3, 1)); // 256 + 256 + 88, and 100
//! # anyhow::Ok(())
//! ```
//!
//! Where the images come from, in this order:
//! 1. the folder that [`Options::data`] or the environment variable names ([`Name::env_var`]),
//!    with the four official IDX files, gzip-compressed or raw;
//! 2. the folder of a system's package, such as Debian's and Ubuntu's `dataset-fashion-mnist`;
//! 3. the cache of an earlier download (feature `hub`);
//! 4. the Hugging Face Hub, through candle-datasets (feature `hub`, on by default);
//! 5. where the Hub cannot be reached: the built-in synthetic set, and [`Source`] says so.

extern crate data_parallel_devices as devices;
extern crate data_parallel_training as training;

mod draw;
mod figures;
#[cfg(feature = "hub")]
mod hub;
mod idx;
mod options;
mod say;
mod source;
mod split;
mod synthetic;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;

pub use options::{Data, Interrupted, Name, Options, StopFlag};
pub use say::quoted;
pub use source::Source;
pub use split::{PIXELS, SIDE, Split};
pub use training::{DataIter, Loader};

/// A training and a test part, in memory as bytes, and where they came from.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The images to learn from.
    pub train: Arc<Split>,
    /// The images to judge by.
    pub test: Arc<Split>,
    /// Source of the bytes; print its line, so that synthetic images are not taken for real ones.
    pub source: Source,
    /// Seed that shuffles the training images, if they are shuffled.
    seed: Option<u64>,
}

/// Loads a dataset from the first source that applies (see the [crate's page](crate)).
///
/// # Errors
/// A limit of 0, a named folder that is missing a file or holds a broken one, or a download that failed after
/// the Hub was reached.
///
/// ```
/// use dataset::{Data, Options};
///
/// let options = Options { data: Some(Data::Synthetic), limit_train: Some(20), limit_test: Some(10), ..Options::default() };
/// let data = dataset::load(&options)?;
/// assert_eq!((data.train.len(), data.test.len()), (20, 10));
/// assert!(data.source.is_synthetic);
/// # anyhow::Ok(())
/// ```
pub fn load(options: &Options) -> Result<Dataset> {
    for (what, limit) in [
        ("training", options.limit_train),
        ("test", options.limit_test),
    ] {
        ensure!(
            limit != Some(0),
            "the limit is 0 {what} images; give at least 1, or no limit for all of them"
        );
    }
    let (mut train, mut test, source) = source::open(options)?;
    train.truncate(options.limit_train.unwrap_or(usize::MAX));
    test.truncate(options.limit_test.unwrap_or(usize::MAX));
    Ok(Dataset {
        train: Arc::new(train),
        test: Arc::new(test),
        source,
        seed: (!options.no_shuffle).then_some(options.seed),
    })
}

impl Dataset {
    /// The training minibatches, shuffled anew in every epoch, and the test minibatches, in file order.
    ///
    /// # Errors
    /// A `batch_size` of 0.
    pub fn iters(&self, batch_size: usize) -> Result<(DataIter, DataIter)> {
        Ok((
            DataIter::new(self.train.clone(), batch_size, self.seed)?,
            DataIter::new(self.test.clone(), batch_size, None)?,
        ))
    }
}

/// The book's `load_data_fashion_mnist`: training and test minibatches of `batch_size` images.
///
/// # Errors
/// Those of [`load`], and a `batch_size` of 0.
///
/// ```no_run
/// let (train_iter, test_iter) = dataset::load_data_fashion_mnist(256)?;
/// for epoch in 1..=10 {
///     for batch in train_iter.epoch(epoch) {
///         let (x, y) = batch?; // (256, 1, 28, 28) and (256,)
///     }
/// }
/// # anyhow::Ok(())
/// ```
pub fn load_data_fashion_mnist(batch_size: usize) -> Result<(DataIter, DataIter)> {
    load(&Options::default())?.iters(batch_size)
}

/// Names of the classes that the labels `y` (B,) of Fashion-MNIST stand for ("The Image Classification Dataset").
///
/// # Errors
/// If `y` is not of u32, or a label is above 9.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// let y = Tensor::new(&[9u32, 2], &Device::Cpu)?;
/// assert_eq!(dataset::get_fashion_mnist_labels(&y)?, ["ankle boot", "pullover"]);
/// assert!(dataset::get_fashion_mnist_labels(&Tensor::new(&[10u32], &Device::Cpu)?).is_err());
/// # anyhow::Ok(())
/// ```
pub fn get_fashion_mnist_labels(y: &Tensor) -> Result<Vec<&'static str>> {
    let text = |label: &u32| {
        let text = LABELS.get(*label as usize).copied();
        text.with_context(|| format!("label {label}; expected 0 to 9"))
    };
    y.to_vec1()?.iter().map(text).collect()
}

const LABELS: [&str; 10] = [
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
];
