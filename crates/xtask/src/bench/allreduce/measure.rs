//! Times the all-reduces, and for comparison `x += 1`: the same threads and barriers, but each thread only reads
//! and writes its own buffer once. Checks every sum; a wrong one ends the program.

use std::time::Instant;
use std::{panic, thread};

use anyhow::Result;
use collective::{Algorithm, Error, GroupOptions, Member, group};

use crate::bench::stats::Summary;

/// An all-reduce, or if `None`, `x += 1` by each thread over its own buffer.
pub type Turn = Option<Algorithm>;

/// All of them, as they follow each other.
pub const TURNS: [Turn; 5] = [
    Some(Algorithm::Star),
    Some(Algorithm::Owner),
    Some(Algorithm::Ring),
    Some(Algorithm::Tree),
    None,
];

/// The name of a turn in the report.
pub fn name(turn: Turn) -> String {
    turn.map_or("x += 1".to_owned(), |algorithm| algorithm.to_string())
}

/// The µs of the calls of each turn, for `k` threads with `len` elements each. A round calls every turn once.
///
/// # Errors
/// If a member of a group fails.
///
/// # Panics
/// If a sum is wrong.
pub fn measure(k: usize, len: usize, calls: usize, turns: &[Turn]) -> Result<Vec<Summary>> {
    let mut seats: Vec<Seat> = (0..k).map(|_| Vec::new()).collect();
    for &turn in turns {
        let options = GroupOptions {
            algorithm: turn.unwrap_or_default(), // `x += 1` only uses the barrier
            ..GroupOptions::default()
        };
        for (seat, member) in seats.iter_mut().zip(group(k, options)) {
            seat.push((turn, member));
        }
    }
    let times = thread::scope(|scope| {
        // a seat that is dropped leaves its groups: only a failure may do so before all are done
        let run = |mut seat: Seat| move || Ok((rounds(&mut seat, len, calls)?, seat));
        let threads: Vec<_> = seats.into_iter().map(|s| scope.spawn(run(s))).collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|wrong| panic::resume_unwind(wrong))
            })
            .collect::<Result<Vec<_>, Error>>()
    })?;
    Ok(times[0].0.iter().map(|of| Summary::of(of)).collect())
}

/// A thread's places in the groups, of which there is one for each turn.
type Seat = Vec<(Turn, Member)>;

/// µs of the calls of each turn. The time of a call is that of the slowest thread.
fn rounds(seat: &mut Seat, len: usize, calls: usize) -> Result<Vec<Vec<f64>>, Error> {
    const WARM_UP: usize = 2;
    let mut data = vec![0.0; len];
    let mut times = vec![Vec::new(); seat.len()];
    for call in 0..WARM_UP + calls {
        for ((turn, member), times) in seat.iter_mut().zip(&mut times) {
            let rank = member.rank();
            let k = member.size();
            data.fill(value(rank, call));
            member.barrier()?; // an early thread may sleep here,
            member.barrier()?; // and is awake here
            let start = Instant::now();
            if turn.is_some() {
                data = member.all_reduce(data)?;
            } else {
                member.barrier()?;
                data.iter_mut().for_each(|x| *x += 1.0);
                member.barrier()?;
            }
            let micros = start.elapsed().as_secs_f64() * 1e6;
            // no thread goes on to check its sum on a core that another thread needs to come back
            let slowest = member.all_gather(micros)?.into_iter().fold(0.0, f64::max);
            let expected = expected(*turn, rank, k, call);
            let right = data.iter().all(|x| *x == expected);
            assert!(right, "{}, k = {k}: the sum is wrong", name(*turn));
            if call >= WARM_UP {
                times.push(slowest);
            }
        }
    }
    Ok(times)
}

/// A small whole number, so that sums are exact in any order.
fn value(rank: usize, call: usize) -> f32 {
    (1 + rank + call % 5) as f32
}

/// The right result of a turn for these values.
fn expected(turn: Turn, rank: usize, k: usize, call: usize) -> f32 {
    match turn {
        Some(_) => (0..k).map(|rank| value(rank, call)).sum(),
        None => value(rank, call) + 1.0,
    }
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
}
