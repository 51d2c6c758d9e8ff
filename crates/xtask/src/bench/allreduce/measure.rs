//! Times the all-reduces, and for comparison `x += 1`: the same threads and barriers, but each thread only reads
//! and writes its own buffer once. Checks every sum; a wrong one is an error, not a time.

use std::fmt;
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use collective::{Algorithm, Error, Member, Options, group};
use pulp::Arch;

use crate::bench::stats::Summary;

/// The elements of LeNet's gradients.
pub const LENET: usize = 129_068;
/// The elements of ResNet-18's gradients.
pub const RESNET18: usize = 11_175_818;

/// A turn of every round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// An all-reduce.
    Sum(Algorithm),
    /// `x += 1`, each thread over its own buffer.
    Increment,
}

/// All of them, as they follow each other.
pub const TURNS: [Turn; 5] = [
    Turn::Sum(Algorithm::Star),
    Turn::Sum(Algorithm::Owner),
    Turn::Sum(Algorithm::Ring),
    Turn::Sum(Algorithm::Tree),
    Turn::Increment,
];

/// The one that the others are held against.
pub const OWNER: Turn = Turn::Sum(Algorithm::Owner);

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Turn::Sum(algorithm) => algorithm.fmt(f),
            Turn::Increment => f.pad("x += 1"),
        }
    }
}

/// What `k` threads took for `len` elements each.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The number of threads.
    pub k: usize,
    /// The elements of each thread's buffer.
    pub len: usize,
    times: Vec<(Turn, Vec<f64>)>,
}

impl Measured {
    /// From the µs of each turn's calls.
    pub fn new(k: usize, len: usize, times: Vec<(Turn, Vec<f64>)>) -> Self {
        Self { k, len, times }
    }

    /// µs of a call: the middle, the fastest and the slowest.
    ///
    /// # Panics
    /// If it had no turn.
    pub fn micros(&self, turn: Turn) -> Summary {
        Summary::of(self.times(turn))
    }

    /// The time of `x += 1` divided by that of `turn`: the median of the rounds' ratios.
    ///
    /// # Panics
    /// If one of them was not timed.
    pub fn increment_over(&self, turn: Turn) -> f64 {
        let pairs = self.times(Turn::Increment).iter().zip(self.times(turn));
        let ratios: Vec<f64> = pairs.map(|(increment, time)| increment / time).collect();
        Summary::of(&ratios).median
    }

    /// The bytes of each thread's buffer.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    fn times(&self, turn: Turn) -> &[f64] {
        let mut found = self.times.iter().filter(|(t, _)| *t == turn);
        &found.next().expect("it had a turn").1
    }
}

/// `k` seats in the groups, of which there is one for each turn, and one to begin together.
pub struct Replicas(Vec<Seat>);

struct Seat {
    together: Member,
    turns: Vec<(Turn, Member)>,
}

impl Replicas {
    /// Makes the groups.
    pub fn new(k: usize) -> Self {
        let mut groups = TURNS.map(|turn| (turn, group(k, options(turn)).into_iter()));
        let seat = |together| Seat {
            together,
            turns: groups
                .iter_mut()
                .filter_map(|(turn, group)| Some((*turn, group.next()?)))
                .collect(),
        };
        Self(group(k, Options::default()).into_iter().map(seat).collect())
    }

    /// Takes the time of `calls` rounds in which every one of `turns` is called once.
    ///
    /// # Errors
    /// If a sum is wrong.
    pub fn measure(&mut self, len: usize, calls: usize, turns: &[Turn]) -> Result<Measured> {
        let k = self.0.len();
        let by_rank = self.on_threads(|seat| seat.rounds(len, calls, turns))?;
        let mut times: Vec<_> = turns.iter().map(|turn| (*turn, Vec::new())).collect();
        for i in 0..calls * turns.len() {
            let (turn, times) = &mut times[i % turns.len()];
            let of_ranks: Option<Vec<f64>> = by_rank.iter().map(|times| times[i]).collect();
            ensure!(
                of_ranks.is_some(),
                "{turn}, k = {k}, {len} elements: the sum is wrong"
            );
            times.extend(of_ranks.into_iter().flatten().reduce(f64::max));
        }
        Ok(Measured::new(k, len, times))
    }

    /// Runs `f` for every seat on a thread of its own.
    fn on_threads<T: Send>(
        &mut self,
        f: impl Fn(&mut Seat) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>> {
        let f = &f;
        let done = thread::scope(|scope| {
            let seats = self.0.iter_mut();
            let threads: Vec<_> = seats.map(|seat| scope.spawn(move || f(seat))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect::<thread::Result<Vec<_>>>()
        });
        let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(done.into_iter().collect::<Result<_, _>>()?)
    }
}

fn options(turn: Turn) -> Options {
    let algorithm = match turn {
        Turn::Sum(algorithm) => algorithm,
        Turn::Increment => Algorithm::Auto, // it only uses the barrier
    };
    Options {
        algorithm,
        ..Options::default()
    }
}

impl Seat {
    /// µs of each call, round after round; nothing for a wrong sum, so that this thread is there for
    /// the others in the next call.
    fn rounds(
        &mut self,
        len: usize,
        calls: usize,
        turns: &[Turn],
    ) -> Result<Vec<Option<f64>>, Error> {
        const WARM_UP: usize = 2;
        let mut data = vec![0.0; len];
        let mut times = Vec::new();
        for call in 0..WARM_UP + calls {
            for turn in turns {
                fill(&mut data, self.together.rank(), call);
                let micros;
                (data, micros) = self.call(*turn, data)?;
                let right = self.is_right(*turn, &data, call);
                times.push(right.then_some(micros));
            }
        }
        Ok(times.split_off(WARM_UP * turns.len()))
    }

    fn call(&mut self, turn: Turn, mut data: Vec<f32>) -> Result<(Vec<f32>, f64), Error> {
        let mut found = self.turns.iter_mut().filter(|(t, _)| *t == turn);
        let member = &mut found.next().expect("it has a group").1;
        self.together.barrier()?; // an early thread may sleep here,
        self.together.barrier()?; // and is awake here
        let start = Instant::now();
        match turn {
            Turn::Sum(_) => data = member.all_reduce(data)?,
            Turn::Increment => {
                member.barrier()?;
                add_one(&mut data);
                member.barrier()?;
            }
        }
        let micros = start.elapsed().as_secs_f64() * 1e6;
        // no thread goes on to check its sum on a core that another thread needs to come back
        self.together.barrier()?;
        Ok((data, micros))
    }

    fn is_right(&self, turn: Turn, data: &[f32], call: usize) -> bool {
        let (rank, k) = (self.together.rank(), self.together.size());
        let mut expected = [0.0; PERIOD];
        match turn {
            Turn::Sum(_) => (0..k).for_each(|rank| {
                let values = values(rank, call);
                expected.iter_mut().zip(values).for_each(|(e, v)| *e += v);
            }),
            Turn::Increment => expected = values(rank, call).map(|value| value + 1.0),
        }
        let mut parts = data.chunks(PERIOD);
        parts.all(|part| part == &expected[..part.len()])
    }
}

/// The values repeat after so many elements. Chunks begin at multiples of 16, and 16 is no multiple of
/// it, so the check finds a chunk in a wrong place.
const PERIOD: usize = 13;

/// Small whole numbers: their sums are exact in any order.
fn values(rank: usize, call: usize) -> [f32; PERIOD] {
    std::array::from_fn(|i| (i + rank + call % 5) as f32)
}

fn fill(data: &mut [f32], rank: usize, call: usize) {
    let values = values(rank, call);
    for part in data.chunks_mut(PERIOD) {
        part.copy_from_slice(&values[..part.len()]);
    }
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
            let mut replicas = Replicas::new(k);
            for len in [0, 5, 1000, 70_000] {
                let measured = replicas.measure(len, 3, &TURNS)?;
                for turn in TURNS {
                    let micros = measured.micros(turn);
                    assert!(micros.count == 3 && micros.min > 0.0, "{turn}: {micros:?}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn a_wrong_sum_is_seen() {
        let seat = Replicas::new(1).0.remove(0);
        let mut data = vec![0.0; 100];
        fill(&mut data, 0, 3);
        assert!(seat.is_right(OWNER, &data, 3) && !seat.is_right(OWNER, &data, 4));
        data.copy_within(0..16, 16); // as a chunk in the place of the next
        assert!(!seat.is_right(OWNER, &data, 3));
    }

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        let times = vec![
            (OWNER, vec![2.0, 4.0, 40.0]),
            (Turn::Increment, vec![1.0, 4.0, 20.0]),
        ];
        let measured = Measured::new(2, 8, times);
        assert_eq!(measured.increment_over(OWNER), 0.5);
        assert_eq!((measured.micros(OWNER).median, measured.bytes()), (4.0, 32));
    }
}
