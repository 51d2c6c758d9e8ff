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
//! The halves of owner and ring, a [reduce-scatter](Schedule::reduce_scatter) and an [all-gather](Schedule::all_gather),
//! take half of their time each.
//!
//! NCCL counts as a ring. The busiest device of any all-reduce sends at least 2(k − 1)/k·N bytes (Patarasuk
//! and Yuan, 2009).

use crate::algorithm::{Algorithm, Schedule, Sum};
use std::collections::BTreeMap;
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
    /// use data_parallel_collective::{Algorithm, cost::Link};
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
                return Algorithm::ALL
                    .map(|algorithm| self.time(algorithm, k, bytes))
                    .into_iter()
                    .min()
                    .unwrap_or_default();
            }
        };
        let moving = share * bytes as f64 / self.bytes_per_second;
        self.latency.mul_f64(messages) + Duration::from_secs_f64(moving)
    }

    /// The time of one message.
    fn message(&self, bytes: usize) -> Duration {
        self.latency + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }
}

impl Schedule {
    /// The time in which the members all-reduce `bytes` bytes, with a link for each pair: `link(from, to)`. A member
    /// sends one message after the other, and receives one after the other; both at the same time. In a round, all chunks
    /// of one member for another are one message.
    ///
    /// # Panics
    /// If a sum names a member that does not exist; [`check_rounds`](Self::check_rounds) says so.
    ///
    /// ```
    /// use data_parallel_collective::{Algorithm, Schedule, cost::Link};
    /// // two hosts with two devices each, and a slow link between the hosts
    /// let link = |from, to| Link {
    ///     latency: Default::default(),
    ///     bytes_per_second: if from / 2 == to / 2 { 16e9 } else { 1e9 },
    /// };
    /// let ms = |algorithm| Schedule::new(algorithm, 4).time(160_000_000, link).as_secs_f64() * 1e3;
    /// assert_eq!(ms(Algorithm::Star).round(), 660.0);
    /// assert_eq!(ms(Algorithm::Ring).round(), 240.0); // one device crosses at a time
    /// ```
    pub fn time(&self, bytes: usize, link: impl Fn(usize, usize) -> Link) -> Duration {
        self.rounds
            .iter()
            .map(|round| self.round_time(round, bytes, &link))
            .sum()
    }

    /// The time of one round: that of its busiest member.
    fn round_time(
        &self,
        round: &[Sum],
        bytes: usize,
        link: impl Fn(usize, usize) -> Link,
    ) -> Duration {
        // the chunks that one member reads of another are one message, and so are those that it writes to another
        let mut messages = BTreeMap::new();
        for sum in round {
            for (from, to, chunk) in sum.messages() {
                let message = messages.entry((from, to, from == sum.by)).or_insert(0);
                *message += self.chunk(chunk, bytes).len();
            }
        }
        let mut busy = vec![[Duration::ZERO; 2]; self.members];
        for ((from, to, _), bytes) in messages {
            let time = link(from, to).message(bytes);
            busy[from][0] += time;
            busy[to][1] += time;
        }
        busy.into_iter().flatten().max().unwrap_or_default()
    }
}

impl Sum {
    /// The messages between members: the sender, the receiver and the chunk.
    pub fn messages(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let reads = self.from.iter().map(|from| (*from, self.by));
        let writes = self.to.iter().map(|to| (self.by, *to));
        reads
            .chain(writes)
            .filter(|(from, to)| from != to)
            .map(|(from, to)| (from, to, self.chunk))
    }
}

/// GPUs on PCI Express 4.0.
const LINK: Link = Link {
    latency: Duration::from_micros(10),
    bytes_per_second: 20e9,
};

impl Algorithm {
    /// This algorithm; for `auto`, the fastest one of `k` members for `bytes` bytes.
    ///
    /// In one memory that is the owner for any size: all members read and write at the same time, and each byte is
    /// read and written once. On devices it is the tree where latency counts, and otherwise the owner. In memory,
    /// `nccl` counts as `auto`.
    pub fn chosen(self, on_devices: bool, k: usize, bytes: usize) -> Algorithm {
        let time = |algorithm| LINK.time(algorithm, k, bytes);
        match self {
            Self::Auto if on_devices && time(Self::Tree) < time(Self::Owner) => Self::Tree,
            Self::Auto => Self::Owner,
            Self::Nccl if !on_devices => Self::Owner,
            named => named,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formulas_are_what_the_schedules_do() {
        let link = Link {
            latency: Duration::from_micros(1),
            bytes_per_second: 1e6,
        };
        for k in 1..=17 {
            let bytes = 16 * k * 1000; // whole chunks
            let halves = [Schedule::reduce_scatter, Schedule::all_gather];
            for algorithm in [Algorithm::Owner, Algorithm::Ring] {
                let half = link.time(algorithm, k, bytes) / 2;
                for schedule in halves {
                    let counted = schedule(algorithm, k).time(bytes, |_, _| link);
                    assert!(counted.abs_diff(half) < Duration::from_nanos(100));
                }
            }
            for algorithm in Algorithm::ALL {
                for schedule in [Schedule::new, Schedule::in_shared_memory] {
                    let counted = schedule(algorithm, k).time(bytes, |_, _| link);
                    let formula = link.time(algorithm, k, bytes);
                    let apart = counted.abs_diff(formula);
                    assert!(
                        apart < Duration::from_nanos(100),
                        "{algorithm}, k = {k}: {apart:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn auto_takes_the_owner_for_much_and_the_tree_for_little_among_many() {
        let auto = |on_devices, k, bytes| Algorithm::Auto.chosen(on_devices, k, bytes);
        for k in [2, 4, 8] {
            assert_eq!(auto(false, k, 1000), Algorithm::Owner);
            assert_eq!(auto(true, k, 1 << 25), Algorithm::Owner);
        }
        // LeNet's gradients on few devices and on many
        assert_eq!(auto(true, 2, 516_272), Algorithm::Owner);
        assert_eq!(auto(true, 64, 516_272), Algorithm::Tree);
        assert_eq!(Algorithm::Nccl.chosen(false, 2, 1000), Algorithm::Owner);
        assert_eq!(Algorithm::Ring.chosen(true, 64, 1000), Algorithm::Ring);
    }
}
