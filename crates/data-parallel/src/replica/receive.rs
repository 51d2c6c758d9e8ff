//! Lets the threads of replicas wait for work. This module knows nothing of the work.

use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long a thread that waits for work offers its core to other threads before it sleeps.
const PATIENCE: Duration = Duration::from_micros(50);

/// Waits for what comes next. It looks for it a while before it sleeps, because waking it takes as long as a small step.
pub(crate) fn receive<T>(inbox: &Receiver<T>) -> Result<T, RecvError> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        match inbox.try_recv() {
            Ok(came) => return Ok(came),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => yield_now(),
        }
    }
    inbox.recv()
}
