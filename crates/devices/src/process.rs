//! One process of several that train together.

use std::ops::Range;

/// One process of several that train together, each with some of the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number, from 0; number 0 prints and writes.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
    /// Its number among those of this machine.
    pub local_rank: usize,
    /// How many of them are on this machine.
    pub on_machine: usize,
}

impl Process {
    /// A process that trains by itself.
    pub const ALONE: Self = Self {
        rank: 0,
        of: 1,
        local_rank: 0,
        on_machine: 1,
    };

    /// The replicas of this process, of `all` in all processes: as many in each, the first ones have one more.
    ///
    /// ```
    /// let second_of_three = devices::Process { rank: 1, of: 3, local_rank: 1, on_machine: 3 };
    /// assert_eq!(second_of_three.replicas(4), 2..3); // 0 and 1, 2, 3
    /// ```
    pub fn replicas(self, all: usize) -> Range<usize> {
        let first = |rank: usize| rank * (all / self.of) + rank.min(all % self.of);
        first(self.rank)..first(self.rank + 1)
    }

    /// Its part of the cores, where others use the same.
    ///
    /// ```
    /// assert_eq!(devices::Process::ALONE.share_of_cores(), None);
    /// ```
    pub fn share_of_cores(self) -> Option<usize> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        (self.on_machine > 1).then(|| (all / self.on_machine).max(1))
    }
}
