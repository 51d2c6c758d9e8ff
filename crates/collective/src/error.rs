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
                "all-reduce: replica {rank} brought {found} elements, replica 0 {expected}"
            ),
            Error::Device { rank, why } => write!(f, "all-reduce: replica {rank}: {why}"),
            Error::World { rank, why } => write!(f, "all-reduce: process {rank}: {why}"),
            Error::KindMismatch => write!(f, "the replicas brought items of different kinds"),
            Error::TimedOut { limit, missing } => {
                let names: Vec<String> = missing.iter().map(usize::to_string).collect();
                let (s, names) = (if names.len() == 1 { "" } else { "s" }, names.join(", "));
                write!(
                    f,
                    "all-reduce: replica{s} {names} did not come within {limit:?}"
                )
            }
        }
    }
}

impl std::error::Error for Error {}
