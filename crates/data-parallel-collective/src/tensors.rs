//! All-reduce of tensors, each on its member's device. A member copies the chunks that it needs from other
//! devices, and adds them on its own. Within a process, the host does not wait for a GPU.

use crate::algorithm::{Algorithm, Schedule};
use crate::error::Error;
use crate::group::Member;
#[cfg(feature = "nccl")]
use crate::nccl::{Nccl, unique_id};
use candle_core::{Device, Result, Tensor};
use devices::{retry_with_empty_cache, to_device};
use std::fmt::Display;
use std::ops::Range;
use std::time::Instant;

impl Member {
    /// Replaces `data` by its sum over all members, in its memory. All members get the same bits. Every member must call
    /// it, with the same number of elements.
    ///
    /// Copies between GPUs go through the host, unless [`connect`](devices::connect) has made them direct. In a process
    /// group, the members of each process sum first, then the processes. They sum on the host, which takes only f32
    /// and waits for the GPU.
    /// With [`Algorithm::Nccl`], all members of all processes sum together on their GPUs.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// let mut member = data_parallel_collective::group(1, Default::default()).remove(0);
    /// let data = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// member.all_reduce_tensor(&data)?;
    /// assert_eq!(data.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, had another number of elements or did not arrive in time, a device failed, or the
    /// tensor is not contiguous. What is in `data` after an error is not defined.
    pub fn all_reduce_tensor(&mut self, data: &Tensor) -> std::result::Result<(), Error> {
        if !data.is_contiguous() {
            return Err(self.fails("a sum takes the place of a contiguous tensor"));
        }
        if self.group.options.algorithm == Algorithm::Nccl {
            return self.all_reduce_with_nccl(data);
        }
        self.sum_of_the_process(data)?;
        let group = self.group.clone();
        let Some(order) = &group.order else {
            return Ok(());
        };
        let rank = self.rank();
        let locals = self.locals;
        let sums = self.all_gather(data.clone())?;
        let whole = self.over_all_processes(|processes| {
            let failed = |error: candle_core::Error| device_error(rank, error);
            let values = |own: Range<usize>| sums[own.start].flatten_all()?.to_vec1::<f32>();
            let mut values = order
                .locals(group.process)
                .map(values)
                .collect::<Result<Vec<_>>>()
                .map_err(failed)?;
            let mut vectors: Vec<&mut [f32]> = values.iter_mut().map(|v| &mut v[..]).collect();
            processes.all_reduce(&mut vectors, order)?;
            let whole = values.swap_remove(0);
            Tensor::from_vec(whole, data.elem_count(), data.device()).map_err(failed)
        })?;
        self.on_device(|| {
            let whole = to_device(&whole, data.device())?;
            put(&whole, data, 0)
        })?;
        if locals > 1 {
            self.barrier()?;
        }
        Ok(())
    }

    fn sum_of_the_process(&mut self, data: &Tensor) -> std::result::Result<(), Error> {
        let start = Instant::now();
        let rank = self.local;
        let len = data.elem_count();
        let lengths = self.all_gather(len)?;
        self.same_length(lengths)?;
        let schedule = self.schedule(true, len);
        let mut mine = self.on_device(|| cut(data, &schedule))?;
        for i in 0..schedule.rounds.len() {
            let all = self.all_gather(mine)?;
            mine = self.on_device(|| round(&schedule, i, rank, &all, data.device()))?;
        }
        self.over_the_link(&schedule, len, start);
        // each copy is in order with its source's later work; behind the barrier all copies have been enqueued
        self.barrier()?;
        self.on_device(|| {
            for (chunk, sum) in mine.iter().enumerate() {
                let mut sums = schedule.rounds.iter().flatten();
                let is_new = sums.any(|sum| sum.by == rank && sum.chunk == chunk);
                if is_new {
                    put(sum, data, schedule.chunk(chunk, len).start)?;
                }
            }
            Ok(())
        })
    }

    #[cfg(not(feature = "nccl"))]
    fn all_reduce_with_nccl(&mut self, _: &Tensor) -> std::result::Result<(), Error> {
        Err(self.fails(crate::nccl::NOT_BUILT))
    }

    #[cfg(feature = "nccl")]
    fn all_reduce_with_nccl(&mut self, data: &Tensor) -> std::result::Result<(), Error> {
        let lengths = self.all_gather(data.elem_count())?;
        self.same_in_all_processes(lengths)?;
        if self.nccl.is_none() {
            self.nccl = Some(self.connect_with_nccl(data.device())?);
        }
        if data.elem_count() == 0 {
            return Ok(());
        }
        let nccl = self.nccl.as_ref().expect("it was made above");
        let barrier = &self.group.barrier;
        nccl.all_reduce(data, barrier).map_err(|e| self.fails(e))?;
        // if one has not enqueued it, the GPUs of the others wait until their communicators end
        barrier.wait(self.local, self.deadline().as_ref())?;
        nccl.watch(data.device()).map_err(|e| self.fails(e))
    }

    /// Makes this member's communicator, together with all others.
    #[cfg(feature = "nccl")]
    fn connect_with_nccl(&mut self, device: &Device) -> std::result::Result<Nccl, Error> {
        let rank = self.rank();
        let size = self.size();
        let limit = self.group.options.timeout;
        let id = match rank {
            0 => unique_id().map_err(|why| self.fails(why))?,
            _ => Vec::new(),
        };
        let mut ids = self.all_gather(id)?;
        if self.group.order.is_some() {
            ids = self.over_all_processes(|processes| processes.all_gather(&ids[0]))?;
        }
        Nccl::connect(&ids[0], rank, size, device, limit, &self.group.barrier)
            .map_err(|why| self.fails(why))
    }

    /// The result of `f`, which works on this member's device. An error is one of all members; otherwise they would
    /// wait for this one.
    fn on_device<T>(&self, f: impl Fn() -> Result<T>) -> std::result::Result<T, Error> {
        retry_with_empty_cache(f).map_err(|error| self.fails(error))
    }

    fn fails(&self, error: impl Display) -> Error {
        self.group.barrier.fail(device_error(self.rank(), error))
    }
}

fn device_error(rank: usize, error: impl Display) -> Error {
    Error::Device {
        rank,
        why: error.to_string(),
    }
}

/// The chunks of a schedule, in the memory of `data`.
fn cut(data: &Tensor, schedule: &Schedule) -> Result<Vec<Tensor>> {
    let flat = data.flatten_all()?;
    let chunks = (0..schedule.chunks).map(|chunk| {
        let range = schedule.chunk(chunk, data.elem_count());
        flat.narrow(0, range.start, range.len())
    });
    chunks.collect()
}

/// The chunks of `rank` after a round; `all` has the chunks of each member before it.
#[tracing::instrument(skip_all, name = "sum")]
fn round(
    schedule: &Schedule,
    round: usize,
    rank: usize,
    all: &[Vec<Tensor>],
    device: &Device,
) -> Result<Vec<Tensor>> {
    let mut mine = all[rank].clone();
    let own = schedule.rounds[round].iter().filter(|sum| sum.by == rank);
    for sum in own.filter(|sum| !is_empty(&all[rank][sum.chunk])) {
        let part = |from: &usize| to_device(&all[*from][sum.chunk], device);
        let parts = sum.from.iter().map(part);
        mine[sum.chunk] = sum.total(parts, |a, b| a? + b?)?;
    }
    Ok(mine)
}

/// Writes the elements of `from` into `data`, from number `first` on.
fn put(from: &Tensor, data: &Tensor, first: usize) -> Result<()> {
    if is_empty(from) {
        return Ok(());
    }
    data.flatten_all()?.slice_set(from, 0, first)
}

/// CUDA cannot allocate 0 bytes.
fn is_empty(chunk: &Tensor) -> bool {
    chunk.elem_count() == 0
}
