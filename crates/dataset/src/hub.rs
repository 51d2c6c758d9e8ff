//! The Hugging Face Hub: the two parquet files of a dataset into hf-hub's cache, with a time limit and a progress
//! bar, and from there through candle-datasets to bytes. Mends nothing: what is broken is an error. Each time a file
//! is taken from the cache, it is compared with the SHA-256 that the Hub gave for it.
//!
//! `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_CACHE` mean what they always mean; hf-hub and candle-datasets read them.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{DType, Tensor};
use candle_datasets::vision;
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::repository::{FileMetadataInfo, RepoTypeDataset};
use hf_hub::{HFClient, HFClientSync, HFError, HFRepositorySync};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::idx::hex;
use crate::iter::message;
use crate::{COUNTS, Name, PIXELS, Split};

/// The branch on which the Hub keeps every dataset as parquet; candle-datasets reads it, so its cache is shared.
const REVISION: &str = "refs/convert/parquet";
/// How long the Hub may take to give a first answer.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a download may stand still.
const STALL: Duration = Duration::from_secs(60);
/// How long candle-datasets may take to decode the images; on a damaged file it can go round for ever.
const DECODE: Duration = Duration::from_secs(300);

type Repo = HFRepositorySync<RepoTypeDataset>;

/// What came of asking the Hub.
pub(crate) enum Answer {
    /// The training part, the test part, and whether nothing had to be downloaded.
    Loaded(Split, Split, bool),
    /// It could not be connected to, and why.
    Unreachable(String),
}

/// The dataset from the cache of an earlier download, or else from the Hub.
pub(crate) fn load(name: Name) -> Result<Answer> {
    let repo = repo(name, 3)?;
    let cached = files(name)
        .iter()
        .all(|file| in_cache(&repo, file).is_some());
    if !cached {
        if let Some(why) = unreachable(name)? {
            return Ok(Answer::Unreachable(why));
        }
        let _alone = alone(name)?;
        // another process may have been here
        for file in files(name) {
            if in_cache(&repo, file).is_none() {
                fetch(&repo, file).with_context(|| format!("cannot download {file}"))?;
            }
        }
    }
    let (train, test) = read(&repo, name).with_context(|| hint(&repo, name))?;
    Ok(Answer::Loaded(train, test, cached))
}

/// The files that candle-datasets reads: training part, test part.
fn files(name: Name) -> [&'static str; 2] {
    match name {
        Name::FashionMnist => [
            "fashion_mnist/train/0000.parquet",
            "fashion_mnist/test/0000.parquet",
        ],
        Name::Mnist => ["mnist/train/0000.parquet", "mnist/test/0000.parquet"],
    }
}

/// The dataset's place on the Hub, through a client that tries again `retries` times.
fn repo(name: Name, retries: usize) -> Result<Repo> {
    let (owner, repo) = match name {
        Name::FashionMnist => ("zalando-datasets", "fashion_mnist"),
        Name::Mnist => ("ylecun", "mnist"),
    };
    let client = HFClient::builder().retry_max_attempts(retries).build()?;
    Ok(HFClientSync::from_inner(client)?.dataset(owner, repo))
}

fn in_cache(repo: &Repo, file: &str) -> Option<PathBuf> {
    repo.download_file()
        .filename(file)
        .revision(REVISION)
        .local_files_only(true)
        .send()
        .ok()
}

/// Why the Hub cannot be connected to, if it cannot. Any answer in HTTP is a connection, and so none of this.
fn unreachable(name: Name) -> Result<Option<String>> {
    let [_, file] = files(name);
    let repo = repo(name, 0)?;
    let answer = watched(CONNECT, move |_| {
        repo.file_exists().filename(file).revision(REVISION).send()
    });
    Ok(match answer {
        Err(Silent(_)) => {
            let seconds = CONNECT.as_secs();
            Some(format!(
                "the Hugging Face Hub gave no answer within {seconds} s"
            ))
        }
        Ok(Err(error @ HFError::Request { .. })) => {
            let error = anyhow!(error);
            Some(format!(
                "the Hugging Face Hub cannot be reached: {}",
                error.root_cause()
            ))
        }
        _ => None,
    })
}

/// Waits until no other process downloads this dataset, and keeps others from it until the file is dropped.
fn alone(name: Name) -> Result<File> {
    let folder = HFClient::builder().build()?.cache_dir().join(".locks");
    let path = folder.join(format!("{name}.lock"));
    let lock = || {
        fs::create_dir_all(&folder)?;
        let file = File::create(&path)?;
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            // a reader who closed stderr loses the line, not the run
            let _ = writeln!(
                io::stderr(),
                "another process downloads {name}: waiting for it"
            );
            file.lock()?;
        }
        Ok(file)
    };
    lock().map_err(|error: io::Error| anyhow!("cannot write {}: {error}", path.display()))
}

/// What the Hub says of a file. Its hashes become names in the cache, so that `..` in one would lead out of it.
fn said(repo: &Repo, file: &'static str) -> Result<FileMetadataInfo> {
    let repo = repo.clone();
    let ask = move |_| {
        let ask = repo.get_file_metadata().filepath(file);
        ask.revision(REVISION).send()
    };
    let says = watched(STALL, ask)??;
    for hash in [&says.etag, &says.commit_hash] {
        let is_one = !hash.is_empty() && hash.bytes().all(|b| b.is_ascii_alphanumeric());
        ensure!(
            is_one,
            "the Hub says that its hash is {hash:?}, which is none"
        );
    }
    Ok(says)
}

/// Compares a file with the SHA-256 that it should have; names of other hashes say nothing.
fn check(path: &Path, sum: &str) -> Result<()> {
    let bytes = fs::read(path)?;
    if sum.len() == 64 {
        let found = hex(&Sha256::digest(&bytes));
        let n = bytes.len();
        ensure!(
            found == sum,
            "{n} bytes with the SHA-256 {found}; the Hub says {sum}"
        );
    }
    Ok(())
}

/// A file of the cache, which has its hash for a name (where the system has links).
fn check_cached(path: &Path) -> Result<()> {
    let data = fs::canonicalize(path)?;
    let sum = data.file_name().and_then(OsStr::to_str).unwrap_or_default();
    check(path, sum).with_context(|| format!("{} is broken", path.display()))
}

/// Downloads one file into the cache, and removes it again where it is not what the Hub says.
fn fetch(repo: &Repo, file: &'static str) -> Result<()> {
    let says = said(repo, file)?;
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let style = ProgressStyle::with_template(template)?;
    let bar = ProgressBar::no_length()
        .with_message(file)
        .with_style(style);
    let path = download(repo.clone(), file, bar.clone());
    bar.finish_and_clear();
    let path = path?;
    // hf-hub compares neither the status nor the length of what it downloads, nor its hash
    let (found, expected) = (fs::metadata(&path)?.len(), says.file_size);
    let result = match found == expected || expected == 0 {
        true => check(&path, &says.etag),
        false => Err(anyhow!("{found} bytes came; expected {expected}")),
    };
    if result.is_err() {
        forget(&path)?;
    }
    result
}

fn download(repo: Repo, file: &'static str, bar: ProgressBar) -> Result<PathBuf> {
    let work = move |alive| {
        let download = repo.download_file().filename(file).revision(REVISION);
        download.progress(Bar { bar, alive }).send()
    };
    Ok(watched(STALL, work)??)
}

/// Removes a file from the cache: the name, and the data that the name links to.
fn forget(path: &Path) -> Result<()> {
    if let Ok(data) = fs::canonicalize(path) {
        fs::remove_file(data)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Shows a download's bytes, and tells whoever waits that it is alive.
struct Bar {
    bar: ProgressBar,
    alive: Sender<Sign>,
}

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else {
            return;
        };
        let before = self.bar.position();
        match event {
            DownloadEvent::Start { total_bytes, .. } => self.bar.set_length(*total_bytes),
            DownloadEvent::Progress { files } => files
                .iter()
                .for_each(|f| self.bar.set_position(f.bytes_completed)),
            DownloadEvent::AggregateProgress {
                bytes_completed, ..
            } => self.bar.set_position(*bytes_completed),
            DownloadEvent::Complete => {}
        }
        if self.bar.position() != before {
            // Whoever waits may have given up.
            let _ = self.alive.send(Sign::Alive);
        }
    }
}

/// Both parts from the cache, if they are what the Hub says.
fn read(repo: &Repo, name: Name) -> Result<(Split, Split)> {
    for file in files(name) {
        check_cached(&in_cache(repo, file).with_context(|| format!("{file} is gone"))?)?;
    }
    decode(name)
}

/// Both parts from the cache, through candle-datasets.
fn decode(name: Name) -> Result<(Split, Split)> {
    let data = watched(DECODE, move |_| match name {
        Name::FashionMnist => vision::fashion_mnist::load(),
        Name::Mnist => vision::mnist::load(),
    })??;
    let train =
        to_bytes(&data.train_images, &data.train_labels, COUNTS[0]).context("training part")?;
    let test = to_bytes(&data.test_images, &data.test_labels, COUNTS[1]).context("test part")?;
    Ok((train, test))
}

/// candle-datasets gives pixels as f32 = byte / 255, (n, 784), and labels as u8, (n,).
fn to_bytes(images: &Tensor, labels: &Tensor, n: usize) -> Result<Split> {
    let (found, pixels) = images.dims2()?;
    ensure!(
        (found, pixels) == (n, PIXELS),
        "{found} images of {pixels} pixels; expected {n} of {PIXELS}"
    );
    let images = ((images * 255.0)?.round()?.to_dtype(DType::U8)?)
        .flatten_all()?
        .to_vec1()?;
    Split::new(images, labels.to_vec1()?)
}

/// What to do about files in the cache that cannot be read.
fn hint(repo: &Repo, name: Name) -> String {
    let paths = files(name).map(|file| {
        in_cache(repo, file)
            .unwrap_or_default()
            .display()
            .to_string()
    });
    format!(
        "cannot read {}; remove them to download them anew",
        paths.join(" and ")
    )
}

/// Nothing was heard from a piece of work for too long, or it panicked.
#[derive(Debug)]
struct Silent(String);

impl From<Silent> for anyhow::Error {
    fn from(Silent(why): Silent) -> Self {
        anyhow!(why)
    }
}

/// What a piece of work says while it goes on, and at its end.
enum Sign {
    Alive,
    Done,
}

/// Runs `work` in a thread of its own, and gives up on it when it has shown no sign of life for `patience`.
/// A panic becomes an error without a word on stderr.
fn watched<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(Sender<Sign>) -> T + Send + 'static,
) -> Result<T, Silent> {
    let _quiet = Quiet::install();
    let (sender, signs) = mpsc::channel();
    let thread = thread::Builder::new().name("hub".into()).spawn(move || {
        QUIET.set(true);
        let result = work(sender.clone());
        let _ = sender.send(Sign::Done); // whoever waits may have given up
        result
    });
    let thread = thread.map_err(|error| Silent(format!("cannot start a thread: {error}")))?;
    loop {
        match signs.recv_timeout(patience) {
            Ok(Sign::Alive) => {}
            Ok(Sign::Done) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Silent(format!("nothing came for {patience:?}")));
            }
        }
    }
    thread
        .join()
        .map_err(|panic| Silent(format!("the decoder panicked: {}", message(&*panic))))
}

thread_local! {
    /// Whether this thread's panics are not reported: they come back as errors.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

type Hook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;

/// While it lives, threads that set [`QUIET`] panic without a word; all others as before.
struct Quiet(Arc<Hook>);

impl Quiet {
    fn install() -> Self {
        let before: Arc<Hook> = Arc::from(panic::take_hook());
        let others = before.clone();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                others(info)
            }
        }));
        Quiet(before)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // In a thread that is panicking, touching the hook would abort.
        if !thread::panicking() {
            let before = self.0.clone();
            panic::set_hook(Box::new(move |info| before(info)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use candle_core::Device;

    use super::*;

    #[test]
    fn work_that_stands_still_is_given_up() {
        let patience = Duration::from_millis(100);
        let start = Instant::now();
        let Silent(why) =
            watched(patience, |_alive| thread::sleep(Duration::from_secs(3))).unwrap_err();
        assert_eq!(why, "nothing came for 100ms");
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn work_that_goes_on_may_take_its_time() {
        let slow = |alive: Sender<Sign>| {
            for _ in 0..8 {
                thread::sleep(Duration::from_millis(50));
                alive.send(Sign::Alive).unwrap();
            }
            42
        };
        assert_eq!(watched(Duration::from_millis(300), slow).unwrap(), 42);
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let work = |_| -> () { panic!("image {} is broken", 7) };
        let Silent(why) = watched(Duration::from_secs(5), work).unwrap_err();
        assert_eq!(why, "the decoder panicked: image 7 is broken");
    }

    #[test]
    fn every_byte_survives_the_way_through_f32() {
        let bytes: Vec<u8> = (0..2 * PIXELS).map(|i| (i % 256) as u8).collect();
        let images = Tensor::from_vec(bytes.clone(), (2, PIXELS), &Device::Cpu).unwrap();
        let images = (images.to_dtype(DType::F32).unwrap() / 255.0).unwrap();
        let labels = Tensor::from_vec(vec![9u8, 0], 2, &Device::Cpu).unwrap();
        assert_eq!(
            to_bytes(&images, &labels, 2).unwrap(),
            Split::new(bytes, vec![9, 0]).unwrap()
        );
        let error = to_bytes(&images, &labels, 3).unwrap_err().to_string();
        assert_eq!(error, "2 images of 784 pixels; expected 3 of 784");
    }
}
