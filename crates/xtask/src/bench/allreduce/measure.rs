//! Times the all-reduces, and for comparison `x += 1`: the same threads and barriers, but each thread only reads
//! and writes its own buffer once. Checks every sum; a wrong one ends the program.

use std::time::Instant;
use std::{panic, thread};

use anyhow::Result;
use collective::{Algorithm, Error, Member, Options, group};
use pulp::Arch;

use crate::bench::stats::Summary;

/// The elements of LeNet's gradients.
pub const LENET: usize = 129_068;
/// The elements of ResNet-18's gradients.
pub const RESNET18: usize = 11_175_818;

/// A turn of every round: an all-reduce, or if `None`, `x += 1` by each thread over its own buffer.
pub type Turn = Option<Algorithm>;

/// The one that the others are held against.
pub const OWNER: Turn = Some(Algorithm::Owner);

/// All of them, as they follow each other.
pub const TURNS: [Turn; 5] = [
    Some(Algorithm::Star),
    OWNER,
    Some(Algorithm::Ring),
    Some(Algorithm::Tree),
    None,
];

/// What the reports call a turn.
pub fn name(turn: Turn) -> String {
    turn.map_or("x += 1".to_owned(), |algorithm| algorithm.to_string())
}

/// What `k` threads took for `len` elements each: the µs of the calls of each turn. A round calls every turn once.
///
/// # Errors
/// If a member of a group fails.
///
/// # Panics
/// If a sum is wrong.
pub fn measure(k: usize, len: usize, calls: usize, turns: &[Turn]) -> Result<Vec<Summary>> {
    let by_rank = thread::scope(|scope| {
        let seats = seats(k, turns).into_iter();
        // a seat that is dropped leaves its groups: only a panic may do so before all are done
        let rounds = |mut seat: Seat| move || Ok((seat.rounds(len, calls)?, seat));
        let threads: Vec<_> = seats.map(|seat| scope.spawn(rounds(seat))).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.collect::<thread::Result<Vec<_>>>()
    });
    let by_rank = by_rank.unwrap_or_else(|wrong| panic::resume_unwind(wrong));
    let by_rank = by_rank.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let micros = |turn: usize| {
        let slowest = |call| {
            let of_ranks = by_rank.iter().map(|(times, _)| times[call]);
            of_ranks.fold(0.0, f64::max)
        };
        let calls = (turn..calls * turns.len()).step_by(turns.len());
        Summary::of(&calls.map(slowest).collect::<Vec<_>>())
    };
    Ok((0..turns.len()).map(micros).collect())
}

/// A thread's places in the groups, of which there is one for each turn, and one to begin together.
struct Seat {
    together: Member,
    turns: Vec<(Turn, Member)>,
}

fn seats(k: usize, turns: &[Turn]) -> Vec<Seat> {
    let together = group(k, Options::default());
    let mut seats: Vec<Seat> = together.into_iter().map(Seat::new).collect();
    for &turn in turns {
        let options = Options {
            algorithm: turn.unwrap_or_default(), // `x += 1` only uses the barrier
            ..Options::default()
        };
        for (seat, member) in seats.iter_mut().zip(group(k, options)) {
            seat.turns.push((turn, member));
        }
    }
    seats
}

impl Seat {
    fn new(together: Member) -> Self {
        let turns = Vec::new();
        Self { together, turns }
    }

    /// µs of each call, round after round.
    fn rounds(&mut self, len: usize, calls: usize) -> Result<Vec<f64>, Error> {
        const WARM_UP: usize = 2;
        let (rank, k) = (self.together.rank(), self.together.size());
        let mut data = vec![0.0; len];
        let mut times = Vec::new();
        for call in 0..WARM_UP + calls {
            for (turn, member) in &mut self.turns {
                fill(&mut data, &values(rank, call));
                let micros;
                (data, micros) = timed(*turn, member, &mut self.together, data)?;
                let right = repeats(&data, &expected(*turn, rank, k, call));
                assert!(
                    right,
                    "{}, k = {k}, {len} elements: the sum is wrong",
                    name(*turn)
                );
                if call >= WARM_UP {
                    times.push(micros);
                }
            }
        }
        Ok(times)
    }
}

/// A call, and its µs.
fn timed(
    turn: Turn,
    member: &mut Member,
    together: &mut Member,
    mut data: Vec<f32>,
) -> Result<(Vec<f32>, f64), Error> {
    together.barrier()?; // an early thread may sleep here,
    together.barrier()?; // and is awake here
    let start = Instant::now();
    if turn.is_some() {
        data = member.all_reduce(data)?;
    } else {
        member.barrier()?;
        add_one(&mut data);
        member.barrier()?;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6;
    // no thread goes on to check its sum on a core that another thread needs to come back
    together.barrier()?;
    Ok((data, micros))
}

/// The values repeat after so many elements. Chunks begin at multiples of 16, and 16 is no multiple of
/// it, so the check finds a chunk in a wrong place.
const PERIOD: usize = 13;

/// Small whole numbers: their sums are exact in any order.
fn values(rank: usize, call: usize) -> [f32; PERIOD] {
    std::array::from_fn(|i| (i + rank + call % 5) as f32)
}

/// What a turn has to make of these values.
fn expected(turn: Turn, rank: usize, k: usize, call: usize) -> [f32; PERIOD] {
    match turn {
        Some(_) => std::array::from_fn(|i| (0..k).map(|rank| values(rank, call)[i]).sum()),
        None => values(rank, call).map(|value| value + 1.0),
    }
}

fn fill(data: &mut [f32], values: &[f32; PERIOD]) {
    for part in data.chunks_mut(PERIOD) {
        part.copy_from_slice(&values[..part.len()]);
    }
}

fn repeats(data: &[f32], values: &[f32; PERIOD]) -> bool {
    let mut parts = data.chunks(PERIOD);
    parts.all(|part| part == &values[..part.len()])
}

/// With the vector instructions of the machine, as the sums have.
fn add_one(data: &mut [f32]) {
    Arch::new().dispatch(
        #[inline(always)]
        || {
            for x in &mut *data {
                *x += 1.0;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_is_measured_and_right() -> Result<()> {
        for k in [1, 2, 3, 9] {
            for len in [0, 5, 1000, 70_000] {
                for micros in measure(k, len, 3, &TURNS)? {
                    assert!(micros.count == 3 && micros.min > 0.0, "{k}: {micros:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_wrong_sum_is_seen() {
        let mut data = vec![0.0; 100];
        fill(&mut data, &expected(OWNER, 0, 3, 3));
        assert!(repeats(&data, &expected(OWNER, 0, 3, 3)));
        assert!(!repeats(&data, &expected(OWNER, 0, 3, 4)));
        data.copy_within(0..16, 16); // as a chunk in the place of the next
        assert!(!repeats(&data, &expected(OWNER, 0, 3, 3)));
    }
}
