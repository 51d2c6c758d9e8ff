//! A reusable barrier for the members of a group. Either all members pass it, or it fails for all of them,
//! for ever. The error names the members that left or did not arrive in time.

use crate::error::Error;
use devices::lock;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A time limit for waiting, counted in naps. It does not count the time in which the whole process was
/// stopped, as by Ctrl-Z.
///
/// ```
/// use std::time::Duration;
/// let deadline = data_parallel_collective::Deadline::after(Duration::from_millis(1));
/// while !deadline.is_over() {
///     deadline.nap(std::thread::sleep);
/// }
/// ```
#[derive(Debug)]
pub struct Deadline {
    limit: Duration,
    left: Cell<Duration>,
}

/// The longest nap.
const NAP: Duration = Duration::from_millis(100);

impl Deadline {
    /// A deadline after `limit` of waiting.
    pub fn after(limit: Duration) -> Self {
        let left = Cell::new(limit);
        Self { limit, left }
    }

    /// True if the time is up.
    pub fn is_over(&self) -> bool {
        self.left.get().is_zero()
    }

    /// Calls `wait` with the longest time that it may take, and counts the time that it took.
    pub fn nap<T>(&self, wait: impl FnOnce(Duration) -> T) -> T {
        let start = Instant::now();
        let longest = self.left.get().min(NAP);
        let waited = wait(longest);
        let took = start.elapsed().min(longest);
        self.left.set(self.left.get().saturating_sub(took));
        waited
    }
}

/// Set in [`Barrier::word`] once the barrier has failed.
const FAILED: u64 = 1 << 63;
/// The lower bits of [`Barrier::word`] count the waiting members, the upper ones how often the barrier opened.
const OPENED: u64 = 1 << 16;
const WAITING: u64 = OPENED - 1;
/// The most members of a barrier: the last one to arrive is not counted as waiting.
pub(crate) const MOST_MEMBERS: usize = OPENED as usize;

#[derive(Debug)]
pub(crate) struct Barrier {
    /// The first member's rank among those of all processes; used only in errors.
    first: usize,
    size: usize,
    word: AtomicU64,
    /// Number of arrivals of each member; used only in errors.
    came: Vec<Padded>,
    sleepers: AtomicUsize,
    failure: Mutex<Option<Error>>,
    changed: Condvar,
    /// Number of polls of a waiting member before it sleeps: by spinning, then by yielding its core.
    spins: u32,
    yields: u32,
}

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Padded(AtomicU64);

impl Barrier {
    /// A barrier for `size` members; their ranks in errors begin with `first`.
    pub fn new(first: usize, size: usize) -> Self {
        // Members with a core each look longer: to wake up from sleep takes fifty times as long as to pass. But the
        // system may have put two of them on one core, so they also yield. Where members share cores, a missing
        // member needs the core.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (spins, yields) = if size <= cores { (200, 100) } else { (20, 20) };
        Self {
            first,
            size,
            word: AtomicU64::new(0),
            came: (0..size).map(|_| Padded::default()).collect(),
            sleepers: AtomicUsize::new(0),
            failure: Mutex::new(None),
            changed: Condvar::new(),
            spins,
            yields,
        }
    }

    /// The failure, if there was one.
    pub fn check(&self) -> Result<(), Error> {
        match self.word.load(SeqCst) & FAILED {
            0 => Ok(()),
            _ => Err(self.failure()),
        }
    }

    /// Waits until all members have arrived. All members can then read what any of them wrote before.
    pub fn wait(&self, rank: usize, deadline: Option<&Deadline>) -> Result<(), Error> {
        self.came[rank].0.fetch_add(1, SeqCst);
        match self.arrive()? {
            None => Ok(()), // the last one
            Some(opened) => self.wait_until_open(opened, deadline),
        }
    }

    /// Waits until the barrier opens or fails; `opened` is how often it had opened before.
    #[tracing::instrument(skip_all, name = "wait")]
    fn wait_until_open(&self, opened: u64, deadline: Option<&Deadline>) -> Result<(), Error> {
        for look in 0..self.spins + self.yields {
            match self.look(opened) {
                Some(true) => return Ok(()),
                Some(false) => return Err(self.failure()),
                None if look < self.spins => std::hint::spin_loop(),
                None => std::thread::yield_now(),
            }
        }
        self.sleepers.fetch_add(1, SeqCst);
        let done = self.sleep(opened, deadline);
        self.sleepers.fetch_sub(1, SeqCst);
        done
    }

    /// Counts a member; the last one opens the barrier and gets `None`. The others must wait, and get how
    /// often the barrier had opened before.
    fn arrive(&self) -> Result<Option<u64>, Error> {
        let mut word = self.word.load(SeqCst);
        loop {
            if word & FAILED != 0 {
                return Err(self.failure());
            }
            let last = word & WAITING == self.size as u64 - 1;
            let next = if last {
                (word & !WAITING) + OPENED
            } else {
                word + 1
            };
            match self.word.compare_exchange_weak(word, next, SeqCst, SeqCst) {
                Ok(_) if last => {
                    self.wake();
                    return Ok(None);
                }
                Ok(_) => return Ok(Some(word & !WAITING)),
                Err(now) => word = now,
            }
        }
    }

    /// `Some(true)` if the barrier has opened since it had opened `opened` times, `Some(false)` if it has failed. If
    /// both, it has opened: a member that passes and then leaves does not fail the others' pass.
    fn look(&self, opened: u64) -> Option<bool> {
        let word = self.word.load(SeqCst);
        let has_opened = word & !WAITING & !FAILED != opened;
        (has_opened || word & FAILED != 0).then_some(has_opened)
    }

    fn sleep(&self, opened: u64, deadline: Option<&Deadline>) -> Result<(), Error> {
        let mut failure = lock(&self.failure);
        loop {
            let word = self.word.load(SeqCst);
            match self.look(opened) {
                Some(true) => return Ok(()),
                Some(false) => {
                    return Err(failure.clone().expect("a failed barrier has a failure"));
                }
                None => (),
            }
            let Some(deadline) = deadline else {
                let woken = self.changed.wait(failure);
                failure = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let missing = self.missing();
            if deadline.is_over() && !missing.is_empty() {
                let limit = deadline.limit;
                let error = Error::TimedOut { limit, missing };
                let failed = word | FAILED;
                let fails = self.word.compare_exchange(word, failed, SeqCst, SeqCst);
                if fails.is_ok() {
                    failure.get_or_insert(error);
                    self.changed.notify_all();
                }
                continue; // failed, or opened at the last moment
            }
            let woken = deadline.nap(|time| self.changed.wait_timeout(failure, time));
            failure = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The ranks of the members that arrived less often than others.
    fn missing(&self) -> Vec<usize> {
        let came: Vec<u64> = self.came.iter().map(|c| c.0.load(SeqCst)).collect();
        let most = came.iter().max().copied().unwrap_or(0);
        (0..self.size)
            .filter(|rank| came[*rank] < most)
            .map(|rank| self.first + rank)
            .collect()
    }

    /// Fails all present and later waits; returns the first failure.
    pub fn fail(&self, error: Error) -> Error {
        let mut failure = lock(&self.failure);
        let first = failure.get_or_insert(error).clone();
        // under the lock, so that no member sees one change without the other
        self.word.fetch_or(FAILED, SeqCst);
        self.changed.notify_all();
        first
    }

    /// The failure; call it only after [`FAILED`] is set.
    fn failure(&self) -> Error {
        let failure = lock(&self.failure).clone();
        failure.expect("a failed barrier has a failure")
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.failure)); // waits for members that have checked and are about to sleep
            self.changed.notify_all();
        }
    }
}
