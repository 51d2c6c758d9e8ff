//! One file from the Hub: a single request brings both what the Hub says of the file and, after a redirect, the file.
//!
//! hf-hub 1.0 does not replace this (`download_file_to_cache_network` in its `repository/download.rs`). It asks twice, and
//! keeps the body of the second answer under the hash of the first, whatever status, length or hash that body has. It
//! takes hash and commit for parts of a path as they come, so `..` leads out of its cache. It begins a broken-off file
//! again, as this does. A second process gives up after 10 s of waiting for the first.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::Url;
use reqwest::blocking::{Client, Response};
use reqwest::header::{ETAG, HeaderMap, LOCATION};
use reqwest::redirect::Policy;
use sha2::{Digest, Sha256};

use crate::idx::hex;

/// No file of these datasets has more bytes; the largest has 31 million.
pub(super) const LARGEST: u64 = 64 << 20;

/// Number of times that one address may lead to another.
const HOPS: usize = 10;

/// The Hub's answer about a file. Both hashes become names in the cache, so they have to be hashes.
pub(super) struct Says {
    /// The SHA-256 of the file.
    pub(super) sum: String,
    /// The commit that it belongs to.
    pub(super) commit: String,
    /// Its length, if it is said beside the hashes.
    len: Option<u64>,
}

impl Says {
    /// Reads these headers, if they are about the Hub's file.
    fn read(headers: &HeaderMap) -> Result<Option<Self>> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let etag = text("x-linked-etag").or(text(ETAG.as_str()));
        let (Some(etag), Some(commit)) = (etag, text("x-repo-commit")) else {
            return Ok(None);
        };
        let sum = etag.trim_start_matches("W/").trim_matches('"');
        for (hash, digits) in [(sum, 64), (commit, 40)] {
            // `..` would lead out of the cache
            ensure!(
                is_hash(hash, digits),
                "the Hub sent the hash {hash:?}; expected {digits} hexadecimal digits"
            );
        }
        Ok(Some(Says {
            sum: sum.to_owned(),
            commit: commit.to_owned(),
            len: text("x-linked-size").and_then(|len| len.parse().ok()),
        }))
    }
}

/// True if a text is `digits` hexadecimal digits, and nothing else.
pub(super) fn is_hash(text: &str, digits: usize) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == digits && text.bytes().all(is_digit)
}

/// A client that follows no redirect, and gives up where nothing comes for `patience`.
pub(super) fn client(patience: Duration) -> reqwest::Result<Client> {
    let name = concat!("d2l-", env!("CARGO_PKG_NAME"));
    Client::builder()
        .user_agent(name)
        .timeout(patience)
        .redirect(Policy::none())
        .build()
}

/// Downloads `file` from `url` to `path`, with a progress bar; it is an error if it is not what the Hub says.
pub(super) fn download(client: &Client, url: Url, path: &Path, file: &str) -> Result<Says> {
    let (says, answer) = request(client, url)?;
    // a redirect's own length is another one
    let expected = says
        .len
        .or_else(|| answer.content_length())
        .context("the Hub did not send the length of the file")?;
    ensure!(
        expected <= LARGEST,
        "the Hub announces {expected} bytes; expected at most {LARGEST}"
    );
    let bar = bar(expected, file)?;
    let mut body = bar.wrap_read(answer.take(expected.saturating_add(1)));
    let came = io::copy(&mut body, &mut File::create(path)?);
    bar.finish_and_clear();
    let found = came?;
    let sum = hex(&Sha256::digest(fs::read(path)?));
    ensure!(
        sum == says.sum,
        "received {found} bytes with the SHA-256 {sum}; expected {}",
        says.sum
    );
    Ok(says)
}

/// Progress bar: how much of a file of `bytes` bytes has come, and how fast.
fn bar(bytes: u64, file: &str) -> Result<ProgressBar> {
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let bar = ProgressBar::new(bytes).with_message(file.to_owned());
    bar.set_style(ProgressStyle::with_template(template)?);
    Ok(bar)
}

/// Asks for a file and goes where the answers lead: the first that is about the Hub's file counts, the last brings it.
fn request(client: &Client, mut url: Url) -> Result<(Says, Response)> {
    let mut says = None;
    for _ in 0..HOPS {
        let answer = client.get(url).send()?.error_for_status()?;
        if says.is_none() {
            says = Says::read(answer.headers())?;
        }
        if !answer.status().is_redirection() {
            let says =
                says.context("the Hub did not send the commit and the SHA-256 of the file")?;
            return Ok((says, answer));
        }
        let location = answer
            .headers()
            .get(LOCATION)
            .context("the Hub sent a redirect without an address")?;
        url = answer.url().join(location.to_str()?)?;
    }
    bail!("the Hub redirected the download more than {HOPS} times")
}

#[cfg(test)]
mod tests {
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn the_bar_shows_how_much_has_come() -> Result<()> {
        let term = InMemoryTerm::new(2, 100);
        let bar = bar(30_000_000, "train/0000.parquet")?;
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        bar.set_draw_target(target);
        bar.set_position(15_000_000);
        bar.tick();
        let drawn = term.contents();
        assert!(drawn.starts_with("train/0000.parquet ███"), "{drawn}");
        assert!(drawn.contains(" 14.31 MiB/28.61 MiB "), "{drawn}");
        Ok(())
    }

    /// Both hashes become names of files.
    #[test]
    fn a_hash_cannot_lead_out_of_the_cache() -> Result<()> {
        let sum = "a".repeat(64);
        let read = |sum: &str, commit: &str| {
            let says = [("x-linked-etag", sum), ("x-repo-commit", commit)];
            let says = says.map(|(name, says)| Ok((name.parse()?, says.parse()?)));
            Says::read(&says.into_iter().collect::<Result<HeaderMap>>()?)
        };
        let says = read(&format!("W/\"{sum}\""), COMMIT)?.context("both are there")?;
        assert_eq!(says.sum, sum);
        assert_eq!(says.commit, COMMIT);
        for (sum, commit, digits) in [
            ("../../../../precious", COMMIT, 64),
            ("", COMMIT, 64),
            (&sum[1..], COMMIT, 64),
            (&sum, "../../../../escaped", 40),
            (&sum, &sum[..41], 40),
        ] {
            let error = read(sum, commit).err().context("it is taken")?.to_string();
            let expected = format!("; expected {digits} hexadecimal digits");
            assert!(error.ends_with(&expected), "{error}");
        }
        Ok(())
    }
}
