//! The arithmetic of data parallelism: a step takes t_compute(B/k) + t_comm. Measures nothing.

use std::time::Duration;

use collective::cost::{Link, Memory};
use collective::{Algorithm, Schedule};

use super::measure::{Measured, OWNER, RESNET18, Turn};

/// Links between devices, with their names.
pub const LINKS: [(&str, Link); 2] = [
    (
        "PCI Express",
        Link {
            latency: Duration::from_micros(10),
            bytes_per_second: 16e9,
        },
    ),
    (
        "Ethernet",
        Link {
            latency: Duration::from_micros(50),
            bytes_per_second: 1.25e9,
        },
    ),
];

/// The algorithms that differ over a link; the ring takes as long as the owner.
pub const OVER_A_LINK: [(Algorithm, &str); 3] = [
    (Algorithm::Star, "star"),
    (Algorithm::Owner, "owner, ring"),
    (Algorithm::Tree, "tree"),
];

/// The memory of this machine: µs of a gate, and `x += 1` of one thread and of all.
pub fn memory(gate: f64, one: &Measured, all: &Measured) -> Memory {
    let bytes_per_second = |increment: &Measured| {
        let moved = (2 * increment.k * increment.bytes()) as f64; // read and written
        moved / increment.micros(Turn::Increment).median * 1e6
    };
    Memory {
        gate: Duration::from_secs_f64(gate / 1e6),
        one: bytes_per_second(one),
        all: bytes_per_second(all),
    }
}

/// The µs of an all-reduce in one memory, by the model.
pub fn in_memory(memory: &Memory, algorithm: Algorithm, k: usize, bytes: usize) -> f64 {
    let schedule = Schedule::in_shared_memory(algorithm, k);
    memory.time(&schedule, bytes).as_secs_f64() * 1e6
}

/// The owner's bus bandwidth in GB/s, as nccl-tests count it.
pub fn bus_bandwidth(measured: &Measured) -> f64 {
    let k = measured.k as f64;
    let bytes = 2.0 * (k - 1.0) / k * measured.bytes() as f64;
    bytes / measured.micros(OWNER).median / 1e3
}

/// The ms that one replica computes for a minibatch: a part for every step and a part for every example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// For every step.
    pub step: f64,
    /// For every example.
    pub example: f64,
}

impl Compute {
    /// From the ms of two minibatches, each with its number of examples, of which the second is larger.
    pub fn fit((few, short): (usize, f64), (many, long): (usize, f64)) -> Self {
        let example = (long - short) / (many - few) as f64;
        let step = long - example * many as f64;
        match step >= 0.0 {
            true => Self { step, example },
            // by chance: nothing takes less than no time
            false => Self {
                step: 0.0,
                example: long / many as f64,
            },
        }
    }

    /// The ms of a step on so many examples.
    pub fn ms(&self, examples: f64) -> f64 {
        self.step + self.example * examples
    }
}

/// What stays the same when replicas are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The minibatch of all together.
    Strong(usize),
    /// The minibatch of each.
    Weak(usize),
}

impl Scaling {
    /// The examples of each of `k` replicas.
    pub fn examples(self, k: usize) -> f64 {
        match self {
            Scaling::Strong(batch) => batch as f64 / k as f64,
            Scaling::Weak(batch) => batch as f64,
        }
    }

    /// The examples of a step of `k` replicas.
    pub fn batch(self, k: usize) -> usize {
        match self {
            Scaling::Strong(batch) => batch,
            Scaling::Weak(batch) => batch * k,
        }
    }

    /// The examples a second of `k` replicas over `k` times those of one, from the ms of their steps.
    pub fn efficiency(self, one: f64, k: usize, ms: f64) -> f64 {
        let speed = |k: usize, ms: f64| self.batch(k) as f64 / ms;
        speed(k, ms) / (k as f64 * speed(1, one))
    }

    /// 1, 2, 4, … 1024 replicas, each with at least one example.
    pub fn replicas(self) -> Vec<usize> {
        let powers = (0..=10).map(|i| 1 << i);
        powers.filter(|k| self.examples(*k) >= 1.0).collect()
    }

    /// The ms of a step of ResNet-18 over a link.
    pub fn over(self, link: &Link, compute: &Compute, algorithm: Algorithm, k: usize) -> f64 {
        let bytes = RESNET18 * size_of::<f32>();
        let comm = link.time(algorithm, k, bytes).as_secs_f64() * 1e3;
        compute.ms(self.examples(k)) + comm
    }
}

/// Samples a second that a book publishes for the same minibatch on each of 1, 2 and 4 GPUs: ResNet-18,
/// 64 × 64 pixels, RTX 4090 without access to each other's memory.
pub const PUBLISHED: [f64; 3] = [2107.0, 3714.0, 6924.0];

/// The samples a second of four devices, from those of one and two: the step from one to two is what the
/// ring's 2(k − 1)/k·N/β is fitted to.
pub fn four_from_two(one: f64, two: f64) -> f64 {
    // seconds a step, of one sample on each device
    let (alone, pair) = (1.0 / one, 2.0 / two);
    let n_over_beta = pair - alone; // 2(k − 1)/k is 1 for k = 2
    4.0 / (alone + 2.0 * 3.0 / 4.0 * n_over_beta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_four_follow_from_one_and_two() {
        let [one, two, four] = PUBLISHED;
        let predicted = four_from_two(one, two);
        assert_eq!(predicted.round(), 7012.0); // by hand
        assert!((predicted / four - 1.0).abs() < 0.015);
        // communication that costs nothing
        assert!((four_from_two(100.0, 200.0) - 400.0).abs() < 1e-9);
    }

    #[test]
    fn a_step_is_computing_and_communicating() {
        let compute = Compute::fit((64, 74.0), (256, 266.0));
        assert_eq!(
            compute,
            Compute {
                step: 10.0,
                example: 1.0
            }
        );
        let link = Link {
            latency: Duration::ZERO,
            bytes_per_second: (4 * RESNET18) as f64, // N/β is a second
        };
        let ms = |scaling: Scaling, k| scaling.over(&link, &compute, Algorithm::Ring, k).round();
        assert_eq!(ms(Scaling::Strong(256), 1), 266.0);
        assert_eq!(ms(Scaling::Strong(256), 4), 10.0 + 64.0 + 1500.0);
        assert_eq!(ms(Scaling::Weak(64), 4), 10.0 + 64.0 + 1500.0);
    }

    #[test]
    fn no_step_takes_less_than_no_time() {
        let compute = Compute::fit((64, 60.0), (256, 256.0));
        assert_eq!(
            compute,
            Compute {
                step: 0.0,
                example: 1.0
            }
        );
    }

    #[test]
    fn half_the_time_with_two_is_perfect_only_if_the_work_is_the_same() {
        assert_eq!(Scaling::Strong(8).efficiency(10.0, 2, 5.0), 1.0);
        assert_eq!(Scaling::Weak(8).efficiency(10.0, 2, 10.0), 1.0);
        assert_eq!(Scaling::Weak(8).efficiency(10.0, 2, 20.0), 0.5);
    }

    #[test]
    fn every_replica_has_an_example() {
        assert_eq!(Scaling::Strong(6).replicas(), [1, 2, 4]);
        assert_eq!(Scaling::Weak(6).replicas().last(), Some(&1024));
    }
}
