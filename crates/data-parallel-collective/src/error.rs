//! Why a call of a group or of a process group failed.

use std::fmt;
use std::time::Duration;

/// Why a call failed. Do not use the group after an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A member was dropped before a call of the others was complete.
    PeerLeft {
        /// The rank of the member that left.
        rank: usize,
    },
    /// A member's data has another length than that of rank 0.
    LengthMismatch {
        /// The rank of that member.
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
        /// The error message of the device.
        why: String,
    },
    /// A member passed an item of another type, or a process made another call.
    KindMismatch,
    /// A process failed; for example, it cannot reach the others.
    Process {
        /// Its rank among the processes.
        rank: usize,
        /// The reason.
        why: String,
    },
    /// Not all members arrived within the time limit.
    TimedOut {
        /// The limit of the group's [`GroupOptions`](crate::GroupOptions).
        limit: Duration,
        /// The ranks of the members that did not arrive.
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
            Error::Process { rank, why } => write!(f, "all-reduce: process {rank}: {why}"),
            Error::KindMismatch => {
                f.write_str("the replicas made different calls, or gave items of different types")
            }
            Error::TimedOut { limit, missing } => {
                let replicas = names("replica", missing);
                write!(f, "all-reduce: {replicas} did not arrive within {limit:?}")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for candle_core::Error {
    /// [`devices::find`] finds it again.
    fn from(error: Error) -> Self {
        devices::wrap(error)
    }
}

/// `replica 1`, `replicas 1, 2`.
pub(crate) fn names(one: &str, ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().map(usize::to_string).collect();
    let s = if names.len() == 1 { "" } else { "s" };
    format!("{one}{s} {}", names.join(", "))
}
