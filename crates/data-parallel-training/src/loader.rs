//! Prepares minibatches during a training step: on a thread of its own, a few ahead. Knows no file and no order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use candle_core::{Error, Result, Tensor};
use devices::Panicked;

/// Number of minibatches that wait ready: two hide a slow one, more would only take memory.
const READY: usize = 2;

/// Conditions that end an epoch early.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) flag: Option<Arc<AtomicBool>>,
    /// It ends only between groups of this many minibatches.
    pub(crate) group: usize,
}

impl Stop {
    pub(crate) const NEVER: Self = Stop {
        flag: None,
        group: 1,
    };

    /// True if an epoch ends after `given` minibatches.
    fn after(&self, given: usize) -> bool {
        let flag = self.flag.as_ref();
        let wanted = flag.is_some_and(|flag| flag.load(Ordering::Relaxed));
        wanted && given.is_multiple_of(self.group)
    }
}

/// The minibatches X (B, …) and y (B, …) of one epoch, on the CPU or on the device of
/// [`DataIter::on_device`](crate::DataIter::on_device).
#[derive(Debug)]
pub struct Loader<X = Tensor, Y = Tensor> {
    /// None after `close`. An error is why a minibatch could not be made.
    ready: Option<Receiver<Result<(X, Y)>>>,
    thread: Option<JoinHandle<()>>,
    stop: Stop,
    given: usize,
}

impl<X: Send + 'static, Y: Send + 'static> Loader<X, Y> {
    pub(crate) fn start(
        mut minibatches: impl Iterator<Item = Result<(X, Y)>> + Send + 'static,
        stop: Stop,
    ) -> Self {
        let (sender, ready) = sync_channel(READY);
        let errors = sender.clone();
        let work = move || {
            // an error means that no more are wanted
            let _ = minibatches.try_for_each(|minibatch| sender.send(minibatch));
        };
        let thread = Builder::new().name("minibatches".into()).spawn(work);
        // The channel is empty and has room, so this cannot block.
        let failed = |e| Error::Msg(format!("a thread could not be started: {e}"));
        let thread = thread.map_err(|e| errors.send(Err(failed(e)))).ok();
        Loader {
            ready: Some(ready),
            thread,
            stop,
            given: 0,
        }
    }
}

impl<X, Y> Loader<X, Y> {
    /// Stops the thread and waits at most a minibatch's time for its end; an error is its panic.
    fn close(&mut self) -> Result<()> {
        self.ready = None;
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|panic| {
            let Panicked(why) = Panicked::of(&*panic);
            Error::Msg(format!(
                "the thread that prepares minibatches panicked: {why}"
            ))
        })
    }
}

impl<X, Y> Iterator for Loader<X, Y> {
    type Item = Result<(X, Y)>;

    #[tracing::instrument(skip_all, name = "data")]
    fn next(&mut self) -> Option<Self::Item> {
        if self.stop.after(self.given) {
            let _ = self.close(); // what else it has made is not wanted
            return None;
        }
        match self.ready.as_ref()?.recv() {
            Ok(minibatch) => {
                self.given += 1;
                Some(minibatch)
            }
            // the thread has ended, after the last minibatch or by a panic
            Err(_) => self.close().err().map(Err),
        }
    }
}

impl<X, Y> Drop for Loader<X, Y> {
    fn drop(&mut self) {
        let _ = self.close(); // a panic cannot be reported here
    }
}

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    #[test]
    fn a_panic_of_the_thread_is_an_error_not_a_short_epoch() {
        let broken = (0..1).map(|_| panic::resume_unwind(Box::new("image 7 is broken")));
        let mut minibatches = Loader::<Tensor, Tensor>::start(broken, Stop::NEVER);
        let error = minibatches.next().unwrap().unwrap_err().to_string();
        let says = "the thread that prepares minibatches panicked: image 7 is broken";
        assert_eq!(error, says);
        assert!(minibatches.next().is_none());
    }
}
