//! The vectors of the members of a group, which read and write each other's vectors between barriers.
//!
//! The group, not the call, owns the vectors during a sum. A call that fails leaves its vector here,
//! so a late member still reads and writes valid memory.

#![allow(unsafe_code)]

use crate::algorithm::{Schedule, Sum};
use std::cell::UnsafeCell;
use std::ops::Range;

/// The number of elements that are summed at a time; they stay in the first-level cache.
pub(crate) const BLOCK: usize = 2048;

/// The vector of each member.
pub(crate) struct SharedVectors(Vec<UnsafeCell<SharedVector>>);

#[derive(Default)]
struct SharedVector {
    /// Only the owner accesses it, and never while other members may access the elements.
    data: Vec<f32>,
    /// The elements of `data`, for all members.
    elements: Elements,
    /// True if the member wants the sum of its part only.
    in_parts: bool,
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

// Safety: `Vec<f32>` is `Send`, and the pointer of a shared vector points only into its own vector.
unsafe impl Send for SharedVectors {}
// Safety: only the owner writes its entry, while no other member reads it. Only one member writes an element,
// while no other accesses it. The barriers ensure both, as the functions below require.
unsafe impl Sync for SharedVectors {}

impl SharedVectors {
    pub fn new(members: usize) -> Self {
        Self((0..members).map(|_| UnsafeCell::default()).collect())
    }

    /// Puts the vector of `rank` here, and whether it wants the sum of its part only.
    ///
    /// # Safety
    /// Only the member `rank` calls it. One barrier separates the call from the other members' earlier accesses
    /// to the vector and its elements, and another barrier from their later ones.
    pub unsafe fn put(&self, rank: usize, mut data: Vec<f32>, in_parts: bool) {
        let elements = Elements {
            first: data.as_mut_ptr(),
            len: data.len(),
        };
        // Safety: no other member accesses the entry now; the caller guarantees it.
        unsafe {
            *self.0[rank].get() = SharedVector {
                data,
                elements,
                in_parts,
            }
        };
    }

    /// Takes the vector of `rank` away.
    ///
    /// # Safety
    /// As [`put`](Self::put).
    pub unsafe fn take(&self, rank: usize) -> Vec<f32> {
        // Safety: no other member accesses the entry now; the caller guarantees it.
        unsafe { std::mem::take(&mut *self.0[rank].get()) }.data
    }

    /// The number of elements of `rank`, and whether it wants the sum of its part only.
    ///
    /// # Safety
    /// Called between two barriers: all members put before the first one, and take after the second one.
    pub unsafe fn call(&self, rank: usize) -> (usize, bool) {
        // Safety: no member writes the entry between the barriers; the caller guarantees it.
        let entry = unsafe { &*self.0[rank].get() };
        (entry.elements.len, entry.in_parts)
    }

    /// The elements of `rank`.
    ///
    /// # Safety
    /// While they are borrowed, no other member accesses them, and `rank` does not take its vector.
    #[expect(clippy::mut_from_ref, reason = "they are not in the entries")]
    pub unsafe fn elements(&self, rank: usize) -> &mut [f32] {
        // Safety: no member writes the entry now; the caller guarantees it.
        let Elements { first, len } = unsafe { (*self.0[rank].get()).elements };
        // Safety: no other member accesses the elements, as the caller guarantees; the entry owns them.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }

    /// The elements that a sum of a round has written.
    ///
    /// # Safety
    /// The member `sum.by` has just called [`sum`](Self::sum), and reads them before the next barrier.
    pub unsafe fn sums(&self, schedule: &Schedule, sum: &Sum) -> &[f32] {
        // Safety: no other member accesses this chunk before the next barrier; the caller guarantees it.
        let all = unsafe { self.elements(sum.to[0]) };
        let len = all.len();
        &all[schedule.chunk(sum.chunk, len)]
    }

    /// Computes one sum of a round.
    ///
    /// # Safety
    /// Only the member `sum.by` calls it, between two barriers: all members put before the first one, and take
    /// after the second one. Between them, no other member writes this chunk of `sum.from`, or accesses that
    /// of `sum.to`. All vectors have the same length.
    #[tracing::instrument(skip_all, name = "sum")]
    pub unsafe fn sum(&self, schedule: &Schedule, sum: &Sum) {
        // Safety: no member writes the entries between the barriers; the caller guarantees it.
        let elements = |rank: &usize| unsafe { (*self.0[*rank].get()).elements };
        let from: Vec<Elements> = sum.from.iter().map(elements).collect();
        let to: Vec<Elements> = sum.to.iter().map(elements).collect();
        let range = schedule.chunk(sum.chunk, to[0].len);
        // of up to 3 values, both orders are the same
        let in_pairs = sum.in_pairs || from.len() <= 3;
        let all = in_pairs && sum.from == sum.to;
        devices::vectorized(
            #[inline(always)]
            || {
                // Safety: no other member writes this chunk of `from`, or accesses that of `to`; the caller
                // guarantees it. The chunk is within all vectors, because their lengths are the same.
                unsafe {
                    match from.len() {
                        2 if all => add_in_registers::<2>(&from, range),
                        3 if all => add_in_registers::<3>(&from, range),
                        4 if all => add_in_registers::<4>(&from, range),
                        5 if all => add_in_registers::<5>(&from, range),
                        6 if all => add_in_registers::<6>(&from, range),
                        7 if all => add_in_registers::<7>(&from, range),
                        8 if all => add_in_registers::<8>(&from, range),
                        _ => add_in_blocks(&from, &to, in_pairs, range),
                    }
                };
            },
        );
    }
}

/// Writes the sum of a range of K members to all of them, added in pairs, without a buffer. It takes two thirds of the
/// time of [`add_in_blocks`].
///
/// # Safety
/// All members have the range, and no other thread accesses it.
#[inline(always)]
unsafe fn add_in_registers<const K: usize>(all: &[Elements], range: Range<usize>) {
    const WIDTH: usize = 32;
    let firsts: [*mut f32; K] = std::array::from_fn(|i| all[i].first);
    let whole = range.end - range.len() % WIDTH;
    for at in range.clone().step_by(WIDTH).take_while(|at| *at < whole) {
        // Safety: the caller's range has at least `WIDTH` elements from `at` on.
        let places = firsts.map(|first| unsafe { first.add(at).cast::<[f32; WIDTH]>() });
        // Safety: no other thread writes them, as the caller guarantees; the read needs no alignment.
        let mut parts = places.map(|place| unsafe { place.read_unaligned() });
        let mut stride = 1;
        while stride < K {
            for i in (0..K - stride).step_by(2 * stride) {
                let other = parts[i + stride];
                add(&mut parts[i], &other);
            }
            stride *= 2;
        }
        for place in places {
            // Safety: no other thread accesses them; the caller guarantees it.
            unsafe { place.write_unaligned(parts[0]) };
        }
    }
    // Safety: this is a part of the caller's range.
    unsafe { add_in_blocks(all, all, true, whole..range.end) };
}

/// Writes the sum of a range of `from` to the same range of all of `to`, a block at a time.
///
/// # Safety
/// All of `from` and `to` have the range. No other thread writes that of `from`, or accesses that of `to`.
#[inline(always)]
unsafe fn add_in_blocks(from: &[Elements], to: &[Elements], in_pairs: bool, range: Range<usize>) {
    let mut sums = Vec::new(); // that wait for their neighbour
    for start in range.clone().step_by(BLOCK) {
        let len = (range.end - start).min(BLOCK);
        let mut waiting = 0;
        for (i, source) in from.iter().enumerate() {
            // Safety: the part exists, and no other thread writes it; the caller guarantees it.
            let source = unsafe { std::slice::from_raw_parts(source.first.add(start), len) };
            // As in a binary counter: part i completes as many pairs as i, in binary, has ones at its end
            let pairs = if in_pairs {
                i.trailing_ones()
            } else {
                i.min(1) as u32
            };
            if pairs == 0 {
                if sums.len() == waiting {
                    sums.push([0f32; BLOCK]);
                }
                sums[waiting][..len].copy_from_slice(source);
                waiting += 1;
                continue;
            }
            add(&mut sums[waiting - 1][..len], source);
            for _ in 1..pairs {
                waiting -= 1;
                add_last(&mut sums[..=waiting], len);
            }
        }
        while waiting > 1 {
            waiting -= 1;
            add_last(&mut sums[..=waiting], len);
        }
        for target in to {
            // Safety: the part exists, and no other thread accesses it; the caller guarantees it. The slices
            // of `from`, which may alias it, no longer exist.
            let target = unsafe { std::slice::from_raw_parts_mut(target.first.add(start), len) };
            target.copy_from_slice(&sums[0][..len]);
        }
    }
}

/// True if no element is NaN or infinite: the bits of these, without the sign, are the largest.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    let largest = devices::vectorized(
        #[inline(always)]
        || {
            let mut largest = 0;
            for value in values {
                largest = largest.max(value.to_bits() & 0x7fff_ffff);
            }
            largest
        },
    );
    largest < f32::INFINITY.to_bits()
}

/// Adds the last sum to the one before.
#[inline(always)]
fn add_last(sums: &mut [[f32; BLOCK]], len: usize) {
    if let [.., sum, last] = sums {
        add(&mut sum[..len], &last[..len]);
    }
}

/// Adds `values` to `sum`, element by element.
#[inline(always)]
pub(crate) fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
}
