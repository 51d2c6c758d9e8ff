//! All-reduce on GPUs by NVIDIA's library NCCL: among the members of a process, and over all processes of a world.
//! Each member needs a GPU of its own. NCCL chooses the order of a sum; all members get the same bits.
//!
//! A sum is enqueued on the stream of the tensor's device, and the host does not wait for it. NCCL compares no lengths
//! and has no timeout, and a GPU waits for ever for a member that does not take part. So members compare lengths
//! before a sum, and a sum counts only if all members of the process have enqueued it. A thread then watches it.

#[cfg(feature = "nccl")]
mod communicator;
#[cfg(feature = "nccl")]
mod member;
#[cfg(feature = "nccl")]
mod watch;

#[cfg(feature = "nccl")]
pub(crate) use member::Nccl;
#[cfg(feature = "nccl")]
pub use member::gpu_ids;

#[cfg(not(feature = "nccl"))]
pub use absent::gpu_ids;

#[cfg(not(feature = "nccl"))]
mod absent {
    use crate::error::Error;
    use crate::group::Member;
    use candle_core::{Device, Tensor};

    const NOT_BUILT: &str = "this program was built without NCCL; rebuild it with --features nccl";

    /// The ids of the GPUs of `devices`, if NCCL can sum on them: different ids for all members.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn gpu_ids(_devices: &[Device]) -> Result<Vec<[u8; 16]>, String> {
        Err(NOT_BUILT.to_owned())
    }

    impl Member {
        pub(crate) fn all_reduce_with_nccl(&mut self, _data: &Tensor) -> Result<Tensor, Error> {
            let (rank, why) = (self.rank(), NOT_BUILT.to_owned());
            Err(self.group.gate.fail(Error::Device { rank, why }))
        }
    }
}
