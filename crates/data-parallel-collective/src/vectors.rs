//! Sums of vectors in shared memory: members share their vectors, and sum them in place. The group owns the vectors
//! meanwhile, and `shared_vectors` adds. The processes of a process group then sum their sums.

#![allow(unsafe_code)]

use crate::algorithm::{Algorithm, Schedule, copy};
use crate::error::Error;
use crate::group::{Group, Member};
use crate::order::parts;
use crate::shared_vectors::is_finite;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// An operation on the vectors of the members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    AllReduce,
    /// An all-reduce that also looks whether the sums are finite.
    AllReduceFinite,
    ReduceScatter,
}

impl Member {
    /// The sum of `data` over all members, in the same memory.
    ///
    /// Every member must call it, with the same number of elements. In a process group, the members of each process
    /// sum first, then the processes. All members get the same bits, those of one process with as many members.
    ///
    /// # Errors
    /// [`Error`]: a member left, had another length, made another call, or did not arrive in time. The data is then
    /// lost, because other members may still access it.
    pub fn all_reduce(&mut self, data: Vec<f32>) -> Result<Vec<f32>, Error> {
        self.all_reduce_after(data, || ())
    }

    /// Like [`all_reduce`](Self::all_reduce); calls `pause` between the barriers, so that tests can stop there.
    pub(crate) fn all_reduce_after(
        &mut self,
        data: Vec<f32>,
        pause: impl FnOnce(),
    ) -> Result<Vec<f32>, Error> {
        let schedule = self.schedule(false, data.len());
        self.sum_shared(data, &schedule, Call::AllReduce, pause)
    }

    /// Like [`all_reduce`](Self::all_reduce); also returns true if all sums are finite, the same answer for all
    /// members. Each member checks the sums that it adds, while they are in its cache.
    ///
    /// ```
    /// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
    /// assert_eq!(member.all_reduce_finite(vec![1.0, 2.0])?, (vec![1.0, 2.0], true));
    /// assert!(!member.all_reduce_finite(vec![1.0, f32::NAN])?.1);
    /// # Ok::<(), data_parallel_collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_finite(&mut self, data: Vec<f32>) -> Result<(Vec<f32>, bool), Error> {
        let schedule = self.schedule(false, data.len());
        let sums = self.sum_shared(data, &schedule, Call::AllReduceFinite, || ())?;
        let Group { order, finite, .. } = &*self.group;
        let are_finite = if self.locals == 1 || order.is_some() {
            is_finite(&sums) // nothing was added here, or not all
        } else {
            finite
                .iter()
                .all(|of_member| of_member.load(Ordering::Acquire))
        };
        Ok((sums, are_finite))
    }

    /// The sum over all members of this member's [part](Self::part) of `data`: the first half of an all-reduce. The sums
    /// have the bits of an all-reduce with the order of the group: star, or else that of owner and tree.
    ///
    /// ```
    /// let members = data_parallel_collective::group(2, Default::default());
    /// let sums = std::thread::scope(|s| {
    ///     let threads = members.into_iter().map(|mut member| {
    ///         s.spawn(move || member.reduce_scatter(vec![1.0 + member.rank() as f32; 32]).unwrap())
    ///     });
    ///     let threads: Vec<_> = threads.collect();
    ///     threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
    /// });
    /// assert_eq!(sums, [vec![3.0; 16], vec![3.0; 16]]); // each has one half
    /// ```
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(&mut self, data: Vec<f32>) -> Result<Vec<f32>, Error> {
        let own = self.part(data.len());
        let schedule = match &self.group.order {
            Some(_) => self.schedule(false, data.len()),
            None => Arc::new(self.in_parts()),
        };
        Ok(self.sum_shared(data, &schedule, Call::ReduceScatter, || ())?[own].to_vec())
    }

    /// The [parts](Self::part) of all members as one vector: the second half of an all-reduce.
    ///
    /// ```
    /// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
    /// assert_eq!(member.all_gather_parts(vec![1.0, 2.0])?, [1.0, 2.0]);
    /// # Ok::<(), data_parallel_collective::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, did not arrive in time, made another call, or its part has another length than the part
    /// of all elements. MPI gathers at most 2 GiB.
    pub fn all_gather_parts(&mut self, part: Vec<f32>) -> Result<Vec<f32>, Error> {
        let start = Instant::now();
        let own = part.len();
        let mut all = self.all_gather(part)?.concat();
        if self.group.order.is_some() {
            let bytes = self.over_all_processes(|group| {
                Ok(group.all_gather(bytemuck::cast_slice(&all))?.concat())
            })?;
            let (words, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(self.group.barrier.fail(Error::KindMismatch));
            }
            all = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        }
        if own != self.part(all.len()).len() {
            return Err(self.group.barrier.fail(Error::KindMismatch));
        }
        if self.group.options.link.is_some() {
            let schedule = Schedule::all_gather(Algorithm::Owner, self.locals);
            self.over_the_link(&schedule, all.len(), start);
        }
        Ok(all)
    }

    /// The elements of a vector of `len` elements that belong to this member: one of as many parts as there are
    /// members, which begin at multiples of 16.
    ///
    /// ```
    /// let members = data_parallel_collective::group(3, Default::default());
    /// let parts: Vec<_> = members.iter().map(|member| member.part(100)).collect();
    /// assert_eq!(parts, [0..32, 32..64, 64..100]);
    /// ```
    pub fn part(&self, len: usize) -> Range<usize> {
        parts(self.size()).chunk(self.rank(), len)
    }

    /// Each member of this process sums its part.
    fn in_parts(&self) -> Schedule {
        let mut schedule = Schedule::reduce_scatter(Algorithm::Owner, self.locals);
        let in_pairs = self.group.options.algorithm != Algorithm::Star;
        for sum in schedule.rounds.iter_mut().flatten() {
            sum.in_pairs = in_pairs;
        }
        schedule
    }

    /// Shares this member's vector, sums those of all members or this member's part of them, and takes its own back.
    fn sum_shared(
        &mut self,
        data: Vec<f32>,
        schedule: &Schedule,
        call: Call,
        pause: impl FnOnce(),
    ) -> Result<Vec<f32>, Error> {
        let in_parts = call == Call::ReduceScatter;
        let start = Instant::now();
        let rank = self.local;
        let len = data.len();
        let barrier = &self.group.barrier;
        let vectors = &self.group.vectors;
        barrier.check()?;
        // Safety: only this member puts in vector `rank`. The previous call ended with a barrier, after which
        // no other member accesses the vector; if that barrier had failed, so would the check above.
        unsafe { vectors.put(rank, data, in_parts) };
        barrier.wait(rank, self.deadline().as_ref())?;
        // Safety: all members have put, and take only after the next barrier.
        let calls = (0..self.locals).map(|rank| unsafe { vectors.call(rank) });
        let (lengths, kinds): (Vec<usize>, Vec<bool>) = calls.unzip();
        if kinds.iter().any(|other| *other != in_parts) {
            return Err(barrier.fail(Error::KindMismatch));
        }
        self.same_length(lengths)?;
        pause();
        let barrier = &self.group.barrier;
        let vectors = &self.group.vectors;
        let deadline = self.deadline();
        let mut finite = true;
        for (i, round) in schedule.rounds.iter().enumerate() {
            if i > 0 {
                barrier.wait(rank, deadline.as_ref())?;
            }
            for sum in round.iter().filter(|sum| sum.by == rank) {
                // Safety: `sum.by` is this member. Barriers separate the rounds from each other, from the
                // puts and from the takes. Sums of one round do not conflict: a test in `algorithm`
                // checks it, and `group_by` checks a caller's schedule. `same_length` has checked the lengths.
                unsafe { vectors.sum(schedule, sum) };
                let adds = sum.from.len() > 1; // and does not only copy
                if adds && call == Call::AllReduceFinite {
                    // Safety: as above; this member has just written the chunk.
                    finite &= is_finite(unsafe { vectors.sums(schedule, sum) });
                }
            }
        }
        // all read it after the barrier, and it is written again after the first barrier of the next call
        self.group.finite[rank].store(finite, Ordering::Release);
        self.over_the_link(schedule, len, start);
        barrier.wait(rank, deadline.as_ref())?;
        if self.group.order.is_some() {
            self.sum_of_all_processes(in_parts)?;
        }
        // Safety: only this member takes out vector `rank`, and all have passed the barrier after the sums.
        Ok(unsafe { self.group.vectors.take(rank) })
    }

    /// Replaces the sums of this process by those of all processes: all of them, or those of each member's part. Called
    /// after a barrier; ends with a barrier.
    fn sum_of_all_processes(&mut self, in_parts: bool) -> Result<(), Error> {
        let group = self.group.clone();
        let rank = self.local;
        self.over_all_processes(|group_of_all| {
            let order = group.order.as_ref().expect("there is a process group");
            // Safety: the other members wait at a barrier until this call returns. If the barrier fails, they
            // return without an access to any element.
            let elements = |own: Range<usize>| unsafe { group.vectors.elements(own.start) };
            let mut vectors: Vec<_> = order.locals(group.process).map(elements).collect();
            if in_parts {
                group_of_all.reduce_scatter(&mut vectors, order)
            } else {
                group_of_all.all_reduce(&mut vectors, order)
            }
        })?;
        let (cut, part) = if in_parts {
            (parts(self.size()), self.rank())
        } else {
            // all of it
            (parts(1), 0)
        };
        if rank > 0 {
            // Safety: until the barrier below, each member but 0 writes only its own elements, and no
            // member writes those of member 0.
            unsafe { group.vectors.sum(&cut, &copy(rank, 0, part)) };
        }
        group.barrier.wait(rank, self.deadline().as_ref())
    }
}
