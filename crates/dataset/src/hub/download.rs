//! One file from the Hub: a single request brings both what the Hub says of the file and, after a redirect, the file.
//!
//! hf-hub's own download asks twice, and names files by the second answer, whatever it is; what it offers to ask with
//! (`get_file_metadata`) misses the redirect on which the Hub says it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderMap, LOCATION};
use reqwest::{Client, Response, Url, redirect};
use sha2::{Digest, Sha256};
use tokio::runtime;

use super::watched::{Sign, watched};
use crate::idx::hex;

/// How long a download may stand still.
const STALL: Duration = Duration::from_secs(60);
/// So many times one address may lead to another.
const HOPS: usize = 10;

/// What the Hub says of a file. Both hashes become names in the cache, so they have to be hashes.
pub(super) struct Says {
    /// The SHA-256 of the file.
    pub(super) sum: String,
    /// The commit that it belongs to.
    pub(super) commit: String,
    /// Its length, if it is said beside the hashes.
    len: Option<u64>,
}

impl Says {
    /// What these headers say, if it is the Hub's file that they are about.
    fn read(headers: &HeaderMap) -> Option<Result<Self>> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let etag = text("x-linked-etag").or(text(ETAG.as_str()))?;
        let commit = text("x-repo-commit")?;
        let len = text("x-linked-size").and_then(|len| len.parse().ok());
        let read = || {
            Ok(Says {
                sum: hash(etag.trim_start_matches("W/").trim_matches('"'), 64)?,
                commit: hash(commit, 40)?,
                len,
            })
        };
        Some(read())
    }
}

/// A hash of so many hexadecimal digits, and nothing else: `..` would lead out of the cache.
fn hash(hash: &str, digits: usize) -> Result<String> {
    ensure!(
        hash.len() == digits && is_hex(hash),
        "the Hub sent the hash {hash:?}; expected {digits} hexadecimal digits"
    );
    Ok(hash.to_owned())
}

pub(super) fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Downloads `file` from `url` to `path`, with a progress bar; it is an error if it is not what the Hub says.
pub(super) fn download(url: Url, path: &Path, file: &'static str) -> Result<Says> {
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let style = ProgressStyle::with_template(template)?;
    let bar = ProgressBar::no_length()
        .with_message(file)
        .with_style(style);
    let (shown, path) = (bar.clone(), PathBuf::from(path));
    let says = watched(STALL, move |alive| {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(receive(url, &path, |len, of| {
            shown.set_length(of);
            shown.set_position(len);
            let _ = alive.send(Sign::Alive); // fails if the caller has given up
        }))
    });
    bar.finish_and_clear();
    says?
}

/// Writes what comes from `url`, and compares it with what the Hub says: its length and its SHA-256.
async fn receive(url: Url, path: &Path, show: impl Fn(u64, u64)) -> Result<Says> {
    let (says, mut answer) = request(url).await?;
    // a redirect's own length is another one
    let expected = says.len.or_else(|| length(&answer));
    let expected = expected.context("the Hub did not send the length of the file")?;
    let (mut data, mut sum, mut found) = (File::create(path)?, Sha256::new(), 0);
    while let Some(bytes) = answer.chunk().await? {
        data.write_all(&bytes)?;
        sum.update(&bytes);
        found += bytes.len() as u64;
        show(found, expected);
        ensure!(
            found <= expected,
            "received {found} bytes or more; expected {expected}"
        );
    }
    ensure!(
        found == expected,
        "received {found} bytes; expected {expected}"
    );
    let (sum, says_sum) = (hex(&sum.finalize()), &says.sum);
    ensure!(
        sum == *says_sum,
        "received {found} bytes with the SHA-256 {sum}; expected {says_sum}"
    );
    Ok(says)
}

/// Asks for a file and goes where the answers lead: the first that is about the Hub's file counts, the last brings it.
async fn request(mut url: Url) -> Result<(Says, Response)> {
    let client = Client::builder()
        .user_agent(concat!("d2l-", env!("CARGO_PKG_NAME")))
        .redirect(redirect::Policy::none())
        .build()?;
    let mut says = None;
    for _ in 0..HOPS {
        let answer = client.get(url).send().await?.error_for_status()?;
        if says.is_none() {
            says = Says::read(answer.headers()).transpose()?;
        }
        if !answer.status().is_redirection() {
            let says =
                says.context("the Hub did not send the commit and the SHA-256 of the file")?;
            return Ok((says, answer));
        }
        let location = answer.headers().get(LOCATION);
        let location = location.context("the Hub sent a redirect without an address")?;
        url = answer.url().join(location.to_str()?)?;
    }
    bail!("the Hub redirected the download more than {HOPS} times")
}

/// How long the body of an answer should be.
fn length(answer: &Response) -> Option<u64> {
    let length = answer.headers().get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}
