//! All-reduce among replicas: every member contributes its values and gets the sum over all members.
//! In the book: `allreduce`, and the exercise that asks for a better one.
//!
//! There are four algorithms ([`Algorithm`]), each a [`Schedule`] of rounds. Sums of vectors in shared
//! memory and sums of tensors on devices follow the same schedules. The [cost model](cost) predicts their
//! time. The order of a schedule's sums never changes, so they have the same bits every time. [`group_by`] takes a
//! schedule of your own. NVIDIA's library [NCCL](nccl) sums tensors on GPUs by schedules of its own.
//!
//! A member that leaves (its thread returned early or panicked), has another length or does not arrive
//! in time ends the call of the others with an error that names it. No member gets a partial sum.
//!
//! The members of a group are threads of one process. With a [`ProcessGroup`], several processes have members. Where
//! they are changes no bit of a sum: star, owner and tree add in the [same order](SumOrder) in any layout.
//!
//! Star adds in the order of the ranks. Owner and tree add in a tree over all ranks: 0+1, 2+3, then the pairs. Up to
//! three members, both orders are the same. A few values, such as statistics of norms, are added in rank order. A ring
//! works in one process only, and NCCL chooses its own order. A process sums its own members as far as the order
//! allows. Then member 0 sums what is left over the process group, and the others copy. A process group is MPI, or one
//! of your own.
//!
//! This crate handles only vectors and tensors, no gradients and no networks.

extern crate data_parallel_devices as devices;

// `vectors.rs` sends floats as they are in memory, and reads them as little-endian.
#[cfg(target_endian = "big")]
compile_error!("collective sends floats between processes in little-endian order");

mod algorithm;
mod barrier;
pub mod cost;
#[cfg(any(feature = "mpi", feature = "nccl"))]
mod end;
mod error;
mod group;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod nccl;
mod order;
mod process_group;
mod shared_vectors;
mod stream;
mod tensors;
mod vectors;

pub use algorithm::{Algorithm, Partial, Schedule, Sum};
pub use barrier::Deadline;
pub use error::Error;
pub use group::{GroupOptions, Member, group, group_by, group_in};
pub use order::{Addition, SumOrder};
pub use process_group::ProcessGroup;
pub use stream::{CommunicationStream, Taken};
