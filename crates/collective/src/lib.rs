//! All-reduce among the replicas of one process: every member hands in a list of slices and
//! gets back, in the same slices, the sum over all members.
//!
//! The sum is taken in rank order, so it has the same bits every time. It is the book's star:
//! one hub adds the members up, and each copies the sum from there. A member that leaves (its
//! thread returned early or panicked) ends the call of the others with an error; nobody waits
//! for it for ever.
//!
//! This crate knows no gradient and no network, only slices.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Why an all-reduce did not take place. The group is of no use afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A member was dropped while others still wait for it.
    PeerLeft {
        /// The rank of the member that left.
        rank: usize,
    },
    /// A member's slices have other lengths than those of rank 0.
    LayoutMismatch {
        /// The rank of the member that differs.
        rank: usize,
        /// The lengths of its slices.
        found: Vec<usize>,
        /// The lengths of rank 0's slices.
        expected: Vec<usize>,
    },
    /// Not all members came within the time limit.
    TimedOut {
        /// The limit that [`group`] was given.
        limit: Duration,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PeerLeft { rank } => write!(f, "all-reduce: replica {rank} has left the group"),
            Error::LayoutMismatch {
                rank,
                found,
                expected,
            } => write!(
                f,
                "all-reduce: replica {rank} brought slices of {found:?} elements, \
                 replica 0 of {expected:?}"
            ),
            Error::TimedOut { limit } => {
                write!(f, "all-reduce: not all replicas came within {limit:?}")
            }
        }
    }
}

impl std::error::Error for Error {}

/// Makes the `k` members of a group, one for each thread; with a `timeout`, no call of
/// [`Member::all_reduce`] waits longer for the others.
///
/// ```
/// let members = collective::group(2, None);
/// let sums: Vec<[f32; 2]> = std::thread::scope(|s| {
///     let threads: Vec<_> = members
///         .into_iter()
///         .map(|mut member| {
///             s.spawn(move || {
///                 let mut data = [member.rank() as f32 + 1.0; 2]; // [1, 1] and [2, 2]
///                 member.all_reduce(&mut [&mut data]).unwrap();
///                 data
///             })
///         })
///         .collect();
///     threads.into_iter().map(|t| t.join().unwrap()).collect()
/// });
/// assert_eq!(sums, [[3.0, 3.0], [3.0, 3.0]]);
/// ```
///
/// # Panics
/// If `k` is 0.
pub fn group(k: usize, timeout: Option<Duration>) -> Vec<Member> {
    assert!(k > 0, "a group has at least one member");
    let hub = Arc::new(Hub {
        size: k,
        timeout,
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    (0..k)
        .map(|rank| Member {
            hub: hub.clone(),
            rank,
        })
        .collect()
}

/// One replica's seat in the group. Dropping it tells the others that it left.
#[derive(Debug)]
pub struct Member {
    hub: Arc<Hub>,
    rank: usize,
}

#[derive(Debug)]
struct Hub {
    size: usize,
    timeout: Option<Duration>,
    state: Mutex<State>,
    changed: Condvar,
}

/// One round: the members add in rank order, then all copy the sum; the last copy opens the
/// next round.
#[derive(Debug, Default)]
struct State {
    round: u64,
    added: usize,
    copied: usize,
    lengths: Vec<usize>,
    sum: Vec<f32>,
    failure: Option<Error>,
}

impl Member {
    /// This member's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many members the group has.
    pub fn size(&self) -> usize {
        self.hub.size
    }

    /// Replaces the contents of `data` by their sum over all members; returns when it has.
    ///
    /// Every member has to call it, with slices of the same lengths in the same order.
    ///
    /// # Errors
    /// [`Error`]: a member left, brought other lengths, or did not come in time. Then `data`
    /// keeps what it held.
    pub fn all_reduce(&mut self, data: &mut [&mut [f32]]) -> Result<(), Error> {
        let deadline = self.hub.timeout.map(|limit| Instant::now() + limit);
        let state = self.lock();
        let round = state.round + u64::from(state.copied > 0);
        let mut state = self.wait(state, deadline, |s| {
            s.round == round && s.added == self.rank
        })?;
        if let Err(error) = state.add(self.rank, data) {
            return Err(self.fail(&mut state, error));
        }
        self.hub.changed.notify_all();
        let mut state = self.wait(state, deadline, |s| s.added == self.hub.size)?;
        state.copy_to(data);
        if state.copied == self.hub.size {
            state.open_next_round();
            self.hub.changed.notify_all();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held is impossible but for a failed allocation; the others
        // then still learn from the dropped member that it left.
        self.hub.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until `ready`. What has come about counts more than a failure after it: a member
    /// that finished and left takes nothing from those who still copy.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Instant>,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Error> {
        while !ready(&state) {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            state = match left {
                None => self
                    .hub
                    .changed
                    .wait(state)
                    .unwrap_or_else(|e| e.into_inner()),
                Some(Duration::ZERO) => {
                    let limit = self.hub.timeout.unwrap_or_default();
                    return Err(self.fail(&mut state, Error::TimedOut { limit }));
                }
                Some(left) => {
                    let waited = self.hub.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
        Ok(state)
    }

    /// Records the first failure, which everybody then gets.
    fn fail(&self, state: &mut State, error: Error) -> Error {
        self.hub.changed.notify_all();
        state.failure.get_or_insert(error).clone()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let rank = self.rank;
        self.fail(&mut self.lock(), Error::PeerLeft { rank });
    }
}

impl State {
    fn add(&mut self, rank: usize, data: &[&mut [f32]]) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let lengths: Vec<usize> = data.iter().map(|d| d.len()).collect();
        if rank == 0 {
            self.sum.clear();
            data.iter().for_each(|d| self.sum.extend_from_slice(d));
            self.lengths = lengths;
        } else if lengths != self.lengths {
            return Err(Error::LayoutMismatch {
                rank,
                found: lengths,
                expected: self.lengths.clone(),
            });
        } else {
            let data = data.iter().flat_map(|d| d.iter());
            self.sum.iter_mut().zip(data).for_each(|(s, d)| *s += d);
        }
        self.added += 1;
        Ok(())
    }

    fn copy_to(&mut self, data: &mut [&mut [f32]]) {
        let mut sum = self.sum.as_slice();
        for d in data {
            let (head, tail) = sum.split_at(d.len());
            d.copy_from_slice(head);
            sum = tail;
        }
        self.copied += 1;
    }

    fn open_next_round(&mut self) {
        self.round += 1;
        self.added = 0;
        self.copied = 0;
    }
}

#[cfg(test)]
mod tests;
