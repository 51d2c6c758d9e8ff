//! The Hugging Face Hub: the two parquet files of a dataset into hf-hub's cache, with a time limit and a progress
//! bar, and from there through candle-datasets to bytes. Mends nothing: what is broken is an error. Each time a file
//! is taken from the cache, it is compared with the SHA-256 that the Hub gave for it. The Hub is not trusted with
//! more than that: nothing that it says leads out of the cache ([`mod@download`], [`cache`]).
//!
//! `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_DOWNLOAD_TIMEOUT` and `HF_HUB_OFFLINE` mean what they always mean;
//! hf-hub and candle-datasets read the first three.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::{DType, Tensor};
use candle_datasets::vision;
use hf_hub::{HFClient, HFError};
use reqwest::Url;

use crate::options::{Interrupted, Name, StopFlag};
use crate::split::{COUNTS, PIXELS, Split};

mod cache;
mod download;
mod watched;

use cache::{Cache, REVISION};
use download::{client, download};
use watched::watched;

/// Time that the Hub may take to give a first answer.
const CONNECT: Duration = Duration::from_secs(5);
/// Time that a download may stand still, unless `HF_HUB_DOWNLOAD_TIMEOUT` gives other seconds.
const STALL: Duration = Duration::from_secs(60);
/// Time that candle-datasets may take to decode the images; on a damaged file it can go round for ever.
const DECODE: Duration = Duration::from_secs(300);

/// Result of asking the Hub.
pub(crate) enum Answer {
    /// The training part, the test part, and whether nothing had to be downloaded.
    Loaded(Split, Split, bool),
    /// It could not be connected to, and why.
    Unreachable(String),
}

/// The dataset from the cache of an earlier download, or else from the Hub.
pub(crate) fn load(name: Name, stop: &StopFlag) -> Result<Answer> {
    let (repo, folder) = match name {
        Name::FashionMnist => ("zalando-datasets/fashion_mnist", "fashion_mnist"),
        Name::Mnist => ("ylecun/mnist", "mnist"),
    };
    // those that candle-datasets reads
    let files = ["train", "test"].map(|part| format!("{folder}/{part}/0000.parquet"));
    let hub = match HFClient::new() {
        // such as no certificates: README promises synthetic images where the Hub cannot be asked
        Err(HFError::Request { source, .. }) if source.is_builder() => {
            let why = anyhow!(source);
            let why = format!("the Hugging Face Hub cannot be asked: {}", why.root_cause());
            return Ok(Answer::Unreachable(why));
        }
        client => client?,
    };
    let cache = Cache::of(hub.cache_dir(), repo);
    let cached = files.iter().all(|file| cache.find(file).is_some());
    if !cached && is_offline() {
        let why = "HF_HUB_OFFLINE is set, and no earlier download is there";
        return Ok(Answer::Unreachable(why.to_owned()));
    }
    if !cached {
        let revision = REVISION.replace('/', "%2F");
        let url = format!("{}/datasets/{repo}/resolve/{revision}/", hub.endpoint());
        let url = Url::parse(&url)?;
        if let Some(why) = unreachable(url.join(&files[1])?, stop)? {
            return Ok(Answer::Unreachable(why));
        }
        let _alone = cache.lock(name, stop)?;
        // another process may have been here
        for file in files.iter().filter(|file| cache.find(file).is_none()) {
            let fetched = fetch(&cache, url.join(file)?, file, stop);
            fetched.with_context(|| format!("cannot download {file}"))?;
        }
    }
    let intact = files.iter().try_for_each(|file| cache.check(file));
    let (train, test) = intact.and_then(|()| decode(name, stop)).with_context(|| {
        let path = |file| cache.find(file).unwrap_or_else(|| file.into());
        let train = path(&files[0]);
        let test = path(&files[1]);
        format!(
            "cannot read {} and {}; remove these files to download them again",
            train.display(),
            test.display()
        )
    })?;
    Ok(Answer::Loaded(train, test, cached))
}

/// Why the Hub cannot be connected to, if it cannot. Any answer in HTTP is a connection, and so none of this.
fn unreachable(url: Url, stop: &StopFlag) -> Result<Option<String>> {
    // in a thread, because to look up a name can take longer than the client's limit
    let answer = watched("the request", CONNECT, stop, move || {
        client(stall())?.head(url).send()
    });
    let why = match answer {
        Ok(Ok(_)) => return Ok(None),
        Ok(Err(error)) => format!("cannot be reached: {}", anyhow!(error).root_cause()),
        Err(error) if error.is::<Interrupted>() => return Err(error),
        Err(_) => format!("gave no answer within {} s", CONNECT.as_secs()),
    };
    Ok(Some(format!("the Hugging Face Hub {why}")))
}

/// True if the Hub is not to be asked, by the values that its own library knows.
fn is_offline() -> bool {
    let says = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&says.to_lowercase().as_str())
}

fn stall() -> Duration {
    let given = std::env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
    let seconds = given.and_then(|given| given.parse().ok());
    seconds.map_or(STALL, Duration::from_secs)
}

/// Downloads one file into the cache, if it is what the Hub says.
fn fetch(cache: &Cache, url: Url, file: &str, stop: &StopFlag) -> Result<()> {
    let incoming = cache.incoming()?;
    let data = incoming.join("data");
    let to = data.clone();
    let name = file.to_owned();
    // in a thread, because a read waits as long as nothing comes
    let work = move || download(&client(stall())?, url, &to, &name);
    let says = watched("the download", Duration::MAX, stop, work).flatten();
    let kept = says.and_then(|says| cache.keep(&data, file, &says));
    // it is empty, or has what is of no use
    let _ = std::fs::remove_dir_all(incoming);
    kept
}

/// Both parts from the cache, through candle-datasets.
fn decode(name: Name, stop: &StopFlag) -> Result<(Split, Split)> {
    let data = watched("the decoder", DECODE, stop, move || match name {
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
    let images = (images * 255.0)?.round()?.to_dtype(DType::U8)?;
    Split::new(images.flatten_all()?.to_vec1()?, labels.to_vec1()?)
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
        let expected = Split::new(bytes, vec![9, 0]).unwrap();
        assert_eq!(to_bytes(&images, &labels, 2).unwrap(), expected);
        let error = to_bytes(&images, &labels, 3).unwrap_err().to_string();
        assert_eq!(error, "2 images of 784 pixels; expected 3 of 784");
    }
}
