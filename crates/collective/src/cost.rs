//! A model of the time of an all-reduce, by algorithm. [`Algorithm::Auto`] chooses with it. It measures
//! nothing.
//!
//! Between devices, a message of N bytes takes α + N/β, with the latency α and the bandwidth β. For k
//! devices with links that work in both directions at the same time:
//!
//! | | messages after each other | bytes through the busiest link |
//! |---|---|---|
//! | star | 2(k − 1) | 2(k − 1)·N, at the hub |
//! | owner | 2(k − 1) | 2(k − 1)/k·N |
//! | ring | 2(k − 1) | 2(k − 1)/k·N |
//! | tree | 2⌈log₂ k⌉ | 2⌈log₂ k⌉·N |
//!
//! NCCL counts as a ring. The busiest device of any all-reduce sends at least 2(k − 1)/k·N bytes (Patarasuk
//! and Yuan, 2009).
//!
//! Members in one memory share its bandwidth, so the model counts all bytes that any of them reads or writes.

use crate::algorithm::{Algorithm, Schedule};
use std::time::Duration;

/// The speed of a link between devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// α: the time of a message of 0 bytes.
    pub latency: Duration,
    /// β: bytes a second, in each direction.
    pub bytes_per_second: f64,
}

impl Link {
    /// The time in which `k` devices with such links all-reduce `bytes` bytes.
    ///
    /// ```
    /// use collective::{Algorithm, cost::Link};
    /// // the book's: 160 MB, four GPUs, 16 GB/s
    /// let link = Link { latency: Default::default(), bytes_per_second: 16e9 };
    /// let ms = |algorithm| link.time(algorithm, 4, 160_000_000).as_secs_f64() * 1e3;
    /// assert_eq!(ms(Algorithm::Star).round(), 60.0); // 30 there, 30 back
    /// assert_eq!(ms(Algorithm::Owner).round(), 15.0);
    /// ```
    pub fn time(&self, algorithm: Algorithm, k: usize, bytes: usize) -> Duration {
        let others = k as f64 - 1.0;
        let levels = f64::from(k.next_power_of_two().trailing_zeros());
        let (messages, share) = match algorithm {
            Algorithm::Star => (2.0 * others, 2.0 * others),
            Algorithm::Owner | Algorithm::Ring | Algorithm::Nccl => {
                (2.0 * others, 2.0 * others / k as f64)
            }
            Algorithm::Tree => (2.0 * levels, 2.0 * levels),
            Algorithm::Auto => {
                let times = Algorithm::ALL.map(|algorithm| self.time(algorithm, k, bytes));
                return times.into_iter().min().unwrap_or_default();
            }
        };
        let moving = share * bytes as f64 / self.bytes_per_second;
        self.latency.mul_f64(messages) + Duration::from_secs_f64(moving)
    }
}

/// The speed of memory that members share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// The time to pass a gate.
    pub gate: Duration,
    /// Bytes a second that one member reads and writes.
    pub one: f64,
    /// Bytes a second that all members together read and write.
    pub all: f64,
}

impl Memory {
    /// The time in which the members of a schedule all-reduce `bytes` bytes.
    pub fn time(&self, schedule: &Schedule, bytes: usize) -> Duration {
        let gates = self.gate * (schedule.rounds.len() as u32 + 1);
        let rounds = schedule.rounds.iter().map(|round| {
            let mut moved = vec![0; schedule.members];
            for sum in round {
                let len = schedule.chunk(sum.chunk, bytes).len();
                moved[sum.by] += len * (sum.from.len() + sum.to.len());
            }
            let busiest = moved.iter().max().copied().unwrap_or(0) as f64;
            let all = moved.iter().sum::<usize>() as f64;
            f64::max(busiest / self.one, all / self.all)
        });
        gates + Duration::from_secs_f64(rounds.sum())
    }
}

/// Where the summed data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Medium {
    /// In memory that all members share.
    Memory,
    /// On devices that copy from each other.
    Devices,
}

/// A machine of 2024 with four to sixteen cores. Only the ratios matter for the choice.
const MEMORY: Memory = Memory {
    gate: Duration::from_micros(1),
    one: 12e9,
    all: 50e9,
};

/// GPUs on PCI Express 4.0.
const LINK: Link = Link {
    latency: Duration::from_micros(10),
    bytes_per_second: 20e9,
};

impl Medium {
    /// The schedule for this medium.
    pub fn schedule(self, algorithm: Algorithm, k: usize) -> Schedule {
        match self {
            Medium::Memory => Schedule::in_shared_memory(algorithm, k),
            Medium::Devices => Schedule::new(algorithm, k),
        }
    }
}

impl Algorithm {
    /// This algorithm; for `auto`, the fastest one of `k` members for `bytes` bytes, on devices or in memory. In
    /// memory, `nccl` counts as `auto`.
    pub fn chosen(self, on_devices: bool, k: usize, bytes: usize) -> Algorithm {
        let medium = if on_devices {
            Medium::Devices
        } else {
            Medium::Memory
        };
        chosen(self, medium, k, bytes)
    }
}

/// `algorithm`; for `auto`, the fastest one.
pub(crate) fn chosen(algorithm: Algorithm, medium: Medium, k: usize, bytes: usize) -> Algorithm {
    match (algorithm, medium) {
        (Algorithm::Auto, _) | (Algorithm::Nccl, Medium::Memory) => fastest(medium, k, bytes),
        (chosen, _) => chosen,
    }
}

/// The fastest algorithm by the model. In a tie, the simpler one; star comes last, because all devices but
/// one are idle in it.
fn fastest(medium: Medium, k: usize, bytes: usize) -> Algorithm {
    use Algorithm::{Owner, Ring, Star, Tree};
    let time = |algorithm: &Algorithm| match medium {
        Medium::Memory => MEMORY.time(&medium.schedule(*algorithm, k), bytes),
        Medium::Devices => LINK.time(*algorithm, k, bytes),
    };
    let all = [Owner, Tree, Ring, Star];
    all.into_iter().min_by_key(time).unwrap_or(Owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages after each other, and bytes through the busiest link, counted from the schedule.
    fn count(schedule: &Schedule, bytes: usize) -> [usize; 2] {
        let mut total = [0, 0];
        for round in &schedule.rounds {
            // out of each device, and into it
            let mut flows = vec![[0, 0]; 2 * schedule.members];
            for sum in round {
                let len = schedule.chunk(sum.chunk, bytes).len();
                let reads = sum.from.iter().map(|from| (*from, sum.by));
                let writes = sum.to.iter().map(|to| (sum.by, *to));
                for (from, to) in reads.chain(writes).filter(|(from, to)| from != to) {
                    for flow in [2 * from, 2 * to + 1] {
                        flows[flow][0] += 1;
                        flows[flow][1] += len;
                    }
                }
            }
            for i in 0..2 {
                total[i] += flows.iter().map(|flow| flow[i]).max().unwrap_or(0);
            }
        }
        total
    }

    #[test]
    fn the_formulas_are_what_the_schedules_do() {
        let link = |latency, bytes_per_second| Link {
            latency,
            bytes_per_second,
        };
        let messages = link(Duration::from_secs(1), f64::INFINITY);
        let bytes_a_second = link(Duration::ZERO, 1e6);
        for k in 1..=17 {
            let bytes = 16 * k * 1000; // whole chunks
            for algorithm in Algorithm::ALL {
                for schedule in [Schedule::new, Schedule::in_shared_memory] {
                    let [counted, moved] = count(&schedule(algorithm, k), bytes);
                    let time = messages.time(algorithm, k, bytes);
                    assert_eq!(time.as_secs() as usize, counted, "{algorithm}, k = {k}");
                    let time = bytes_a_second.time(algorithm, k, bytes).as_secs_f64();
                    let difference = time * 1e6 - moved as f64;
                    assert!(difference.abs() < 1.0, "{algorithm}, k = {k}: {moved}");
                }
            }
        }
    }

    #[test]
    fn auto_takes_the_owner_for_much_and_the_tree_for_little_among_many() {
        for k in [2, 4, 8] {
            assert_eq!(fastest(Medium::Memory, k, 1 << 25), Algorithm::Owner);
            assert_eq!(fastest(Medium::Devices, k, 1 << 25), Algorithm::Owner);
        }
        assert_eq!(fastest(Medium::Devices, 64, 1000), Algorithm::Tree);
    }

    #[test]
    fn in_one_memory_every_byte_counts() {
        let memory = Memory {
            gate: Duration::ZERO,
            one: 1.0,
            all: 2.0,
        };
        let seconds = |algorithm| {
            let schedule = Schedule::in_shared_memory(algorithm, 4);
            memory.time(&schedule, 160).as_secs()
        };
        assert_eq!(seconds(Algorithm::Owner), 8 * 160 / 2); // all read and written once, by all at once
        // the hub alone reads four and writes one; then three read one and write one
        assert_eq!(seconds(Algorithm::Star), 5 * 160 + 6 * 160 / 2);
    }
}
