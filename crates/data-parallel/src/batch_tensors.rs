//! The tensors of a minibatch, or of a replica's part of it, whatever form a program's batches have.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, TensorId};
use devices::{WorkSoFar, bail, follow, or_panic, send_view, view_to_device};
use training::{Batch, named, num_examples_of, tensors};

/// Inputs and targets, which have one first dimension: the examples.
pub(crate) struct BatchTensors {
    pub x: Vec<Tensor>,
    /// Labels or other targets. There may be none.
    pub y: Vec<Tensor>,
    pub examples: usize,
}

impl BatchTensors {
    /// # Errors
    /// If two tensors have different numbers of examples.
    pub fn new(x: &impl Batch, y: &impl Batch) -> Result<Self> {
        let x = tensors(x)?;
        let y = tensors(y)?;
        let examples = num_examples_of(&x, &y)?;
        Ok(Self { x, y, examples })
    }

    /// As [`new`](Self::new); a panic in a `map` of the program becomes an error.
    pub fn of_program(x: &impl Batch, y: &impl Batch) -> Result<Self> {
        or_panic(|| Self::new(x, y))
    }

    /// What tells the tensors of a minibatch from all others; nothing where `map` of the program is an error.
    pub fn ids_of_program(x: &impl Batch, y: &impl Batch) -> Vec<TensorId> {
        let all = or_panic(|| Ok([tensors(x)?, tensors(y)?].concat()));
        all.unwrap_or_default().iter().map(Tensor::id).collect()
    }

    /// An error that names a number that is NaN or infinite, in f32 on the CPU.
    pub fn check_finite(&self) -> Result<()> {
        for (name, numbers) in self.named() {
            if let Some(at) = functional::not_finite(numbers)? {
                let example = at / (numbers.elem_count() / self.examples);
                let value = numbers.flatten_all()?.get(at)?.to_scalar::<f32>()?;
                bail!(
                    "{name} has the value {value} in example {example} of the minibatch; no step was taken. \
                     Trainer::check_numbers(false) trains all the same"
                )
            }
        }
        Ok(())
    }

    /// All tensors, with the names that messages give them.
    pub fn named(&self) -> impl Iterator<Item = (String, &Tensor)> {
        named(&self.x, &self.y)
    }

    /// The book's `split_batch`, in shares of these numbers of examples: one shard of consecutive examples for each device.
    /// [`Sent`] orders the copies with later work.
    pub fn split(&self, devices: &[Device], shares: &[usize]) -> Result<Vec<Self>> {
        split_by(devices, shares, |first, examples, device| {
            self.shard(first, examples, |rows| send_view(rows, device))
        })
    }

    /// As [`split`](Self::split); a device that gets no example has no shard. A GPU cannot have an empty one.
    pub fn split_in_inference(
        &self,
        devices: &[Device],
        shares: &[usize],
    ) -> Result<Vec<Option<Self>>> {
        split_by(devices, shares, |first, examples, device| {
            let has_some = examples > 0;
            let copy = |rows: &Tensor| view_to_device(rows, device);
            let shard = has_some.then(|| self.shard(first, examples, copy));
            shard.transpose()
        })
    }

    /// These examples, copied by `copy`.
    fn shard(
        &self,
        first: usize,
        examples: usize,
        copy: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let rows = |tensor: &Tensor| copy(&tensor.narrow(0, first, examples)?);
        Ok(Self {
            x: self.x.iter().map(rows).collect::<Result<_>>()?,
            y: self.y.iter().map(rows).collect::<Result<_>>()?,
            examples,
        })
    }

    /// These rows of all tensors.
    pub fn rows(&self, rows: &[u32]) -> Result<Self> {
        let of = |tensor: &Tensor| {
            let rows = Tensor::new(rows, tensor.device())?;
            tensor.contiguous()?.index_select(&rows, 0)
        };
        Ok(Self {
            x: self.x.iter().map(of).collect::<Result<_>>()?,
            y: self.y.iter().map(of).collect::<Result<_>>()?,
            examples: rows.len(),
        })
    }

    /// What tells the minibatches of processes apart; nothing of one that has no two different numbers.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        let mut sums = Vec::new();
        let mut differ = false;
        for (_, tensor) in self.named() {
            let values = tensor
                .to_dtype(DType::F64)?
                .flatten_all()?
                .to_vec1::<f64>()?;
            differ |= values.iter().any(|value| *value != values[0]);
            sums.extend(crc32fast::hash(bytemuck::cast_slice(&values)).to_le_bytes());
        }
        Ok(if differ { sums } else { Vec::new() })
    }
}

/// A minibatch of which other GPUs copy their shards. The GPU that has it begins its own part of the step meanwhile. When
/// this is dropped, at the end of the step, that GPU's later work waits for the copies: it may free the minibatch.
pub(crate) struct Sent {
    pub data: BatchTensors,
    to: Arc<[Device]>,
    /// The work of the other devices up to their copies; nothing until all are on their way.
    copies: Vec<WorkSoFar>,
}

impl Sent {
    /// Of a minibatch that is split next.
    pub fn new(data: BatchTensors, to: Arc<[Device]>) -> Self {
        let copies = Vec::new();
        Self { data, to, copies }
    }

    /// All copies are on their way.
    ///
    /// # Errors
    /// If a device fails.
    pub fn all(&mut self) -> Result<()> {
        let all_here = |to: &&Device| self.tensors().all(|tensor| tensor.device().same_device(to));
        let others = self.to.iter().filter(|to| !all_here(to));
        self.copies = others.map(WorkSoFar::of).collect::<Result<_>>()?;
        Ok(())
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.data.x.iter().chain(&self.data.y)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        for (number, tensor) in self.tensors().enumerate() {
            let from = tensor.device();
            let mut before = self.tensors().take(number);
            if before.any(|other| other.device().same_device(from)) {
                continue;
            }
            // a GPU that has failed says so in the next call
            for work in &self.copies {
                let _ = work.comes_before(from);
            }
            if self.copies.is_empty() {
                self.to.iter().for_each(|to| drop(follow(to, from)));
            }
        }
    }
}

/// What `shard` makes for each device: of the number of its first example, the number of its examples, and the device.
#[tracing::instrument(skip_all, name = "split")]
fn split_by<T>(
    devices: &[Device],
    shares: &[usize],
    shard: impl Fn(usize, usize, &Device) -> Result<T>,
) -> Result<Vec<T>> {
    let mut first = 0;
    let mut shards = Vec::new();
    for (i, (device, &examples)) in devices.iter().zip(shares).enumerate() {
        let on_device = || shard(first, examples, device);
        shards.push(devices::on_replica(i, device, on_device)?);
        first += examples;
    }
    Ok(shards)
}

/// The first two processes that have the same fingerprint, of those of all.
pub(crate) fn first_twins(fingerprints: &[Vec<u8>]) -> Option<(usize, usize)> {
    for (i, other) in fingerprints.iter().enumerate() {
        let mut before = fingerprints[..i].iter();
        let first = before.position(|first| first == other && !first.is_empty());
        if let Some(first) = first {
            return Some((first, i));
        }
    }
    None
}
