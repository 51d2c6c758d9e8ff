//! The members of a group: they meet, exchange items and sum a few values. How they sum vectors is in
//! `vectors`, and tensors in `tensors`.

use crate::algorithm::{Algorithm, Schedule};
use crate::barrier::{self, Barrier, Deadline};
use crate::cost::Link;
use crate::error::Error;
#[cfg(feature = "nccl")]
use crate::nccl::Nccl;
use crate::order::SumOrder;
use crate::process_group::{self, ProcessGroup};
use crate::shared_vectors::SharedVectors;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Options of a group: the way it sums, and the time its members wait for each other.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupOptions {
    /// The algorithm of a group that has no schedule of its own.
    pub algorithm: Algorithm,
    /// The longest time that a member waits for the others; `None`: without a limit.
    pub timeout: Option<Duration>,
    /// Simulates a slower network between the members of a process: a sum takes at least as long as over such links.
    /// NCCL's sums do not.
    pub link: Option<Link>,
}

/// Makes the `k` members of a group, one for each thread.
///
/// ```
/// let members = data_parallel_collective::group(2, data_parallel_collective::GroupOptions::default());
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
/// If `k` is 0, or more than 65536.
pub fn group(k: usize, options: GroupOptions) -> Vec<Member> {
    members(None, k, options)
}

/// Like [`group`], for members in all processes of a process group. Every process makes this call and gets its own
/// `k` members; another process may have another number. The algorithm decides only the [order](SumOrder) of the sums:
/// star, or else the one of owner and tree.
///
/// # Errors
/// [`Error::Process`]: the processes cannot reach each other. [`Error::KindMismatch`]: another process has another order.
///
/// # Panics
/// If `k` is 0, or more than 65536.
pub fn group_in(
    mut all: Box<dyn ProcessGroup>,
    k: usize,
    options: GroupOptions,
) -> Result<Vec<Member>, Error> {
    let in_ranks = u64::from(options.algorithm == Algorithm::Star);
    let messages = all.all_gather(&process_group::pack(&[vec![k as u64, in_ranks]]))?;
    let numbers = messages.iter().map(|message| {
        match process_group::unpack(message)?.concat()[..] {
            [k, order] if order == in_ranks => Some(k as usize),
            _ => None, // it would add in another order
        }
    });
    let numbers: Option<Vec<usize>> = numbers.collect();
    let order = SumOrder::new(&numbers.ok_or(Error::KindMismatch)?, options.algorithm);
    Ok(members(Some((all, order)), k, options))
}

/// Like [`group`], with as many members as the schedule has. [`Member::all_reduce`] and [`Member::all_reduce_finite`]
/// follow it. [`Member::reduce_scatter`], and sums of tensors on devices, follow the algorithm of the options, so their
/// bits may differ.
///
/// ```
/// use data_parallel_collective::{Schedule, Sum, group_by};
/// // member 1 sums, and member 0 copies
/// let rounds = vec![vec![Sum::new(1, vec![0, 1], 0)], vec![Sum::new(0, vec![1], 0)]];
/// let members = group_by(Schedule { members: 2, chunks: 1, rounds }, Default::default())?;
/// let sums: Vec<Vec<f32>> = std::thread::scope(|s| {
///     let threads = members.into_iter().map(|mut member| s.spawn(move || member.all_reduce(vec![2.0]).unwrap()));
///     let threads: Vec<_> = threads.collect();
///     threads.into_iter().map(|t| t.join().unwrap()).collect()
/// });
/// assert_eq!(sums, [[4.0], [4.0]]);
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// If the schedule is no all-reduce: the sentence of [`Schedule::check`].
///
/// # Panics
/// If it has more than 65536 members.
pub fn group_by(schedule: Schedule, options: GroupOptions) -> Result<Vec<Member>, String> {
    schedule.check()?;
    let mut members = members(None, schedule.members, options);
    let schedule = Arc::new(schedule);
    for member in &mut members {
        member.own = Some(schedule.clone());
    }
    Ok(members)
}

fn members(
    all: Option<(Box<dyn ProcessGroup>, SumOrder)>,
    k: usize,
    options: GroupOptions,
) -> Vec<Member> {
    assert!(
        (1..=barrier::MOST_MEMBERS).contains(&k),
        "a group of {k} members; 1 to {} are possible",
        barrier::MOST_MEMBERS
    );
    let (mut all, order) = all.unzip();
    let process = all.as_ref().map_or(0, |all| all.rank());
    let first = order
        .as_ref()
        .map_or(0, |order| order.first_member(process));
    let group = Arc::new(Group {
        options,
        first,
        size: order.as_ref().map_or(k, SumOrder::size),
        process,
        order,
        barrier: Barrier::new(first, k),
        vectors: SharedVectors::new(k),
        finite: (0..k).map(|_| AtomicBool::default()).collect(),
        items: (0..k).map(|_| Mutex::default()).collect(),
    });
    (0..k)
        .map(|local| Member {
            group: group.clone(),
            local,
            locals: k,
            process_group: all.take(),
            own: None,
            schedules: HashMap::new(),
            #[cfg(feature = "nccl")]
            nccl: None,
        })
        .collect()
}

/// One replica's membership of a group. Dropping it ends the calls of its process's other members with an
/// error.
pub struct Member {
    pub(crate) group: Arc<Group>,
    /// Its number among the members of its process.
    pub(crate) local: usize,
    /// Number of members in its process.
    pub(crate) locals: usize,
    /// Only in member 0 of a process, if there is a process group.
    process_group: Option<Box<dyn ProcessGroup>>,
    /// The schedule of its vectors, if the group was made by one.
    own: Option<Arc<Schedule>>,
    /// The schedules used so far, by whether the data is on devices and the number of elements.
    schedules: HashMap<(bool, usize), Arc<Schedule>>,
    /// From its first sum with NCCL on.
    #[cfg(feature = "nccl")]
    pub(crate) nccl: Option<Nccl>,
}

/// Shared by the members of a process.
pub(crate) struct Group {
    pub(crate) options: GroupOptions,
    /// The rank of its first member.
    first: usize,
    /// The number of members in all processes.
    size: usize,
    /// The number of its process.
    pub(crate) process: usize,
    /// The order in which the processes sum, if there is a process group.
    pub(crate) order: Option<SumOrder>,
    pub(crate) barrier: Barrier,
    pub(crate) vectors: SharedVectors,
    /// For each member, true if the sums that it added are finite: between its sums and its next call.
    pub(crate) finite: Vec<AtomicBool>,
    items: Vec<Mutex<Option<Box<dyn Any + Send>>>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} of {}", self.rank(), self.size())
    }
}

impl Member {
    /// This member's number, from 0. Process 0 has the lowest ranks, process 1 the next ones.
    pub fn rank(&self) -> usize {
        self.group.first + self.local
    }

    /// The number of members of the group, in all processes together.
    pub fn size(&self) -> usize {
        self.group.size
    }

    /// Sums a few values over all members, in rank order; all members get the same bits.
    ///
    /// ```
    /// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
    /// let mut values = [0.25, 3.0];
    /// member.sum(&mut values)?;
    /// assert_eq!(values, [0.25, 3.0]);
    /// # Ok::<(), data_parallel_collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, passed another number of values, or did not arrive in time.
    pub fn sum(&mut self, values: &mut [f64]) -> Result<(), Error> {
        let mut all = self.all_gather(process_group::bits(values))?;
        if self.group.order.is_some() {
            all = self.all_of_all_processes(all)?;
        }
        let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
        self.same(&lengths)?;
        values
            .copy_from_slice(&process_group::sum_in_order(&all).expect("all have the same length"));
        Ok(())
    }

    /// The items of all members of this process, in rank order.
    ///
    /// ```
    /// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
    /// assert_eq!(member.all_gather("mine")?, ["mine"]);
    /// # Ok::<(), data_parallel_collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, passed an item of another type, or did not arrive in time.
    pub fn all_gather<T: Clone + Send + 'static>(&mut self, item: T) -> Result<Vec<T>, Error> {
        self.gather(item, self.deadline().as_ref())
    }

    fn gather<T: Clone + Send + 'static>(
        &self,
        item: T,
        deadline: Option<&Deadline>,
    ) -> Result<Vec<T>, Error> {
        let Group { barrier, items, .. } = &*self.group;
        let lock = |rank: usize| items[rank].lock().unwrap_or_else(PoisonError::into_inner);
        *lock(self.local) = Some(Box::new(item));
        barrier.wait(self.local, deadline)?;
        let item = |rank| lock(rank).as_ref()?.downcast_ref::<T>().cloned();
        let all: Option<Vec<T>> = (0..self.locals).map(item).collect();
        barrier.wait(self.local, deadline)?;
        *lock(self.local) = None; // the item may hold a GPU's memory
        all.ok_or(Error::KindMismatch)
    }

    /// Waits until all members of this process have arrived.
    ///
    /// # Errors
    /// [`Error`]: a member left, or did not arrive in time.
    pub fn barrier(&mut self) -> Result<(), Error> {
        let deadline = self.deadline();
        self.group.barrier.wait(self.local, deadline.as_ref())
    }

    pub(crate) fn deadline(&self) -> Option<Deadline> {
        self.group.options.timeout.map(Deadline::after)
    }

    /// The schedule for `len` elements; it is made once.
    pub(crate) fn schedule(&mut self, on_devices: bool, len: usize) -> Arc<Schedule> {
        if let (false, Some(own)) = (on_devices, &self.own) {
            return own.clone();
        }
        let algorithm = self.group.options.algorithm;
        let k = self.locals;
        let group = self.group.clone();
        let make = || {
            if let Some(order) = &group.order {
                return Arc::new(order.inside(group.process, if on_devices { 1 } else { k }));
            }
            let algorithm = algorithm.chosen(on_devices, k, len * size_of::<f32>());
            if on_devices {
                Arc::new(Schedule::new(algorithm, k))
            } else {
                Arc::new(Schedule::in_shared_memory(algorithm, k))
            }
        };
        self.schedules
            .entry((on_devices, len))
            .or_insert_with(make)
            .clone()
    }

    /// Member 0 calls `speak` with the process group; all members of this process get the answer.
    pub(crate) fn over_all_processes<T: Clone + Send + 'static>(
        &mut self,
        speak: impl FnOnce(&mut (dyn ProcessGroup + 'static)) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let answer = self
            .process_group
            .as_deref_mut()
            .map(speak)
            .transpose()
            .map_err(|error| self.group.barrier.fail(error))?;
        // without a limit: member 0 waits for other processes, and the process group has its own limit
        let first = self.gather(answer, None)?.swap_remove(0);
        Ok(first.expect("member 0 has the process group"))
    }

    /// The vectors of all processes.
    pub(crate) fn all_of_all_processes(
        &mut self,
        vectors: Vec<Vec<u64>>,
    ) -> Result<Vec<Vec<u64>>, Error> {
        let messages =
            self.over_all_processes(|group| group.all_gather(&process_group::pack(&vectors)))?;
        let all: Option<Vec<_>> = messages.iter().map(|m| process_group::unpack(m)).collect();
        let all = all.ok_or_else(|| self.group.barrier.fail(Error::KindMismatch))?;
        Ok(all.concat())
    }

    /// Like [`same_in_all_processes`](Self::same_in_all_processes), before a sum of the process group: with one member
    /// in each process, it compares the lengths itself.
    pub(crate) fn same_length(&mut self, lengths: Vec<usize>) -> Result<(), Error> {
        let order = self.group.order.as_ref();
        let processes = order.map_or(1, |order| order.vectors.len());
        if self.size() == processes {
            Ok(())
        } else {
            self.same_in_all_processes(lengths)
        }
    }

    /// Fails for all members of all processes unless their lengths are the same; `lengths` are those of this process.
    pub(crate) fn same_in_all_processes(&mut self, mut lengths: Vec<usize>) -> Result<(), Error> {
        if self.group.order.is_some() {
            let mine = lengths.iter().map(|length| *length as u64).collect();
            let all = self.all_of_all_processes(vec![mine])?.concat();
            lengths = all.into_iter().map(|length| length as usize).collect();
        }
        self.same(&lengths)
    }

    /// Fails for all members if a length differs from that of rank 0.
    fn same(&self, lengths: &[usize]) -> Result<(), Error> {
        let expected = lengths[0];
        let different = lengths.iter().position(|length| *length != expected);
        let Some(rank) = different else { return Ok(()) };
        Err(self.group.barrier.fail(Error::LengthMismatch {
            rank,
            found: lengths[rank],
            expected,
        }))
    }

    /// Waits until the sums would have arrived over the link of the options.
    pub(crate) fn over_the_link(&self, schedule: &Schedule, len: usize, start: Instant) {
        if let Some(link) = &self.group.options.link {
            let bytes = len * size_of::<f32>();
            let end = start + schedule.time(bytes, |_, _| *link);
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let rank = self.rank();
        self.group.barrier.fail(Error::PeerLeft { rank });
    }
}

#[cfg(test)]
mod tests;
