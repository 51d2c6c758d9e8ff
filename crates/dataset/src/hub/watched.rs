//! Runs work in a thread of its own: gives up on work that makes no progress, and turns its panics into errors.

use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;

use crate::iter::message;

/// Nothing was heard from a piece of work for too long, or it panicked.
#[derive(Debug)]
pub(super) struct Silent(pub(super) String);

impl From<Silent> for anyhow::Error {
    fn from(Silent(why): Silent) -> Self {
        anyhow!(why)
    }
}

/// What a piece of work says while it goes on, and at its end.
pub(super) enum Sign {
    Alive,
    Done,
}

/// Runs `work` in a thread of its own, and gives up on it when it has sent no [`Sign`] for `patience`.
/// A panic becomes an error, and prints nothing on stderr.
pub(super) fn watched<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(Sender<Sign>) -> T + Send + 'static,
) -> Result<T, Silent> {
    let _quiet = Quiet::install();
    let (sender, signs) = mpsc::channel();
    let thread = thread::Builder::new().name(THREAD.into()).spawn(move || {
        let result = work(sender.clone());
        let _ = sender.send(Sign::Done); // fails if the caller has given up
        result
    });
    let thread = thread.map_err(|error| Silent(format!("cannot start a thread: {error}")))?;
    loop {
        match signs.recv_timeout(patience) {
            Ok(Sign::Alive) => {}
            Ok(Sign::Done) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Silent(format!("no progress for {patience:?}")));
            }
        }
    }
    thread
        .join()
        .map_err(|panic| Silent(format!("the decoder panicked: {}", message(&*panic))))
}

/// The name of the threads that do the work; their panics come back as errors.
const THREAD: &str = "hub";

type Hook = dyn Fn(&PanicHookInfo<'_>) + Send + Sync;

/// While it lives, threads named [`THREAD`] panic without a word; all others as before.
struct Quiet(Arc<Hook>);

impl Quiet {
    fn install() -> Self {
        let before: Arc<Hook> = Arc::from(panic::take_hook());
        let others = before.clone();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD) {
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

    use super::*;

    #[test]
    fn work_that_stands_still_is_given_up() {
        let patience = Duration::from_millis(100);
        let start = Instant::now();
        let Silent(why) =
            watched(patience, |_alive| thread::sleep(Duration::from_secs(3))).unwrap_err();
        assert_eq!(why, "no progress for 100ms");
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
}
