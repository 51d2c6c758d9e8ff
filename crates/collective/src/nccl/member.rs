//! The sums of a member with NCCL. Its communicator is made at its first sum.

#![allow(unsafe_code)]

use super::communicator::{AllReduce, Comm, load, unique_id};
use super::watch::Watch;
use crate::error::Error;
use crate::group::Member;
use crate::tensors::device_error;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// How long the sums in progress have when a member leaves.
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

/// What sums on a member's GPU.
pub(crate) struct Nccl {
    comm: Arc<Comm>,
    gpu: Arc<CudaContext>,
    watch: Option<Watch>,
}

impl Member {
    pub(crate) fn all_reduce_with_nccl(&mut self, data: &Tensor) -> Result<Tensor, Error> {
        let lengths = self.all_gather(data.elem_count())?;
        self.same_in_all_processes(lengths)?;
        let stream = self.stream_for(data).map_err(|why| self.fails(why))?;
        if self.nccl.is_none() {
            self.nccl = Some(self.connect(stream.context())?);
        }
        match &self.nccl {
            Some(nccl) if data.elem_count() > 0 => self.sum_on_gpus(nccl, data, &stream),
            _ => Ok(data.clone()),
        }
    }

    fn sum_on_gpus(
        &self,
        nccl: &Nccl,
        data: &Tensor,
        stream: &Arc<CudaStream>,
    ) -> Result<Tensor, Error> {
        let data = self.on_device(|| data.contiguous())?;
        // Safety: NCCL writes all elements on this stream, before later work on it reads them.
        let empty = || unsafe { Tensor::empty(data.shape(), DType::F32, data.device()) };
        let sum = self.on_device(empty)?;
        let all_reduce = AllReduce {
            comm: &nccl.comm,
            stream,
            limit: self.group.options.timeout,
            gate: &self.group.gate,
        };
        let enqueued = sum.inplace_op2(&data, &all_reduce);
        enqueued.map_err(|error| self.fails(error.to_string()))?;
        // if one has not enqueued it, the GPUs of the others wait until their communicators end
        self.group.gate.pass(self.local, self.deadline().as_ref())?;
        if let Some(watch) = &nccl.watch {
            let watched = watch.on(stream);
            watched.map_err(|error| self.fails(error.to_string()))?;
        }
        Ok(sum)
    }

    /// The stream on which `data` is summed.
    fn stream_for(&self, data: &Tensor) -> Result<Arc<CudaStream>, String> {
        let stream = stream_of(data.device())?;
        let first = self.nccl.as_ref().map(|nccl| nccl.gpu.ordinal());
        let this = stream.context().ordinal();
        match (data.dtype(), first) {
            (DType::F32, None) => Ok(stream),
            (DType::F32, Some(first)) if first == this => Ok(stream),
            (DType::F32, Some(first)) => Err(format!(
                "the first sum was on GPU {first}, this one is on GPU {this}; use one GPU"
            )),
            (dtype, _) => Err(format!("the tensor is {dtype:?}; only F32 can be summed")),
        }
    }

    /// Makes this member's communicator, together with all others.
    fn connect(&mut self, gpu: &Arc<CudaContext>) -> Result<Nccl, Error> {
        let id = match self.rank() {
            0 => unique_id().map_err(|why| self.fails(why))?,
            _ => Vec::new(),
        };
        let mut ids = self.all_gather(id)?;
        if self.group.in_world {
            ids = self.over_the_world(|world| world.all_gather(&ids[0]))?;
        }
        let connected = self.connect_with(&ids[0], gpu);
        connected.map_err(|why| self.fails(why))
    }

    fn connect_with(&self, id: &[u8], gpu: &Arc<CudaContext>) -> Result<Nccl, String> {
        gpu.bind_to_thread().map_err(|error| error.to_string())?;
        let (rank, limit) = (self.rank(), self.group.options.timeout);
        let comm = Arc::new(Comm::new(id, rank, self.size())?);
        comm.settle(limit, Some(&self.group.gate))?;
        let watch = limit.map(|limit| Watch::start(rank, &comm, gpu, limit));
        let watch = watch.transpose().map_err(|error| error.to_string())?;
        let gpu = gpu.clone();
        Ok(Nccl { comm, gpu, watch })
    }

    fn fails(&self, why: String) -> Error {
        let error = device_error(self.rank(), candle_core::Error::msg(why));
        self.group.gate.fail(error)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if self.gpu.bind_to_thread().is_ok() {
            self.comm.end(ENDING);
        }
        self.watch = None; // now that no sum is in progress
    }
}

#[cfg(test)]
mod tests;
