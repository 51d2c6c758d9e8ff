//! All-reduce of tensors, each on its member's device. A member copies the chunks that it needs from other
//! devices, and adds them on its own. Within a process, the host does not wait for a GPU.

use crate::algorithm::{Algorithm, Schedule};
use crate::cost::Medium;
use crate::error::Error;
use crate::group::{Group, Member};
use crate::peers::copy;
use crate::world::World;
use candle_core::{Device, Result, Tensor};
use std::time::Instant;

impl Member {
    /// The sum of `data` over all members, on the device of `data`. All members get the same bits. Every
    /// member must call it, with the same number of elements.
    ///
    /// On the CPU, the sums of the members may share memory, as after candle's `to_device`.
    ///
    /// Copies between GPUs go through the host, unless [`connect`](crate::connect) has made them direct. In a
    /// world, the members of each process sum first, then the processes. They sum on the host, which takes only
    /// f32 and waits for the GPU.
    /// With [`Algorithm::Nccl`], all members of all processes sum together on their GPUs.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// let mut member = collective::group(1, Default::default()).remove(0);
    /// let data = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(member.all_reduce_tensor(&data)?.to_vec1::<f32>()?, [1., 2.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error`]: a member left, had another number of elements or did not arrive in time, or a device
    /// failed.
    pub fn all_reduce_tensor(&mut self, data: &Tensor) -> std::result::Result<Tensor, Error> {
        if self.group.options.algorithm == Algorithm::Nccl {
            return self.all_reduce_with_nccl(data);
        }
        let sum = self.sum_of_the_process(data)?;
        if !self.group.in_world {
            return Ok(sum);
        }
        let (rank, locals) = (self.rank(), self.locals);
        let whole = self.over_the_world(|world| {
            let whole = over_the_processes(world, &sum);
            let whole = whole.map_err(|error| device_error(rank, error));
            whole?.map_err(|error| of_members(error, locals))
        })?;
        if locals == 1 {
            return Ok(whole);
        }
        let mine = self.on_device(|| whole.to_device(data.device()))?;
        self.until_all_have_read(data.device())?;
        Ok(mine)
    }

    fn sum_of_the_process(&mut self, data: &Tensor) -> std::result::Result<Tensor, Error> {
        let (start, rank, len) = (Instant::now(), self.local, data.elem_count());
        let lengths = self.all_gather(len)?;
        self.same(&lengths)?;
        let schedule = self.schedule(Medium::Devices, len);
        // keeps the chunks of every round until all members have read them
        let mut mine = vec![self.on_device(|| cut(data, &schedule))?];
        for i in 0..schedule.rounds.len() {
            let written = self.on_device(|| ComeTo::now(data.device()))?;
            let all = self.all_gather((mine[i].clone(), written))?;
            mine.push(self.on_device(|| round(&schedule, i, rank, &all, data.device()))?);
        }
        let sum = mine.last().expect("there is one");
        let sum = self.on_device(|| join(sum.clone(), data))?;
        self.over_the_link(&schedule, len, start);
        self.until_all_have_read(data.device())?;
        Ok(sum)
    }

    /// Makes this member's GPU wait until the GPUs of all members of the process reach this point.
    fn until_all_have_read(&mut self, device: &Device) -> std::result::Result<(), Error> {
        let read = self.on_device(|| ComeTo::now(device))?;
        for read in self.all_gather(read)? {
            self.on_device(|| read.before_more_on(device))?;
        }
        Ok(())
    }

    /// What `f` does on this member's device. If it fails, it is tried again after the options have made room. Its
    /// second error is one of all members; otherwise they would wait for this one.
    pub(crate) fn on_device<T>(&self, f: impl Fn() -> Result<T>) -> std::result::Result<T, Error> {
        let Group { options, gate, .. } = &*self.group;
        let again = |error| match options.make_room {
            None => Err(error),
            Some(make_room) => {
                make_room();
                f()
            }
        };
        let failed = |error| gate.fail(device_error(self.rank(), error));
        f().or_else(again).map_err(failed)
    }
}

/// The sum over all processes; `sum` is that of this process. The outer error is one of the device.
fn over_the_processes(
    world: &mut dyn World,
    sum: &Tensor,
) -> Result<std::result::Result<Tensor, Error>> {
    let mut values = sum.flatten_all()?.to_vec1::<f32>()?;
    if let Err(error) = world.all_reduce(&mut values) {
        return Ok(Err(error));
    }
    Tensor::from_vec(values, sum.shape(), sum.device()).map(Ok)
}

/// Replaces the rank of a process by that of its first member; each process has `locals` members.
fn of_members(error: Error, locals: usize) -> Error {
    match error {
        Error::LengthMismatch {
            rank,
            found,
            expected,
        } => Error::LengthMismatch {
            rank: rank * locals,
            found,
            expected,
        },
        other => other,
    }
}

pub(crate) fn device_error(rank: usize, error: candle_core::Error) -> Error {
    Error::Device {
        rank,
        why: error.to_string(),
    }
}

/// The chunks of a schedule, each in its own memory: candle copies the whole storage to another device.
pub(crate) fn cut(data: &Tensor, schedule: &Schedule) -> Result<Vec<Tensor>> {
    let flat = data.flatten_all()?;
    let chunks = (0..schedule.chunks).map(|chunk| {
        let range = schedule.chunk(chunk, data.elem_count());
        let part = flat.narrow(0, range.start, range.len())?;
        match range.len() == data.elem_count() || range.is_empty() {
            true => Ok(part),
            false => part.force_contiguous(),
        }
    });
    chunks.collect()
}

/// The chunks of `rank` after a round. `all` has the chunks of each member before the round, and the point at
/// which its GPU has written them. candle's events do not suffice: they record an operation's result as read,
/// not as written.
#[tracing::instrument(skip_all, name = "sum")]
fn round(
    schedule: &Schedule,
    round: usize,
    rank: usize,
    all: &[(Vec<Tensor>, ComeTo)],
    device: &Device,
) -> Result<Vec<Tensor>> {
    let mut mine = all[rank].0.clone();
    let own = schedule.rounds[round].iter().filter(|sum| sum.by == rank);
    for sum in own.filter(|sum| !is_empty(&all[rank].0[sum.chunk])) {
        let part = |from: usize| {
            let (chunks, written) = &all[from];
            written.before_more_on(device)?;
            copy(&chunks[sum.chunk], device)
        };
        let mut parts = sum.from.iter().map(|from| part(*from));
        let first = parts.next().expect("a sum has a part")?;
        mine[sum.chunk] = parts.try_fold(first, |sum, part| sum + part?)?;
    }
    Ok(mine)
}

/// The chunks as one tensor of the shape of `data`.
fn join(mut chunks: Vec<Tensor>, data: &Tensor) -> Result<Tensor> {
    chunks.retain(|chunk| !is_empty(chunk));
    let sum = match &chunks[..] {
        [] => data.clone(),
        [one] => one.clone(),
        many => Tensor::cat(many, 0)?,
    };
    sum.reshape(data.shape())
}

/// CUDA cannot allocate 0 bytes.
fn is_empty(chunk: &Tensor) -> bool {
    chunk.elem_count() == 0
}

/// A point in the work of a member's GPU, after its writes or reads so far.
#[derive(Clone)]
struct ComeTo {
    #[cfg(feature = "cuda")]
    event: Option<std::sync::Arc<candle_core::cuda_backend::cudarc::driver::CudaEvent>>,
}

#[cfg(feature = "cuda")]
impl ComeTo {
    fn now(device: &Device) -> Result<Self> {
        let record = |device: &candle_core::CudaDevice| device.cuda_stream().record_event(None);
        let event = match device {
            Device::Cuda(device) => Some(record(device).map_err(candle_core::Error::wrap)?.into()),
            _ => None,
        };
        Ok(Self { event })
    }

    fn before_more_on(&self, device: &Device) -> Result<()> {
        match (&self.event, device) {
            (Some(event), Device::Cuda(device)) => {
                let waits = device.cuda_stream().wait(event);
                waits.map_err(candle_core::Error::wrap)
            }
            _ => Ok(()),
        }
    }
}

/// On the CPU, an operation is done when its call returns.
#[cfg(not(feature = "cuda"))]
impl ComeTo {
    fn now(_device: &Device) -> Result<Self> {
        Ok(Self {})
    }

    fn before_more_on(&self, _device: &Device) -> Result<()> {
        Ok(())
    }
}
