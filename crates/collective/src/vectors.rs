//! All-reduce in shared memory: members put their vectors into slots, and sum them in place. The
//! processes of a process group then sum their sums.

#![allow(unsafe_code)]

use crate::algorithm::{Schedule, copy};
use crate::error::Error;
use crate::group::{Group, Member};
use std::ops::Range;
use std::time::Instant;

impl Member {
    /// The sum of `data` over all members, in the same memory.
    ///
    /// Every member must call it, with the same number of elements. In a process group, the members of each process
    /// sum first, then the processes. All members get the same bits, those of one process with as many members.
    ///
    /// # Errors
    /// [`Error`]: a member left, had another length, or did not arrive in time. The data is then lost,
    /// because other members may still access it.
    pub fn all_reduce(&mut self, data: Vec<f32>) -> Result<Vec<f32>, Error> {
        self.all_reduce_after(data, || ())
    }

    /// As [`all_reduce`](Self::all_reduce); calls `pause` between the barriers, so that tests can stop there.
    pub(crate) fn all_reduce_after(
        &mut self,
        data: Vec<f32>,
        pause: impl FnOnce(),
    ) -> Result<Vec<f32>, Error> {
        let (start, rank, len) = (Instant::now(), self.local, data.len());
        let schedule = self.schedule(false, len);
        let Group { barrier, slots, .. } = &*self.group;
        barrier.check()?;
        // Safety: only this member puts into slot `rank`. The previous call ended with a barrier, after which
        // no other member accesses the slot; if that barrier had failed, so would the check above.
        unsafe { slots.put(rank, data) };
        barrier.wait(rank, self.deadline().as_ref())?;
        // Safety: all members have put, and take only after the next barrier.
        let length = |rank| unsafe { self.group.slots.len(rank) };
        self.same_length((0..self.locals).map(length).collect())?;
        pause();
        let (Group { barrier, slots, .. }, deadline) = (&*self.group, self.deadline());
        for (i, round) in schedule.rounds.iter().enumerate() {
            if i > 0 {
                barrier.wait(rank, deadline.as_ref())?;
            }
            for sum in round.iter().filter(|sum| sum.by == rank) {
                // Safety: `sum.by` is this member. Barriers separate the rounds from each other, from the
                // puts and from the takes. Sums of one round do not conflict: a test in `algorithm`
                // checks it. `same_length` has checked the lengths.
                unsafe { slots.sum(&schedule, sum) };
            }
        }
        self.over_the_link(&schedule, len, start);
        barrier.wait(rank, deadline.as_ref())?;
        if self.group.order.is_some() {
            self.sum_of_all_processes(&schedule)?;
        }
        // Safety: only this member takes from slot `rank`, and all have passed the barrier after the sums.
        Ok(unsafe { self.group.slots.take(rank) })
    }

    /// Replaces the sums of this process by that of all processes. Called after a barrier; ends with a barrier.
    fn sum_of_all_processes(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let (group, rank) = (self.group.clone(), self.local);
        self.over_all_processes(|group_of_all| {
            let order = group.order.as_ref().expect("there is a process group");
            // Safety: the other members wait at a barrier until this call returns. If the barrier fails, they
            // return without an access to any element.
            let elements = |own: Range<usize>| unsafe { group.slots.elements(own.start) };
            let mut vectors: Vec<_> = order.locals(group.process).map(elements).collect();
            group_of_all.all_reduce(&mut vectors, order)
        })?;
        for chunk in (0..schedule.chunks).filter(|_| rank > 0) {
            // Safety: until the barrier below, each member but 0 writes only its own elements, and no
            // member writes those of member 0.
            unsafe { group.slots.sum(schedule, &copy(rank, 0, chunk)) };
        }
        group.barrier.wait(rank, self.deadline().as_ref())
    }
}
