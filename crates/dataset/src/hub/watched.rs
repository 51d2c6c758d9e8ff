//! Runs work in a thread of its own: gives up on work that takes too long, and turns its panics into errors.

use std::panic;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use devices::Panicked;

use crate::options::{Interrupted, StopFlag};

/// The name of the threads of which the panics are not reported: they come back as errors.
const QUIET: &str = "hub";

/// How often the flag is looked at that ends the work early.
const LOOK: Duration = Duration::from_millis(50);

/// What `work` returns, or an error if it panics, is not done within `limit`, or is to `stop`. A panic prints nothing
/// on stderr.
pub(super) fn watched<T: Send + 'static>(
    limit: Duration,
    stop: StopFlag,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(quiet);
    let (sender, done) = mpsc::channel();
    // fails if the caller has given up
    let work = move || drop(sender.send(work()));
    let thread = Builder::new().name(QUIET.into()).spawn(work)?;
    let start = Instant::now();
    loop {
        match done.recv_timeout(LOOK.min(limit)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                let stops = stop.is_some_and(|flag| flag.load(Ordering::Relaxed));
                ensure!(!stops, Interrupted);
                ensure!(start.elapsed() < limit, "no end after {limit:?}");
            }
            Err(RecvTimeoutError::Disconnected) => {
                let panic = thread.join().expect_err("it sends what it returns");
                bail!("the decoder panicked: {}", Panicked::of(&*panic).0)
            }
        }
    }
}

/// From now on, threads of the name [`QUIET`] panic without a word; all others as before.
fn quiet() {
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(QUIET) {
            others(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_that_stands_still_is_given_up() {
        let start = Instant::now();
        let work = || thread::sleep(Duration::from_secs(3));
        let why = watched(Duration::from_millis(100), None, work).unwrap_err();
        assert_eq!(why.to_string(), "no end after 100ms");
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let work = || -> () { panic!("image {} is broken", 7) };
        let why = watched(Duration::from_secs(5), None, work).unwrap_err();
        assert_eq!(why.to_string(), "the decoder panicked: image 7 is broken");
    }
}
