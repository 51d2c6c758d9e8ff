//! All-reduce on GPUs by NVIDIA's library NCCL: among the members of a process, and over all processes of a process
//! group. Each member needs a GPU of its own. NCCL chooses the order of a sum; all members get the same bits.
//!
//! A sum is enqueued on the stream of the tensor's device, and the host does not wait for it. NCCL compares no lengths
//! and has no timeout, and a GPU waits for ever for a member that does not take part. So members compare lengths
//! before a sum, and a sum counts only if all members of the process have enqueued it. A thread then watches it.
//!
//! cudarc's safe communicator is not enough for this: its calls block until all members have made them, it cannot be
//! asked for errors, and no other thread can abort it.

#[cfg(feature = "nccl")]
mod communicator;
#[cfg(feature = "nccl")]
mod sums;
#[cfg(feature = "nccl")]
mod watch;

#[cfg(feature = "nccl")]
pub use sums::gpu_ids;
#[cfg(feature = "nccl")]
pub(crate) use {communicator::unique_id, sums::Nccl};

#[cfg(not(feature = "nccl"))]
pub(crate) const NOT_BUILT: &str =
    "this program was built without NCCL; rebuild it with --features nccl";

/// The ids of the GPUs of `devices`, if NCCL can sum on them: different ids for all members.
///
/// # Errors
/// Why it cannot.
#[cfg(not(feature = "nccl"))]
pub fn gpu_ids(_devices: &[candle_core::Device]) -> Result<Vec<[u8; 16]>, String> {
    Err(NOT_BUILT.to_owned())
}
