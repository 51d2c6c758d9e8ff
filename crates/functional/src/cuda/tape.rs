//! Tapes on a GPU: the twin of [`crate::tape`]'s forward and backward, and how candle's tensors go in
//! and come out.

use super::Cuda;
use super::memory::{Block, Element, Floats};
use super::operation::{At, Grad};
use super::stream::Stream;
use crate::places::{self, Place};
use crate::record::{Evaluated, Runs};
use crate::tape::{Leaf, Step, Tape};
use candle_core::cuda_backend::CudaStorage;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail};
use std::cell::Cell;
use std::sync::Arc;

/// What a forward pass leaves for backward: the results of all steps but the last, which is the tensor
/// that the caller has, and what each step kept.
pub(crate) struct Kept {
    stream: Arc<Stream>,
    values: Vec<Option<Block>>,
    steps: Vec<Vec<Block>>,
}

impl Runs for Cuda {
    type Kept = Kept;

    fn forward(tape: &Tape<Self>, keep: bool) -> Result<(Storage, Kept)> {
        let stream = stream_of(&tape.leaves[0].data)?;
        let mut y = stream.alloc(tape.dims().iter().product())?;
        let kept = {
            let (address, _written) = y.device_ptr_mut(stream.cuda());
            let len = tape.dims().iter().product();
            tape.forward(&stream, Floats::new(address, len), keep)?
        };
        Ok((storage(y, &stream), kept))
    }

    fn backward(ran: &Evaluated<Self>, y: &Tensor, dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let (stream, tape) = (&ran.kept.stream, &ran.tape);
        stream.bind()?; // backward may be called on another thread
        let d_result = Block::new(stream, dy.elem_count())?;
        with_floats(&[&dy.contiguous()?], stream, |dy| {
            stream.copy(dy[0], d_result.floats())
        })?;
        let grads = (0..tape.leaves.len()).map(|i| {
            let len = tape.leaves[i].source.elem_count();
            Ok(match (ran.tracked[i], ran.place(i)?) {
                (false, _) => Grad::Unwanted,
                (true, None) => Grad::Empty(Element::F32, len),
                (true, Some(place)) => Grad::Placed(place, len),
            })
        });
        let grads = grads.collect::<Result<_>>()?;
        let grads = with_floats(&[y], stream, |y| {
            tape.backward(&ran.kept, y[0], d_result, grads)
        })?;
        let own = tape.leaves.iter().zip(grads);
        own.map(|(leaf, grad)| own_gradient(leaf, grad, stream))
            .collect()
    }
}

/// The gradient as a tensor; none where it went elsewhere.
fn own_gradient(leaf: &Leaf, grad: Grad, stream: &Stream) -> Result<Option<Tensor>> {
    let grad = match grad {
        Grad::Block(grad) => tensor(grad.into_slice(stream)?, leaf.data.shape(), stream),
        Grad::Empty(..) => leaf.data.zeros_like()?,
        Grad::Unwanted | Grad::Placed(..) | Grad::Place { .. } => return Ok(None),
    };
    leaf.as_seen(grad).map(Some)
}

impl Tape<Cuda> {
    /// Writes the result to `y`; where not `keep`, each value is given back after its last use.
    fn forward(&self, stream: &Arc<Stream>, y: Floats, keep: bool) -> Result<Kept> {
        let mut kept = Kept {
            stream: stream.clone(),
            values: Vec::new(),
            steps: Vec::new(),
        };
        let leaves: Vec<&Tensor> = self.leaves.iter().map(|l| &l.data).collect();
        with_floats(&leaves, stream, |leaves| {
            for (i, step) in self.steps.iter().enumerate() {
                let (element, len) = (step.operation.element(), step.dims.iter().product());
                let value = match i + 1 == self.steps.len() {
                    true => None,
                    false => Some(Block::of(element, stream, len)?),
                };
                let to = value.as_ref().map_or(y, Block::floats);
                let x = inputs(step, leaves, &kept.values);
                let of_step = step.operation.forward(stream, &x, to, keep)?;
                kept.steps.push(if keep { of_step } else { Vec::new() });
                kept.values.push(value);
                if !keep {
                    for value in self.last_read_by(i) {
                        kept.values[value] = None;
                    }
                }
            }
            Ok(())
        })?;
        Ok(kept)
    }

    /// Sums up the gradients of the leaves, from the result `y` and its gradient.
    fn backward(
        &self,
        kept: &Kept,
        y: Floats,
        dy: Block,
        mut grads: Vec<Grad<'static>>,
    ) -> Result<Vec<Grad<'static>>> {
        let stream = &kept.stream;
        let of_steps = self.wanted(grads.iter().map(Grad::wanted));
        let elements = self.steps.iter().map(|step| step.operation.element());
        grads.extend(
            of_steps
                .into_iter()
                .zip(elements)
                .map(|(len, element)| len.map_or(Grad::Unwanted, |len| Grad::Empty(element, len))),
        );
        if let Some(last) = grads.last_mut() {
            last.give(stream, dy)?;
        }
        let leaves: Vec<&Tensor> = self.leaves.iter().map(|l| &l.data).collect();
        with_floats(&leaves, stream, |leaves| {
            for (i, step) in self.steps.iter().enumerate().rev() {
                if let Some(Grad::Block(dy)) = grads.pop() {
                    let at = At {
                        x: &inputs(step, leaves, &kept.values),
                        y: kept.values[i].as_ref().map_or(y, Block::floats),
                        kept: &kept.steps[i],
                    };
                    with_grads(stream, &step.inputs, &mut grads, |dx| {
                        step.operation.backward(stream, at, dy, dx)
                    })?;
                }
                let mut complete = self.first_read_by(i).filter_map(|i| grads[i].place());
                complete.try_for_each(places::finish)?;
            }
            Ok(())
        })?;
        Ok(grads)
    }
}

fn inputs(step: &Step<Cuda>, leaves: &[Floats], values: &[Option<Block>]) -> Vec<Floats> {
    let value = |&i: &usize| match i.checked_sub(leaves.len()) {
        None => leaves[i],
        Some(i) => values[i].as_ref().expect("it is read later").floats(),
    };
    step.inputs.iter().map(value).collect()
}

/// Calls `f` with the gradients of `inputs`, those of parameters in their places; a value that is there
/// twice is summed up in two parts.
fn with_grads(
    stream: &Stream,
    inputs: &[usize],
    grads: &mut [Grad<'static>],
    f: impl FnOnce(&mut [Grad<'_>]) -> Result<()>,
) -> Result<()> {
    let before = |n: usize| inputs[..n].iter().position(|i| *i == inputs[n]);
    let mut taken: Vec<Grad<'static>> = Vec::new();
    for (n, &i) in inputs.iter().enumerate() {
        taken.push(match before(n) {
            None => grads[i].take(),
            Some(first) => taken[first].part(),
        });
    }
    let places: Vec<Place> = taken.iter().filter_map(Grad::place).collect();
    places::with_addresses(stream, &places, |lent| {
        let mut dx: Vec<Grad> = taken; // for as long as the places are lent
        let placed = dx.iter_mut().filter(|grad| grad.place().is_some());
        placed.zip(lent).for_each(|(grad, place)| *grad = place);
        f(&mut dx)?;
        for n in 0..inputs.len() {
            if let Some(first) = before(n)
                && let Grad::Block(part) = dx[n].take()
            {
                dx[first].give(stream, part)?;
            }
        }
        for (&i, grad) in inputs.iter().zip(dx) {
            match grad {
                Grad::Block(sum) => grads[i] = Grad::Block(sum),
                Grad::Empty(element, len) => grads[i] = Grad::Empty(element, len),
                _ => {} // in its place, or unwanted
            }
        }
        Ok(())
    })
}

/// The stream of a tensor's device.
pub(crate) fn stream_of(tensor: &Tensor) -> Result<Arc<Stream>> {
    match tensor.device() {
        Device::Cuda(device) => Stream::of(device),
        other => bail!(
            "expected a tensor on a GPU, got one on {:?}",
            other.location()
        ),
    }
}

/// Calls `f` with the elements of contiguous tensors on the stream's device.
pub(crate) fn with_floats<R>(
    tensors: &[&Tensor],
    stream: &Stream,
    f: impl FnOnce(&[Floats]) -> Result<R>,
) -> Result<R> {
    let locked: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut floats = Vec::new();
    let mut reading = Vec::new();
    for (storage, layout) in &locked {
        let slice = match &**storage {
            Storage::Cuda(storage) if storage.device.id() == stream.device().id() => {
                storage.as_cuda_slice::<f32>()?
            }
            _ => bail!("the tensors of an expression are on different devices"),
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!(
                "expected a contiguous tensor, got strides {:?}",
                layout.stride()
            )
        };
        let (address, guard) = slice.device_ptr(stream.cuda());
        reading.push(guard);
        let len = slice.num_bytes() / size_of::<f32>();
        floats.push(Floats::new(address, len).at(start, end - start));
    }
    f(&floats)
}

/// Calls `f` with the elements of a contiguous tensor, to write.
pub(crate) fn with_memory_of<R>(
    tensor: &Tensor,
    stream: &Stream,
    f: impl FnOnce(Floats) -> Result<R>,
) -> Result<R> {
    let lend = Lend {
        stream,
        f: Cell::new(Some(f)),
        result: Cell::new(None),
    };
    tensor.inplace_op1(&lend)?;
    lend.result.take().expect("candle called it")
}

struct Lend<'a, F, R> {
    stream: &'a Stream,
    f: Cell<Option<F>>,
    result: Cell<Option<Result<R>>>,
}

impl<R, F: FnOnce(Floats) -> Result<R>> InplaceOp1 for Lend<'_, F, R> {
    fn name(&self) -> &'static str {
        "write"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("expected a tensor on a GPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        if storage.device.id() != self.stream.device().id() {
            bail!("the tensors of an expression are on different devices")
        }
        let slice = storage.as_cuda_slice_mut::<f32>()?;
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!(
                "expected a contiguous tensor, got strides {:?}",
                layout.stride()
            )
        };
        let len = slice.num_bytes() / size_of::<f32>();
        let (address, _written) = slice.device_ptr_mut(self.stream.cuda());
        let floats = Floats::new(address, len).at(start, end - start);
        self.result.set(self.f.take().map(|f| f(floats)));
        Ok(())
    }
}

pub(crate) fn storage(memory: CudaSlice<f32>, stream: &Stream) -> Storage {
    Storage::Cuda(CudaStorage::wrap_cuda_slice(
        memory,
        stream.device().clone(),
    ))
}

fn tensor(memory: CudaSlice<f32>, shape: &Shape, stream: &Stream) -> Tensor {
    Tensor::from_storage(storage(memory, stream), shape, BackpropOp::none(), false)
}
