//! All-reduce among the replicas of one process: every member brings its values and gets the sum over
//! all members. In the book it is `allreduce`, and the exercise that asks for a better one.
//!
//! There are four ways ([`Algorithm`]), each written down as a [`Schedule`] of rounds, which both the
//! sums of vectors in shared memory and those of tensors on devices follow, and from which the
//! [cost model](cost) reads what an all-reduce takes. Each takes its sums in an order that never
//! changes, so that they have the same bits every time.
//!
//! A member that leaves (its thread returned early or panicked), brings another length or does not
//! come in time ends the call of the others with an error that names it. Nobody gets a part of a sum.
//!
//! This crate knows no gradient and no network, only vectors and tensors.

mod algorithm;
pub mod cost;
mod error;
mod gate;
mod shared;
mod tensors;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use algorithm::{Algorithm, Schedule, Sum};
pub use error::Error;

use cost::{Link, Medium};
use gate::{Deadline, Gate};
use shared::Slots;

/// How a group sums, and how long its members wait for each other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which way.
    pub algorithm: Algorithm,
    /// No call waits longer for the others; without a limit, for ever.
    pub timeout: Option<Duration>,
    /// Takes at least as long as it would over such links: to see what a slower network does.
    pub link: Option<Link>,
}

/// Makes the `k` members of a group, one for each thread.
///
/// ```
/// let members = collective::group(2, collective::Options::default());
/// let sums: Vec<Vec<f32>> = std::thread::scope(|s| {
///     let threads: Vec<_> = members
///         .into_iter()
///         .map(|mut member| {
///             s.spawn(move || {
///                 let data = vec![member.rank() as f32 + 1.0; 2]; // [1, 1] and [2, 2]
///                 member.all_reduce(data).unwrap()
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
pub fn group(k: usize, options: Options) -> Vec<Member> {
    assert!(k > 0, "a group has at least one member");
    let group = Arc::new(Group {
        options,
        gate: Gate::new(k),
        slots: Slots::new(k),
        items: (0..k).map(|_| Mutex::default()).collect(),
    });
    (0..k)
        .map(|rank| Member {
            group: group.clone(),
            rank,
            size: k,
            schedules: Vec::new(),
        })
        .collect()
}

/// One replica's seat in the group. Dropping it tells the others that it left.
pub struct Member {
    group: Arc<Group>,
    rank: usize,
    size: usize,
    /// Those that were needed so far.
    schedules: Vec<(Algorithm, Medium, Arc<Schedule>)>,
}

/// What the members share.
struct Group {
    options: Options,
    gate: Gate,
    slots: Slots,
    items: Vec<Mutex<Option<Box<dyn Any + Send>>>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} of {}", self.rank, self.size)
    }
}

impl Member {
    /// This member's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many members the group has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What every member has brought, in rank order.
    ///
    /// ```
    /// let mut member = collective::group(1, Default::default()).remove(0);
    /// assert_eq!(member.all_gather("mine")?, ["mine"]);
    /// # Ok::<(), collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, brought an item of another type, or did not come in time.
    pub fn all_gather<T: Clone + Send + 'static>(&mut self, item: T) -> Result<Vec<T>, Error> {
        let deadline = self.deadline();
        let Group { gate, items, .. } = &*self.group;
        let lock = |rank: usize| items[rank].lock().unwrap_or_else(PoisonError::into_inner);
        *lock(self.rank) = Some(Box::new(item));
        gate.pass(self.rank, deadline)?;
        let item = |rank| lock(rank).as_ref()?.downcast_ref::<T>().cloned();
        let all: Option<Vec<T>> = (0..self.size).map(item).collect();
        gate.pass(self.rank, deadline)?;
        *lock(self.rank) = None; // it may hold a GPU's memory
        all.ok_or(Error::KindMismatch)
    }

    /// Waits until all members have come.
    ///
    /// # Errors
    /// [`Error`]: a member left, or did not come in time.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.group.gate.pass(self.rank, self.deadline())
    }

    fn deadline(&self) -> Option<Deadline> {
        self.group.options.timeout.map(Deadline::after)
    }

    /// The way to sum `len` elements.
    fn schedule(&mut self, medium: Medium, len: usize) -> Arc<Schedule> {
        let algorithm = match self.group.options.algorithm {
            Algorithm::Auto => cost::fastest(medium, self.size, len * size_of::<f32>()),
            chosen => chosen,
        };
        let known = self.schedules.iter();
        let mut known = known.filter(|(a, m, _)| (*a, *m) == (algorithm, medium));
        if let Some((_, _, schedule)) = known.next() {
            return schedule.clone();
        }
        let schedule = Arc::new(medium.schedule(algorithm, self.size));
        self.schedules.push((algorithm, medium, schedule.clone()));
        schedule
    }

    /// Who differs from rank 0, by the lengths of all.
    fn length_mismatch(&self, len: impl Fn(usize) -> usize) -> Error {
        let expected = len(0);
        let rank = (0..self.size)
            .find(|rank| len(*rank) != expected)
            .unwrap_or(0);
        let found = len(rank);
        self.group.gate.fail(Error::LengthMismatch {
            rank,
            found,
            expected,
        })
    }

    /// Waits until the sums would have come over the link that the options name.
    fn over_the_link(&self, schedule: &Schedule, len: usize, start: Instant) {
        if let Some(link) = &self.group.options.link {
            let bytes = len * size_of::<f32>();
            let end = start + link.time(schedule.algorithm, schedule.members, bytes);
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.gate.fail(Error::PeerLeft { rank: self.rank });
    }
}

#[cfg(test)]
mod tests;
