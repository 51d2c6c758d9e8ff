//! All-reduce among the replicas of one process: every member hands in a slice, or a tensor, and gets
//! the sum over all members.
//!
//! The sum is taken in rank order, so it has the same bits every time. It is the book's star, in
//! pieces: the hub adds up one piece of the members' slices after the other, so that all members
//! add at the same time, each to another piece. A member that leaves (its thread returned early or
//! panicked) ends the call of the others with an error; nobody waits for it for ever.
//!
//! This crate knows no gradient and no network, only slices and tensors.

mod tensors;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Why an all-reduce did not take place. The group is of no use afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A member was dropped while others still wait for it.
    PeerLeft {
        /// The rank of the member that left.
        rank: usize,
    },
    /// A member's slice has another length than that of rank 0.
    LengthMismatch {
        /// The rank of the member that differs.
        rank: usize,
        /// The length of its slice.
        found: usize,
        /// The length of rank 0's slice.
        expected: usize,
    },
    /// A member's device could not copy or add.
    Device {
        /// The rank of the member.
        rank: usize,
        /// What it said.
        why: String,
    },
    /// A member brought another kind of item than this one.
    KindMismatch,
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
            Error::LengthMismatch {
                rank,
                found,
                expected,
            } => write!(
                f,
                "all-reduce: replica {rank} brought {found} elements, replica 0 {expected}"
            ),
            Error::Device { rank, why } => write!(f, "all-reduce: replica {rank}: {why}"),
            Error::KindMismatch => write!(f, "the replicas brought items of different kinds"),
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
///                 member.all_reduce(&mut data).unwrap();
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
        sums: (0..PIECES * k).map(|_| RwLock::default()).collect(),
        state: Mutex::new(State::new(PIECES * k, k)),
        changed: Condvar::new(),
    });
    (0..k)
        .map(|rank| Member {
            hub: hub.clone(),
            rank,
        })
        .collect()
}

/// Pieces for each member: more keep all members busy while the first and the last pieces are
/// added, fewer need fewer locks.
const PIECES: usize = 4;

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
    /// The pieces of the sum. Who may add or read is said by the state; the locks never wait.
    sums: Vec<RwLock<Vec<f32>>>,
    state: Mutex<State>,
    changed: Condvar,
}

/// One round: the members add each piece in rank order, then all read it; the last reader of the
/// last piece opens the next round.
#[derive(Debug)]
struct State {
    round: u64,
    /// How many members have added each piece.
    added: Vec<usize>,
    /// What each member has brought to be gathered.
    brought: Vec<Option<Box<dyn Any + Send>>>,
    /// How many members have read everything.
    read: usize,
    len: usize,
    failure: Option<Error>,
}

/// One call of a member: its round, and until when it waits.
struct Call {
    round: u64,
    deadline: Option<Instant>,
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
    /// Every member has to call it, with a slice of the same length.
    ///
    /// # Errors
    /// [`Error`]: a member left, brought another length, or did not come in time. Then `data` keeps
    /// what it held.
    pub fn all_reduce(&mut self, data: &mut [f32]) -> Result<(), Error> {
        let call = self.add(data)?;
        self.read(call, |start, sum| {
            data[start..start + sum.len()].copy_from_slice(sum);
        })
    }

    /// Calls `with(start, sum)` with the pieces of the sum of `data` over all members, from first to
    /// last, instead of writing them back: for whoever needs each element of the sum once.
    ///
    /// Members may mix calls of this and of [`all_reduce`](Self::all_reduce).
    ///
    /// ```
    /// let mut member = collective::group(1, None).remove(0);
    /// let mut param = [10.0, 20.0];
    /// member.all_reduce_with(&[1.0, 2.0], |start, sum| {
    ///     param[start..].iter_mut().zip(sum).for_each(|(p, g)| *p -= g);
    /// })?;
    /// assert_eq!(param, [9.0, 18.0]);
    /// # Ok::<(), collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); then `with` was not called.
    pub fn all_reduce_with(
        &mut self,
        data: &[f32],
        with: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let call = self.add(data)?;
        self.read(call, with)
    }

    /// What every member has brought, in rank order.
    ///
    /// ```
    /// let mut member = collective::group(1, None).remove(0);
    /// assert_eq!(member.all_gather("mine")?, ["mine"]);
    /// # Ok::<(), collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, brought an item of another type, or did not come in time.
    pub fn all_gather<T: Clone + Send + 'static>(&mut self, item: T) -> Result<Vec<T>, Error> {
        let call = self.call();
        let mut state = self.wait(&call, |_| true)?;
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        state.brought[self.rank] = Some(Box::new(item));
        drop(state);
        self.hub.changed.notify_all();
        let state = self.wait(&call, |s| s.brought.iter().all(Option::is_some))?;
        let items = state
            .brought
            .iter()
            .flatten()
            .map(|item| item.downcast_ref::<T>().cloned());
        let items = items.collect::<Option<Vec<T>>>();
        self.has_read(state);
        items.ok_or(Error::KindMismatch)
    }

    /// A call that begins now.
    fn call(&self) -> Call {
        let state = self.lock();
        Call {
            round: state.round + u64::from(state.read > 0),
            deadline: self.hub.timeout.map(|limit| Instant::now() + limit),
        }
    }

    /// Adds `data` to the sums, piece by piece.
    fn add(&self, data: &[f32]) -> Result<Call, Error> {
        let call = self.call();
        for (i, sum) in self.hub.sums.iter().enumerate() {
            let mut state = self.wait(&call, |s| s.added[i] == self.rank)?;
            if let Err(error) = state.check(self.rank, data.len()) {
                return Err(self.fail(&mut state, error));
            }
            drop(state);
            let mut sum = sum.write().unwrap_or_else(PoisonError::into_inner);
            let data = &data[self.hub.piece(i, data.len())];
            if self.rank == 0 {
                sum.clear();
                sum.extend_from_slice(data);
            } else {
                sum.iter_mut().zip(data).for_each(|(s, d)| *s += d);
            }
            drop(sum);
            self.lock().added[i] += 1;
            self.hub.changed.notify_all();
        }
        Ok(call)
    }

    /// Hands the complete sum to `with`, once all have added everything.
    fn read(&self, call: Call, mut with: impl FnMut(usize, &[f32])) -> Result<(), Error> {
        drop(self.wait(&call, |s| s.added.iter().all(|n| *n == self.hub.size))?);
        let leaves = Leaves(self); // if `with` panics, or the others would wait for the reader
        let mut start = 0;
        for sum in &self.hub.sums {
            let sum = sum.read().unwrap_or_else(PoisonError::into_inner);
            with(start, &sum);
            start += sum.len();
        }
        std::mem::forget(leaves);
        self.has_read(self.lock());
        Ok(())
    }

    /// Counts this member among those who have read; the last one opens the next round.
    fn has_read(&self, mut state: MutexGuard<'_, State>) {
        state.read += 1;
        if state.read == self.hub.size {
            state.open_next_round();
            self.hub.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held is impossible but for a failed allocation; the others
        // then still learn from the dropped member that it left.
        self.hub
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is the call's round and `ready`. What has come about counts more than a
    /// failure after it: a member that finished and left takes nothing from those who still read.
    fn wait(
        &self,
        call: &Call,
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.lock();
        while !(state.round == call.round && ready(&state)) {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let left = call
                .deadline
                .map(|d| d.saturating_duration_since(Instant::now()));
            let changed = &self.hub.changed;
            state = match left {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let limit = self.hub.timeout.unwrap_or_default();
                    return Err(self.fail(&mut state, Error::TimedOut { limit }));
                }
                Some(left) => {
                    let waited = changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
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
        Leaves(self);
    }
}

/// Dropped, it tells the others that its member has left.
struct Leaves<'a>(&'a Member);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        let rank = self.0.rank;
        self.0.fail(&mut self.0.lock(), Error::PeerLeft { rank });
    }
}

impl Hub {
    /// The elements of a piece.
    fn piece(&self, i: usize, len: usize) -> Range<usize> {
        let pieces = self.sums.len();
        i * len / pieces..(i + 1) * len / pieces
    }
}

impl State {
    fn new(pieces: usize, members: usize) -> Self {
        Self {
            round: 0,
            added: vec![0; pieces],
            brought: (0..members).map(|_| None).collect(),
            read: 0,
            len: 0,
            failure: None,
        }
    }

    /// Rank 0 says how long the slices are; a failure ends everything.
    fn check(&mut self, rank: usize, len: usize) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if rank == 0 {
            self.len = len;
        }
        if len != self.len {
            return Err(Error::LengthMismatch {
                rank,
                found: len,
                expected: self.len,
            });
        }
        Ok(())
    }

    fn open_next_round(&mut self) {
        self.round += 1;
        self.added.fill(0);
        self.brought.fill_with(|| None);
        self.read = 0;
    }
}

#[cfg(test)]
mod tests;
