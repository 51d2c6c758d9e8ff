//! Runs work in a thread of its own: gives up on work that takes too long, and turns its panics into errors.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use devices::{Panicked, quietly};

use crate::options::{Interrupted, StopFlag};

/// Time between two looks at the flag that ends the work early.
const LOOK: Duration = Duration::from_millis(50);

/// Returns what `work` returns; an error that names `what` if it panics, and one if it takes longer than `limit`, or
/// `stop` is set. While it works, no panic is printed.
pub(super) fn watched<T: Send + 'static>(
    what: &str,
    limit: Duration,
    stop: &StopFlag,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (sender, done) = mpsc::channel();
    // the send fails if the caller has given up
    let work = move || drop(sender.send(quietly(work)));
    Builder::new().name("hub".into()).spawn(work)?;
    let start = Instant::now();
    loop {
        if let Ok(result) = done.recv_timeout(LOOK.min(limit)) {
            return result.map_err(|Panicked(why)| anyhow!("{what} panicked: {why}"));
        }
        let stops = stop
            .as_ref()
            .is_some_and(|flag| flag.load(Ordering::Relaxed));
        ensure!(!stops, Interrupted);
        ensure!(start.elapsed() < limit, "no end after {limit:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn work_that_stands_still_is_given_up() {
        let start = Instant::now();
        let work = || thread::sleep(Duration::from_secs(3));
        let why = watched("the decoder", Duration::from_millis(100), &None, work).unwrap_err();
        assert_eq!(why.to_string(), "no end after 100ms");
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let work = || -> () { panic!("image {} is broken", 7) };
        let why = watched("the decoder", Duration::from_secs(5), &None, work).unwrap_err();
        assert_eq!(why.to_string(), "the decoder panicked: image 7 is broken");
    }
}
