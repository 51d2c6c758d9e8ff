//! All-reduce in shared memory: members bring vectors, and sum each other's in place. In a world their
//! sum is then summed with those of the other processes.
//!
//! The vectors belong to the group while it sums, not to the calls: a call that gives up leaves its
//! vector behind, and a member that comes late still reads and writes memory that is there.

#![allow(unsafe_code)]

use crate::algorithm::{Schedule, Sum, copy};
use crate::cost::Medium;
use crate::{Error, Group, Member};
use pulp::Arch;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::time::Instant;

impl Member {
    /// The sum of `data` over all members, in the same memory.
    ///
    /// Every member has to call it, with as many elements. In a world the members of each process sum
    /// first, then the processes sum those sums in rank order: all get the same bits.
    ///
    /// # Errors
    /// [`Error`]: a member left, brought another length, or did not come in time. The data is lost
    /// then: others may still be at work on it.
    pub fn all_reduce(&mut self, data: Vec<f32>) -> Result<Vec<f32>, Error> {
        self.all_reduce_after(data, || ())
    }

    /// As [`all_reduce`](Self::all_reduce); calls `pause` between the gates, for tests to stop there.
    pub(crate) fn all_reduce_after(
        &mut self,
        data: Vec<f32>,
        pause: impl FnOnce(),
    ) -> Result<Vec<f32>, Error> {
        let (start, rank, len) = (Instant::now(), self.local, data.len());
        let schedule = self.schedule(Medium::Memory, len);
        let Group { gate, slots, .. } = &*self.group;
        gate.check()?;
        // Safety: this is the member `rank`. The call before has ended with a gate; had it failed, so
        // would the check above.
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
                // Safety: `by` is this member, a gate is before, behind and between the rounds, and
                // all lengths are the same.
                unsafe { slots.sum(&schedule, sum) };
            }
        }
        self.over_the_link(&schedule, len, start);
        gate.pass(rank, deadline.as_ref())?;
        if self.group.in_world {
            self.sum_of_all_processes(&schedule)?;
        }
        // Safety: this is the member `rank`, and all have passed the gate that ends the sums.
        Ok(unsafe { self.group.slots.take(rank) })
    }

    /// Whether all members have put as many elements, those of other processes as well.
    fn same_lengths(&mut self) -> Result<(), Error> {
        let slots = &self.group.slots;
        // Safety: the gate before this comes after all have put, another one before they take.
        let length = |rank| unsafe { slots.len(rank) };
        let mut lengths: Vec<usize> = (0..self.locals).map(length).collect();
        // a process of one member has nothing to add: the world compares the processes
        if self.group.in_world && self.locals > 1 {
            let mine = lengths.iter().map(|length| *length as u64).collect();
            let all = self.all_of_all_processes(vec![mine])?.concat();
            lengths = all.into_iter().map(|length| length as usize).collect();
        }
        self.same(&lengths)
    }

    /// Makes the sum of this process that of all, between a gate after the one and a gate of its own.
    fn sum_of_all_processes(&mut self, schedule: &Schedule) -> Result<(), Error> {
        let (group, rank) = (self.group.clone(), self.local);
        self.over_the_world(|world| {
            // Safety: the other members stand before a gate until this is over; if they leave it, they
            // touch no element on their way.
            world.all_reduce(unsafe { group.slots.elements(0) })
        })?;
        for chunk in (0..schedule.chunks).filter(|_| rank > 0) {
            // Safety: each but member 0 writes its own elements, and nobody those of member 0, until
            // the gate below.
            unsafe { group.slots.sum(schedule, &copy(rank, 0, chunk)) };
        }
        group.gate.pass(rank, self.deadline().as_ref())
    }
}

/// Elements that are summed at a time; they stay in the first-level cache.
const BLOCK: usize = 2048;

/// A place for the vector of each member.
pub(crate) struct Slots(Vec<UnsafeCell<Slot>>);

#[derive(Default)]
struct Slot {
    /// Only its owner touches it, and nobody its elements through it while others may.
    data: Vec<f32>,
    /// The elements, for all.
    elements: Elements,
}

#[derive(Clone, Copy)]
struct Elements {
    first: *mut f32,
    len: usize,
}

impl Default for Elements {
    fn default() -> Self {
        Self {
            first: std::ptr::null_mut(),
            len: 0,
        }
    }
}

// Safety: a slot is written by its owner while no other member may read it, and elements are written
// by one member while no other touches them; the functions below say when that is.
unsafe impl Send for Slots {}
// Safety: as above.
unsafe impl Sync for Slots {}

impl Slots {
    pub fn new(members: usize) -> Self {
        Self((0..members).map(|_| UnsafeCell::default()).collect())
    }

    /// Puts the vector of `rank` where the others find it.
    ///
    /// # Safety
    /// Called by the member `rank` alone, before it comes to a gate that the others pass before they
    /// look, and after one that they pass when they are through with what was there.
    pub unsafe fn put(&self, rank: usize, mut data: Vec<f32>) {
        let elements = Elements {
            first: data.as_mut_ptr(),
            len: data.len(),
        };
        // Safety: nobody else looks, says the caller.
        unsafe { *self.0[rank].get() = Slot { data, elements } };
    }

    /// Takes the vector of `rank` back.
    ///
    /// # Safety
    /// As [`put`](Self::put).
    pub unsafe fn take(&self, rank: usize) -> Vec<f32> {
        // Safety: nobody else looks, says the caller.
        unsafe { std::mem::take(&mut *self.0[rank].get()) }.data
    }

    /// How many elements `rank` has brought.
    ///
    /// # Safety
    /// Called between two gates, of which the first comes after all have put.
    pub unsafe fn len(&self, rank: usize) -> usize {
        // Safety: nobody writes the slot between the gates, says the caller.
        unsafe { (*self.0[rank].get()).elements.len }
    }

    /// The elements of `rank`.
    ///
    /// # Safety
    /// While they are borrowed nobody else touches them, and `rank` does not take its vector.
    #[expect(clippy::mut_from_ref, reason = "they are not in the slots")]
    pub unsafe fn elements(&self, rank: usize) -> &mut [f32] {
        // Safety: nobody writes the slot, says the caller.
        let Elements { first, len } = unsafe { (*self.0[rank].get()).elements };
        // Safety: nobody else touches the elements, says the caller, and the slot keeps them.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// Computes one sum of a round.
    ///
    /// # Safety
    /// Called by the member `sum.by` alone, in the round of the schedule to which it belongs: after a
    /// gate that comes after all have put, before one that comes before anybody takes, and with one
    /// between this round and the next. All vectors have the same length.
    #[tracing::instrument(skip_all, name = "sum")]
    pub unsafe fn sum(&self, schedule: &Schedule, sum: &Sum) {
        // Safety: nobody writes the slots between the gates, says the caller.
        let elements = |rank: &usize| unsafe { (*self.0[*rank].get()).elements };
        let from: Vec<Elements> = sum.from.iter().map(elements).collect();
        let to: Vec<Elements> = sum.to.iter().map(elements).collect();
        let range = schedule.chunk(sum.chunk, to[0].len);
        Arch::new().dispatch(
            #[inline(always)]
            || {
                // Safety: the schedule has no other member write this chunk of `from` in this round, or
                // touch that of `to`; its tests show it. All have so many elements.
                unsafe { add_up(&from, &to, sum.from == sum.to, range) };
            },
        );
    }
}

/// Writes the sum of a range of `from` to the same range of all of `to`, which may be `the_same`.
///
/// # Safety
/// Nobody else writes that range of `from`, or touches that of `to`, and all have it.
#[inline(always)]
unsafe fn add_up(from: &[Elements], to: &[Elements], the_same: bool, range: Range<usize>) {
    // Safety: for all of them as the caller says.
    unsafe {
        match from.len() {
            2 if the_same => add_in_registers::<2>(from, range),
            3 if the_same => add_in_registers::<3>(from, range),
            4 if the_same => add_in_registers::<4>(from, range),
            5 if the_same => add_in_registers::<5>(from, range),
            6 if the_same => add_in_registers::<6>(from, range),
            7 if the_same => add_in_registers::<7>(from, range),
            8 if the_same => add_in_registers::<8>(from, range),
            _ => add_in_blocks(from, to, range),
        }
    }
}

/// The sum of a range of K members, for all of them: nothing is written but the sum. It takes two thirds
/// of the time that blocks take.
///
/// # Safety
/// As of [`add_up`].
#[inline(always)]
unsafe fn add_in_registers<const K: usize>(all: &[Elements], range: Range<usize>) {
    const WIDTH: usize = 32;
    let firsts: [*mut f32; K] = std::array::from_fn(|i| all[i].first);
    let whole = range.end - range.len() % WIDTH;
    for at in range.clone().step_by(WIDTH).take_while(|at| *at < whole) {
        // Safety: the caller's range has so many elements from here on.
        let parts = firsts.map(|first| unsafe { first.add(at).cast::<[f32; WIDTH]>() });
        // Safety: nobody else writes them, says the caller; an array of floats begins anywhere.
        let mut sum = unsafe { parts[0].read_unaligned() };
        for part in &parts[1..] {
            // Safety: as above.
            let more = unsafe { part.read_unaligned() };
            sum.iter_mut()
                .zip(more)
                .for_each(|(sum, value)| *sum += value);
        }
        for part in parts {
            // Safety: nobody else touches them, says the caller.
            unsafe { part.write_unaligned(sum) };
        }
    }
    // Safety: a part of the caller's range.
    unsafe { add_in_blocks(all, all, whole..range.end) };
}

/// The sum of a range, a block at a time.
///
/// # Safety
/// As of [`add_up`].
#[inline(always)]
unsafe fn add_in_blocks(from: &[Elements], to: &[Elements], range: Range<usize>) {
    let mut block = [0f32; BLOCK];
    for start in range.clone().step_by(BLOCK) {
        let part = start..range.end.min(start + BLOCK);
        // Safety: a part of the caller's range.
        unsafe { add_block(from, to, part, &mut block) };
    }
}

/// Writes the sum of a part of `from` to the same part of all of `to`.
///
/// # Safety
/// Nobody else writes that part of `from`, or touches that of `to`, and all have it.
#[inline(always)]
unsafe fn add_block(
    from: &[Elements],
    to: &[Elements],
    part: Range<usize>,
    block: &mut [f32; BLOCK],
) {
    let block = &mut block[..part.len()];
    for (i, source) in from.iter().enumerate() {
        // Safety: the part is there and nobody writes it, says the caller.
        let source =
            unsafe { std::slice::from_raw_parts(source.first.add(part.start), part.len()) };
        match i {
            0 => block.copy_from_slice(source),
            _ => block
                .iter_mut()
                .zip(source)
                .for_each(|(sum, value)| *sum += value),
        }
    }
    for target in to {
        // Safety: the part is there and nobody else touches it, says the caller; the slices of
        // `from`, which may be the same memory, are gone.
        let target =
            unsafe { std::slice::from_raw_parts_mut(target.first.add(part.start), part.len()) };
        target.copy_from_slice(block);
    }
}
