//! The sums of one member with NCCL. It knows a rank, a size and a barrier, and no group.

#![allow(unsafe_code)]

use super::communicator::{Comm, load};
use super::watch;
use crate::barrier::Barrier;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DevicePtr};
use candle_core::{Device, Storage, Tensor, bail};
use devices::WorkSoFar;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The time that the sums in progress have when a member leaves.
const ENDING: Duration = Duration::from_secs(5);

/// The ids of the GPUs of `devices`, if NCCL can sum on them: different ids for all members.
///
/// # Errors
/// Why it cannot.
pub fn gpu_ids(devices: &[Device]) -> Result<Vec<[u8; 16]>, String> {
    load()?;
    let id = |device: &Device| {
        let stream = stream_of(device)?;
        let id = stream.context().uuid().map_err(|e| e.to_string())?;
        Ok(id.bytes.map(|byte| byte as u8))
    };
    devices.iter().map(id).collect()
}

fn stream_of(device: &Device) -> Result<Arc<CudaStream>, String> {
    match device {
        Device::Cuda(device) => Ok(device.cuda_stream()),
        _ => Err("NCCL sums on GPUs, not on the CPU".to_owned()),
    }
}

/// The communicator of a member, which has one GPU.
pub(crate) struct Nccl {
    pub(super) comm: Arc<Comm>,
    gpu: Arc<CudaContext>,
    limit: Option<Duration>,
    /// Takes what has to be done to the thread that watches the sums, if there is a limit.
    watched: Option<Sender<WorkSoFar>>,
}

impl Nccl {
    /// Makes the communicator of member `rank` of `size`, together with all others. It gives up if `barrier` fails.
    pub fn connect(
        id: &[u8],
        rank: usize,
        size: usize,
        device: &Device,
        limit: Option<Duration>,
        barrier: &Barrier,
    ) -> Result<Self, String> {
        let gpu = stream_of(device)?.context().clone();
        gpu.bind_to_thread().map_err(|error| error.to_string())?;
        let comm = Arc::new(Comm::new(id, rank, size)?);
        comm.settle(limit, Some(barrier))?;
        let watched = limit
            .map(|limit| watch::start(rank, &comm, &gpu, limit))
            .transpose()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            comm,
            gpu,
            limit,
            watched,
        })
    }

    /// Enqueues the sum of `data` over all members, in its place. It is contiguous and not empty.
    pub fn all_reduce(&self, data: &Tensor, barrier: &Barrier) -> candle_core::Result<()> {
        let stream = stream_of(data.device()).map_err(candle_core::Error::msg)?;
        let first = self.gpu.ordinal();
        let this = stream.context().ordinal();
        if first != this {
            bail!("the first sum was on GPU {first}, this one is on GPU {this}; use one GPU");
        }
        let (storage, layout) = data.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
        else {
            bail!("NCCL sums contiguous tensors on GPUs")
        };
        let values = storage.as_cuda_slice::<f32>()?.slice(start..end);
        let address = values.device_ptr(&stream).0;
        // Safety: the address has that many f32 on the communicator's GPU, which NCCL reads and writes on the stream of
        // the tensor. candle frees memory in the order of the stream, so it stays allocated until the sum is done.
        let begun = unsafe { self.comm.all_reduce(address, address, end - start, &stream) };
        let done = begun.and_then(|()| self.comm.settle(self.limit, Some(barrier)));
        done.map_err(candle_core::Error::msg)
    }

    /// Watches the sums that `device` was given so far.
    pub fn watch(&self, device: &Device) -> candle_core::Result<()> {
        if let Some(watched) = &self.watched {
            let _ = watched.send(WorkSoFar::of(device)?); // fails if the process ends
        }
        Ok(())
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.gpu.bind_to_thread().is_ok() {
            self.comm.end(ENDING);
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
