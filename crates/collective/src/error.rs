//! Why members of a group did not meet.

use std::fmt;
use std::time::Duration;

/// Why an all-reduce did not take place. The group is of no use afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A member was dropped while others still wait for it.
    PeerLeft {
        /// The rank of the member that left.
        rank: usize,
    },
    /// A member's data has another length than that of rank 0.
    LengthMismatch {
        /// The rank of the member that differs.
        rank: usize,
        /// The number of its elements.
        found: usize,
        /// The number of rank 0's elements.
        expected: usize,
    },
    /// A member's device could not copy or add.
    Device {
        /// The rank of the member.
        rank: usize,
        /// What it said.
        why: String,
    },
    /// A member brought another kind of item than this one, or a process made another call.
    KindMismatch,
    /// A process has ended, or has left the others, who still wait for it.
    ProcessLeft {
        /// Its rank among the processes.
        rank: usize,
    },
    /// Not all processes came within the time limit.
    ProcessesLate {
        /// The limit of the [`World`](crate::World).
        limit: Duration,
        /// The ranks of those that did not come.
        missing: Vec<usize>,
    },
    /// What a launcher says to the processes is missing, or cannot be read.
    Variable {
        /// The environment variable.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A process does not reach the others.
    World {
        /// Its rank among the processes.
        rank: usize,
        /// What went wrong.
        why: String,
    },
    /// Not all members came within the time limit.
    TimedOut {
        /// The limit of the group's [`Options`](crate::Options).
        limit: Duration,
        /// The ranks of those that did not come.
        missing: Vec<usize>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PeerLeft { rank } => write!(f, "all-reduce: replica {rank} has left the group"),
            Error::LengthMismatch {
                rank,
                found,
                expected,
            } => write!(
                f,
                "all-reduce: replica {rank} has {found} elements, replica 0 has {expected}"
            ),
            Error::Device { rank, why } => write!(f, "all-reduce: replica {rank}: {why}"),
            Error::World { rank, why } => write!(f, "all-reduce: process {rank}: {why}"),
            Error::KindMismatch => write!(
                f,
                "the replicas made different calls, or gave items of different types"
            ),
            Error::TimedOut { limit, missing } => {
                let replicas = names("replica", "s", missing);
                write!(f, "all-reduce: {replicas} did not arrive within {limit:?}")
            }
            Error::ProcessLeft { rank } => {
                write!(f, "process {rank} has ended, or has left the group")
            }
            Error::ProcessesLate { limit, missing } => {
                let processes = names("process", "es", missing);
                write!(f, "{processes} did not arrive within {limit:?}")
            }
            Error::Variable { name, why } => write!(f, "{name} {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// `replica 1`, `replicas 1, 2`.
fn names(one: &str, more: &str, ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let more = if names.len() == 1 { "" } else { more };
    format!("{one}{more} {}", names.join(", "))
}
