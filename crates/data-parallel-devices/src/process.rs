//! One process of several that train together.

use std::ops::Range;

use crate::cores::{GivenCores, given_cores};

/// The environment variables in which launchers give the number of processes; PMIx gives the rank alone.
const LAUNCHERS: [&str; 8] = [
    "OMPI_COMM_WORLD_SIZE", // Open MPI's mpirun
    "PMI_SIZE",             // mpiexec of MPICH and Intel MPI
    "MV2_COMM_WORLD_SIZE",  // MVAPICH2's mpirun_rsh
    "SLURM_STEP_NUM_TASKS", // srun; a script of sbatch is one process, however many tasks its job has
    "JSM_NAMESPACE_SIZE",   // IBM's jsrun
    "FLUX_JOB_SIZE",        // flux run
    "WORLD_SIZE",           // torchrun, accelerate, a PyTorchJob of Kubernetes: with RANK
    "PMIX_RANK",            // others, such as prun
];

/// The processes that a launcher has started, as it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launched {
    /// The environment variable that says so.
    pub variable: &'static str,
    /// Its value.
    pub value: usize,
    /// The number of processes, this one included. There may be more where only a rank is known.
    pub processes: usize,
}

/// The processes of the launcher of this process, as it says; none if there is no launcher. A launcher may have started
/// another one: then the larger number counts, as of `srun -n 1 torchrun`.
///
/// ```
/// assert_eq!(data_parallel_devices::launched(), None); // cargo test
/// ```
pub fn launched() -> Option<Launched> {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<usize>().ok();
    let says = |variable: &'static str| {
        let value = number(variable)?;
        let processes = match variable {
            // alone, the variable may be of any program
            "WORLD_SIZE" => number("RANK").map(|_| value)?,
            // processes with smaller ranks are there
            "PMIX_RANK" => value.saturating_add(1),
            _ => value,
        };
        Some(Launched {
            variable,
            value,
            processes,
        })
    };
    // of equal ones the first
    let all = LAUNCHERS.into_iter().rev().filter_map(says);
    all.max_by_key(|launched| launched.processes)
}

/// One process of several that train together, each with some of the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number, from 0; number 0 prints and writes.
    pub rank: usize,
    /// Number of processes.
    pub of: usize,
    /// Its number among those of this machine.
    pub local_rank: usize,
    /// Number of processes on this machine.
    pub on_machine: usize,
    /// Number of these that share its cores, itself included: all, unless a launcher has bound them to different ones.
    pub on_cores: usize,
}

impl Process {
    /// A process that trains by itself.
    pub const ALONE: Self = Self {
        rank: 0,
        of: 1,
        local_rank: 0,
        on_machine: 1,
        on_cores: 1,
    };

    /// The replicas of this process, of `all` in all processes. All processes have the same number of them; if that is
    /// impossible, the first ones have one more.
    ///
    /// ```
    /// let second_of_three = data_parallel_devices::Process { rank: 1, of: 3, local_rank: 1, on_machine: 3, on_cores: 3 };
    /// assert_eq!(second_of_three.replicas(4), 2..3); // 0 and 1, 2, 3
    /// ```
    pub fn replicas(self, all: usize) -> Range<usize> {
        self.first(self.rank, all)..self.first(self.rank + 1, all)
    }

    /// The replicas of this machine, where the ranks of its processes follow each other, as with `mpirun` by default.
    pub fn replicas_here(self, all: usize) -> Range<usize> {
        let rank = self.rank - self.local_rank;
        self.first(rank, all)..self.first((rank + self.on_machine).min(self.of), all)
    }

    /// The number of its first replica among those of its machine, if it shares the machine with other processes: for
    /// [`find_devices`](crate::find_devices).
    pub fn first_here(self, all: usize) -> Option<usize> {
        let first = self.replicas(all).start - self.replicas_here(all).start;
        (self.on_machine > 1).then_some(first)
    }

    fn first(self, rank: usize, all: usize) -> usize {
        rank * (all / self.of) + rank.min(all % self.of)
    }

    /// Its part of the cores, where others use the same; `all` replicas are in all processes. Where a launcher has bound
    /// each process to cores of its own, they are not divided once more.
    ///
    /// ```
    /// assert_eq!(data_parallel_devices::Process::ALONE.share_of_cores(2), None);
    /// ```
    pub fn share_of_cores(self, all: usize) -> Option<usize> {
        self.share_of(given_cores(), all)
    }

    fn share_of(self, given: &GivenCores, all: usize) -> Option<usize> {
        let cores = given.default_threads();
        // a quota is one for all processes, wherever they are bound
        if self.on_cores == self.on_machine || given.has_quota() {
            let own = self.replicas(all).len();
            let here = self.replicas_here(all).len();
            return (self.on_machine > 1).then(|| (cores * own / here.max(1)).max(1));
        }
        (self.on_cores > 1).then(|| (cores / self.on_cores).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four processes on a machine, and what each was given.
    fn share(on_cores: usize, threads: usize, cores: usize) -> Option<usize> {
        let process = Process {
            rank: 1,
            of: 4,
            local_rank: 1,
            on_machine: 4,
            on_cores,
        };
        let given = GivenCores {
            threads,
            hyperthreads: 2 * cores,
            cores,
            allowed: (0..2 * cores as u32).collect(),
        };
        process.share_of(&given, 4)
    }

    #[test]
    fn processes_on_the_same_cores_divide_them() {
        assert_eq!(share(4, 32, 16), Some(4));
        assert_eq!(share(4, 4, 2), Some(1));
    }

    #[test]
    fn cores_to_which_a_process_is_bound_are_its_own() {
        assert_eq!(share(1, 8, 4), None); // all four
        assert_eq!(share(2, 16, 8), Some(4)); // two processes on each of two sockets
    }

    #[test]
    fn a_quota_is_divided_among_all() {
        assert_eq!(share(4, 8, 16), Some(2));
        assert_eq!(share(1, 4, 8), Some(1));
    }
}
