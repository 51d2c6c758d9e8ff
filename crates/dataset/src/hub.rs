//! The Hugging Face Hub: the two parquet files of a dataset into hf-hub's cache, with a time limit and a progress
//! bar, and from there through candle-datasets to bytes. Mends nothing: what is broken is an error. Each time a file
//! is taken from the cache, it is compared with the SHA-256 that the Hub gave for it. The Hub is not trusted with
//! more than that: nothing that it says leads out of the cache ([`mod@download`], [`cache`]).
//!
//! `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_CACHE` mean what they always mean; hf-hub and candle-datasets read them.

use std::fs;
use std::path::{Component, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{DType, Tensor};
use candle_datasets::vision;
use hf_hub::repository::RepoTypeDataset;
use hf_hub::{HFClient, HFClientSync, HFError, HFRepositorySync};
use reqwest::Url;

use crate::{COUNTS, Name, PIXELS, Split};

mod cache;
mod download;
mod watched;

use download::download;
use watched::{Silent, watched};

/// The branch on which the Hub keeps every dataset as parquet; candle-datasets reads it, so its cache is shared.
const REVISION: &str = "refs/convert/parquet";
/// How long the Hub may take to give a first answer.
const CONNECT: Duration = Duration::from_secs(5);
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
    let place = Place::of(name)?;
    let files = place.files();
    let cached = files.iter().all(|file| place.cached(file).is_some());
    if !cached {
        if let Some(why) = place.unreachable() {
            return Ok(Answer::Unreachable(why));
        }
        let _alone = cache::alone(place.client.cache_dir(), &name.to_string())?;
        // another process may have been here
        for file in files {
            if place.cached(file).is_none() {
                let fetched = place.fetch(file);
                fetched.with_context(|| format!("cannot download {file}"))?;
            }
        }
    }
    let (train, test) = place.read().with_context(|| place.hint())?;
    Ok(Answer::Loaded(train, test, cached))
}

/// A dataset's place on the Hub and in the cache.
struct Place {
    name: Name,
    /// Knows where the Hub and the cache are; asks once, whatever the answer.
    client: HFClient,
    repo: Repo,
    /// The dataset's folder in the cache.
    folder: PathBuf,
}

impl Place {
    fn of(name: Name) -> Result<Self> {
        let (owner, repo) = match name {
            Name::FashionMnist => ("zalando-datasets", "fashion_mnist"),
            Name::Mnist => ("ylecun", "mnist"),
        };
        let client = HFClient::builder().retry_max_attempts(0).build()?;
        let folder = format!("datasets--{owner}--{repo}");
        Ok(Place {
            name,
            folder: client.cache_dir().join(folder),
            repo: HFClientSync::from_inner(client.clone())?.dataset(owner, repo),
            client,
        })
    }

    /// The files that candle-datasets reads: training part, test part.
    fn files(&self) -> [&'static str; 2] {
        match self.name {
            Name::FashionMnist => [
                "fashion_mnist/train/0000.parquet",
                "fashion_mnist/test/0000.parquet",
            ],
            Name::Mnist => ["mnist/train/0000.parquet", "mnist/test/0000.parquet"],
        }
    }

    /// Where the Hub has a file.
    fn address(&self, file: &str) -> Result<Url> {
        let (endpoint, repo) = (self.client.endpoint(), self.repo.repo_path());
        let revision = REVISION.replace('/', "%2F");
        let url = format!("{endpoint}/datasets/{repo}/resolve/{revision}/{file}");
        Ok(Url::parse(&url)?)
    }

    /// Where hf-hub finds a file, if that is in the dataset's folder: for hf-hub, `..` too is the name of a commit.
    fn cached(&self, file: &str) -> Option<PathBuf> {
        let find = self.repo.download_file().filename(file);
        let path = find.revision(REVISION).local_files_only(true).send().ok()?;
        let inside = path.strip_prefix(&self.folder).ok()?;
        let plain = |part| matches!(part, Component::Normal(_));
        inside.components().all(plain).then_some(path)
    }

    /// Why the Hub cannot be connected to, if it cannot. Any answer in HTTP is a connection, and so none of this.
    fn unreachable(&self) -> Option<String> {
        let ([_, file], repo) = (self.files(), self.repo.clone());
        let answer = watched(CONNECT, move |_| {
            repo.file_exists().filename(file).revision(REVISION).send()
        });
        match answer {
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
        }
    }

    /// Downloads one file into the cache, if it is what the Hub says.
    fn fetch(&self, file: &'static str) -> Result<()> {
        let incoming = cache::incoming(&self.folder)?;
        let data = incoming.join("data");
        let says = download(self.address(file)?, &data, file);
        let kept = says.and_then(|says| cache::keep(&self.folder, &data, file, &says));
        // it is empty, or has what is of no use; the next download removes it too
        let _ = fs::remove_dir_all(incoming);
        kept
    }

    /// Both parts from the cache, if they are what the Hub says.
    fn read(&self) -> Result<(Split, Split)> {
        for file in self.files() {
            let path = self.cached(file);
            let path = path.with_context(|| format!("{file} is missing from the cache"))?;
            cache::check(&self.folder, &path)?;
        }
        decode(self.name)
    }

    /// What to do about files in the cache that cannot be read.
    fn hint(&self) -> String {
        let paths = self.files().map(|file| {
            let path = self.cached(file).unwrap_or_else(|| file.into());
            path.display().to_string()
        });
        let paths = paths.join(" and ");
        format!("cannot read {paths}; remove these files to download them again")
    }
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

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
