//! All-reduce in shared memory: members put their vectors into slots, and sum them in place. In a world, the
//! processes then sum their sums.

#![allow(unsafe_code)]

use crate::algorithm::{Schedule, copy};
use crate::cost::Medium;
use crate::error::Error;
use crate::group::{Group, Member};
use std::time::Instant;

impl Member {
    /// The sum of `data` over all members, in the same memory.
    ///
    /// Every member must call it, with the same number of elements. In a world, the members of each process
    /// sum first; then the processes sum those sums in rank order. All members get the same bits.
    ///
    /// # Errors
    /// [`Error`]: a member left, had another length, or did not arrive in time. The data is then lost,
    /// because other members may still access it.
    pub fn all_reduce(&mut self, data: Vec<f32>) -> Result<Vec<f32>, Error> {
        self.all_reduce_after(data, || ())
    }

    /// As [`all_reduce`](Self::all_reduce); calls `pause` between the gates, so that tests can stop there.
    pub(crate) fn all_reduce_after(
        &mut self,
        data: Vec<f32>,
        pause: impl FnOnce(),
    ) -> Result<Vec<f32>, Error> {
        let (start, rank, len) = (Instant::now(), self.local, data.len());
        let schedule = self.schedule(Medium::Memory, len);
        let Group { gate, slots, .. } = &*self.group;
        gate.check()?;
        // Safety: only this member puts into slot `rank`. The previous call ended with a gate, after which
        // no other member accesses the slot; if that gate had failed, so would the check above.
        unsafe { slots.put(rank, data) };
        gate.pass(rank, self.deadline().as_ref())?;
        self.same_lengths()?;
        pause();
        let (Group { gate, slots, .. }, deadline) = (&*self.group, self.deadline());
        for (i, round) in schedule.rounds.iter().enumerate() {
            if i > 0 {
                gate.pass(rank, deadline.as_ref())?;
            }
            for sum in round.iter().filter(|sum| sum.by == rank) {
                // Safety: `sum.by` is this member. Gates separate the rounds from each other, from the
                // puts and from the takes. Sums of one round do not conflict: a test in `algorithm`
                // checks it. `same_lengths` has checked the lengths.
                unsafe { slots.sum(&schedule, sum) };
            }
        }
        self.over_the_link(&schedule, len, start);
        gate.pass(rank, deadline.as_ref())?;
        if self.group.in_world {
            self.sum_of_all_processes(&schedule)?;
        }
        // Safety: only this member takes from slot `rank`, and all have passed the gate after the sums.
        Ok(unsafe { self.group.slots.take(rank) })
    }

    /// Fails unless all members, also those of other processes, have put the same number of elements.
    fn same_lengths(&mut self) -> Result<(), Error> {
        let slots = &self.group.slots;
        // Safety: all members put before the last gate, and take only after the next one.
        let length = |rank| unsafe { slots.len(rank) };
        let lengths = (0..self.locals).map(length).collect();
        match self.locals {
            1 => Ok(()), // with one member in each process, the world compares the lengths itself
            _ => self.same_in_all_processes(lengths),
        }
    }

    /// Replaces the sum of this process by that of all processes. Called after a gate; ends with a gate.
    fn sum_of_all_processes(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let (group, rank) = (self.group.clone(), self.local);
        self.over_the_world(|world| {
            // Safety: the other members wait at a gate until this call returns. If the gate fails, they
            // return without an access to any element.
            world.all_reduce(unsafe { group.slots.elements(0) })
        })?;
        for chunk in (0..schedule.chunks).filter(|_| rank > 0) {
            // Safety: until the gate below, each member but 0 writes only its own elements, and no
            // member writes those of member 0.
            unsafe { group.slots.sum(schedule, &copy(rank, 0, chunk)) };
        }
        group.gate.pass(rank, self.deadline().as_ref())
    }
}
