//! Reports a failure to all processes. Each process has a connection to process 0 that is silent until a
//! failure; a thread reads from it. It breaks when a process dies, whatever the others are doing. Process 0
//! reports each failure to all others.
//!
//! After the first failure that reaches a process, all its calls return this failure. The process also shuts
//! the connections of all its channels, so that no call waits on one of them.

use super::line::{Line, Trouble};
use super::words;
use crate::Error;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a process with a broken connection waits for the reason.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long sending a failure may block on a process that does not read.
pub const TELLING: Duration = Duration::from_secs(1);

/// What the channels of a process share.
pub struct Post {
    pub rank: usize,
    pub size: usize,
    /// How long a call waits for the others.
    pub limit: Option<Duration>,
    state: Mutex<State>,
    failed: Condvar,
    /// The connections for failures: in process 0 to all others, in the others to process 0.
    alarms: Vec<Line>,
}

#[derive(Default)]
struct State {
    failure: Option<Error>,
    lines: Vec<Weak<TcpStream>>,
    /// The functions to call at the first failure.
    acts: Vec<Box<dyn FnOnce() + Send>>,
}

impl Post {
    /// Starts a reading thread for each of `alarms`. A blocked send on one fails after [`TELLING`].
    pub fn new(
        rank: usize,
        size: usize,
        limit: Option<Duration>,
        alarms: Vec<Line>,
    ) -> Result<Arc<Self>, Error> {
        let system = |error: std::io::Error| Error::World {
            rank,
            why: error.to_string(),
        };
        let post = Arc::new(Self {
            rank,
            size,
            limit,
            state: Mutex::default(),
            failed: Condvar::new(),
            alarms,
        });
        for alarm in &post.alarms {
            let (to, stream) = (alarm.to, alarm.stream().try_clone().map_err(system)?);
            let line = Line::new(to, stream, Some(TELLING)).map_err(system)?;
            let (post, thread) = (Arc::downgrade(&post), std::thread::Builder::new());
            let thread = thread.name(format!("process {to}"));
            let listens = thread.spawn(move || listen(&post, &line));
            listens.map_err(system)?;
        }
        Ok(post)
    }

    /// The failure, if there was one.
    pub fn check(&self) -> Result<(), Error> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// The error for processes that did not arrive within the limit.
    pub fn late(&self, missing: Vec<usize>) -> Error {
        let limit = self.limit.unwrap_or_default();
        Error::ProcessesLate { limit, missing }
    }

    /// Shuts the connection at the first failure, or now if there was one.
    pub fn keep(&self, line: &Line) {
        let mut state = self.lock();
        state.lines.retain(|line| line.strong_count() > 0);
        state.lines.push(Arc::downgrade(line.stream()));
        if state.failure.is_some() {
            let _ = line.stream().shutdown(Shutdown::Both);
        }
    }

    /// Calls `act` at the first failure, or now if there was one.
    #[cfg(any(test, feature = "nccl"))]
    pub fn when_it_fails(&self, act: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if state.failure.is_none() {
            return state.acts.push(Box::new(act));
        }
        drop(state);
        act();
    }

    /// Fails for all processes; returns the first failure.
    pub fn fail(&self, error: Error) -> Error {
        let mut state = self.lock();
        if let Some(first) = &state.failure {
            return first.clone();
        }
        state.failure = Some(error.clone());
        // under the lock: `check` returns the failure only after it was sent, and the process may then end
        let notice = notice(&error);
        for alarm in &self.alarms {
            let _ = alarm.send(&notice); // the process that failed may not read it
        }
        for line in state.lines.iter().filter_map(Weak::upgrade) {
            let _ = line.shutdown(Shutdown::Both); // it may be closed already
        }
        let acts = std::mem::take(&mut state.acts);
        drop(state);
        self.failed.notify_all();
        acts.into_iter().for_each(|act| act());
        error
    }

    /// Why the connection to a process broke: a failure reported within [`PATIENCE`], or the process left.
    pub fn broken(&self, rank: usize) -> Error {
        let state = self.lock();
        let waited = self
            .failed
            .wait_timeout_while(state, PATIENCE, |state| state.failure.is_none());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.fail(Error::ProcessLeft { rank })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Post {
    /// Reports that this process has ended its channels in order, unless it panics.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for alarm in &self.alarms {
            let _ = alarm.send(&GOODBYE); // the other process may have ended before
        }
    }
}

/// Waits for the notice of the other end, and fails unless it is a goodbye.
fn listen(post: &Weak<Post>, line: &Line) {
    let error = match heard(line) {
        Ok(None) => return,
        Ok(Some(error)) => error,
        Err(_) => Error::ProcessLeft { rank: line.to },
    };
    // none: this process has dropped all its channels
    if let Some(post) = post.upgrade() {
        post.fail(error);
    }
}

// A notice is three numbers (kind, rank, length), then `length` bytes.

const GOODBYE: [u8; 24] = [0; 24];
const LEFT: u64 = 1;
const LATE: u64 = 2;
const KIND: u64 = 3;
const LENGTH: u64 = 4;
const OTHER: u64 = 5;

/// The most bytes of a notice.
const MOST: u64 = 1 << 16;

pub fn notice(error: &Error) -> Vec<u8> {
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let (kind, rank, more): (u64, usize, Vec<u8>) = match error {
        Error::ProcessLeft { rank } => (LEFT, *rank, Vec::new()),
        Error::ProcessesLate { limit, missing } => {
            let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
            let missing = missing.iter().map(|rank| *rank as u64);
            let all: Vec<u64> = std::iter::once(limit).chain(missing).collect();
            (LATE, 0, numbers(&all))
        }
        Error::KindMismatch => (KIND, 0, Vec::new()),
        Error::LengthMismatch {
            rank,
            found,
            expected,
        } => (LENGTH, *rank, numbers(&[*found as u64, *expected as u64])),
        Error::World { rank, why } => (OTHER, *rank, why.clone().into_bytes()),
        other => (OTHER, 0, other.to_string().into_bytes()),
    };
    let more = &more[..more.len().min(MOST as usize)];
    let first = [kind, rank as u64, more.len() as u64].map(u64::to_le_bytes);
    [first.as_flattened(), more].concat()
}

/// Receives a notice; returns its error, or `None` for a goodbye.
fn heard(line: &Line) -> Result<Option<Error>, Trouble> {
    let mut first = [0; 24];
    line.receive(&mut first, None)?;
    let [kind, rank, length] = words(&first);
    let more = line.receive_vec(length.min(MOST), None)?;
    let rank = rank as usize;
    let numbers = more.as_chunks::<8>().0.iter();
    let numbers: Vec<u64> = numbers.map(|number| u64::from_le_bytes(*number)).collect();
    let error = match (kind, &numbers[..]) {
        (0, _) => return Ok(None),
        (LEFT, _) => Error::ProcessLeft { rank },
        (LATE, [limit, missing @ ..]) => Error::ProcessesLate {
            limit: Duration::from_nanos(*limit),
            missing: missing.iter().map(|rank| *rank as usize).collect(),
        },
        (KIND, _) => Error::KindMismatch,
        (LENGTH, [found, expected]) => Error::LengthMismatch {
            rank,
            found: *found as usize,
            expected: *expected as usize,
        },
        _ => Error::World {
            rank,
            why: String::from_utf8_lossy(&more).into_owned(),
        },
    };
    Ok(Some(error))
}
