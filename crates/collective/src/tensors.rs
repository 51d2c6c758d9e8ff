//! All-reduce of tensors, each on its member's device: the members copy what they need from each
//! other's, and add it up on their own. Nothing waits for a GPU.

use crate::algorithm::Schedule;
use crate::cost::Medium;
use crate::{Error, Member, World};
use candle_core::{Device, Result, Tensor};
use std::time::Instant;

impl Member {
    /// The sum of `data` over all members, on the device of this member's; it has the same bits for
    /// all. Every member has to call it, with a tensor of as many elements.
    ///
    /// On the CPU the members' tensors may share memory, as after candle's `to_device`.
    ///
    /// Copies between GPUs go through the host where the driver knows no shorter way. Where the group has
    /// members in other processes, those of each process sum first, and then the processes: on the device
    /// of member 0 where the [`World`] can do that, on the host where not. There it is f32 only, and the GPU
    /// is waited for.
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
    /// [`Error`]: a member left, brought another number of elements, or did not come in time, or a
    /// device fails.
    pub fn all_reduce_tensor(&mut self, data: &Tensor) -> std::result::Result<Tensor, Error> {
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
        let mine = whole.to_device(data.device());
        let mine = mine.map_err(self.fails_for_all())?;
        self.until_all_have_read(data.device())?;
        Ok(mine)
    }

    fn sum_of_the_process(&mut self, data: &Tensor) -> std::result::Result<Tensor, Error> {
        let (start, rank, len) = (Instant::now(), self.local, data.elem_count());
        let lengths = self.all_gather(len)?;
        self.same(&lengths)?;
        let schedule = self.schedule(Medium::Devices, len);
        let failed = self.fails_for_all();
        // the chunks of every round, until all have read them
        let mut mine = vec![cut(data, &schedule).map_err(&failed)?];
        for i in 0..schedule.rounds.len() {
            let written = ComeTo::now(data.device()).map_err(&failed)?;
            let all = self.all_gather((mine[i].clone(), written))?;
            let next = round(&schedule, i, rank, &all, data.device());
            mine.push(next.map_err(&failed)?);
        }
        let sum = mine.last().expect("there is one").clone();
        let sum = join(sum, data).map_err(&failed)?;
        self.over_the_link(&schedule, len, start);
        self.until_all_have_read(data.device())?;
        Ok(sum)
    }

    /// Has this member's GPU go on when those of all members of the process have come as far.
    fn until_all_have_read(&mut self, device: &Device) -> std::result::Result<(), Error> {
        let failed = self.fails_for_all();
        let read = ComeTo::now(device).map_err(&failed)?;
        for read in self.all_gather(read)? {
            read.before_more_on(device).map_err(&failed)?;
        }
        Ok(())
    }

    /// What is made of an error of this member's device: one of all members, or they would wait for it.
    fn fails_for_all(&self) -> impl Fn(candle_core::Error) -> Error + use<> {
        let (group, rank) = (self.group.clone(), self.rank());
        move |error| group.gate.fail(device_error(rank, error))
    }
}

/// The sum over all processes, from that of this one; the outer error is the device's.
fn over_the_processes(
    world: &mut dyn World,
    sum: &Tensor,
) -> Result<std::result::Result<Tensor, Error>> {
    if let Some(whole) = world.all_reduce_tensor(sum) {
        return Ok(whole);
    }
    let mut values = sum.flatten_all()?.to_vec1::<f32>()?;
    if let Err(error) = world.all_reduce(&mut values) {
        return Ok(Err(error));
    }
    Tensor::from_vec(values, sum.shape(), sum.device()).map(Ok)
}

/// What a world says of processes, of the first of so many members in each.
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

fn device_error(rank: usize, error: candle_core::Error) -> Error {
    Error::Device {
        rank,
        why: error.to_string(),
    }
}

/// The chunks of a schedule. Each has memory of its own: a device would be sent all that its memory is a part of.
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

/// What `rank` holds after a round, from what all held before, each from a point of its GPU on: candle's events
/// do not tell, because the result of an operation counts as read there and not as written.
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
            chunks[sum.chunk].to_device(device)
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

/// CUDA knows no memory of no bytes.
fn is_empty(chunk: &Tensor) -> bool {
    chunk.elem_count() == 0
}

/// How far a member's GPU has come: what it has written by then, or has read.
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

/// The CPU has done what it was asked for.
#[cfg(not(feature = "cuda"))]
impl ComeTo {
    fn now(_device: &Device) -> Result<Self> {
        Ok(Self {})
    }

    fn before_more_on(&self, _device: &Device) -> Result<()> {
        Ok(())
    }
}
