//! The CPU as a backend: its kernels, and its memory.

use crate::cpu::budget;
use crate::cpu::buffer::{Buffer, check_room};
use crate::cpu::conv::ConvolutionKernel;
use crate::cpu::gradient::Grad;
use crate::cpu::one_channel::OneChannel;
use crate::cpu::winograd::Pooled;
use crate::descriptors::convolution::Convolution;
use crate::kernel::{Backend, Cpu, Input, Kernel, Op};
use crate::memory::bucket::BucketMemory;
use crate::memory::tensors::{self, TensorMemory};
use crate::settings::precision::arithmetic;
use candle_core::{Device, Result, Storage, Tensor, bail};
use std::ops::Range;
use std::rc::Rc;

impl Backend for Cpu {
    type Buffer = Buffer;
    type View<'a> = &'a [f32];
    type ViewMut<'a> = &'a mut [f32];
    type Element = ();
    type Stream = ();
    type Open = Open;
    type Packing = ();

    fn stream(_: &Device, least: usize) -> Result<()> {
        budget::start_helpers()?;
        check_room(least)
    }

    fn kernel(op: Op) -> Result<Option<Rc<dyn Kernel<Self>>>> {
        Ok(Some(match op {
            Op::Transpose(op) => Rc::new(op),
            Op::Relu(op) => Rc::new(op),
            Op::Add(op) => Rc::new(op),
            Op::Average(op) => Rc::new(op),
            Op::Maximum(op) => Rc::new(op),
            Op::GlobalAverage(op) => Rc::new(op),
            Op::Linear(op) => Rc::new(op),
            Op::Norm(op) => Rc::new(op),
            Op::Convolution(op) => return Ok(convolution(op)),
            Op::CrossEntropy(op) => Rc::new(op),
            Op::Sum(op) => Rc::new(op),
            Op::Mean(op) => Rc::new(op),
            Op::SelfContained(op) => op,
            Op::Detach | Op::Gather(_) | Op::Candle(_) => return Ok(None),
        }))
    }

    fn cast(_: ()) -> Rc<dyn Kernel<Self>> {
        unreachable!("the CPU has one type")
    }

    fn alloc(_: &(), _: (), len: usize) -> Result<Buffer> {
        Ok(Buffer::new(len))
    }

    fn scalar(_: &(), value: f32) -> Result<Buffer> {
        Ok(Buffer::copy_of(&[value]))
    }

    fn at_hand(memory: &Buffer) -> Option<f32> {
        memory.first().copied()
    }

    fn view_mut(memory: &mut Buffer) -> &mut [f32] {
        memory
    }

    fn read<R>(
        _: &(),
        inputs: &[Input<'_, Self>],
        f: impl for<'v> FnOnce(&'v [&'v [f32]]) -> Result<R>,
    ) -> Result<R> {
        let locked = inputs.iter().map(|input| match *input {
            Input::Tensor(tensor) => Some(tensor.storage_and_layout()),
            Input::Buffer(_) => None,
        });
        let locked: Vec<_> = locked.collect();
        let slices = inputs
            .iter()
            .zip(&locked)
            .map(|(input, locked)| match (input, locked) {
                (Input::Buffer(buffer), _) => Ok(&buffer[..]),
                (_, Some((storage, layout))) => match &**storage {
                    Storage::Cpu(storage) => tensors::slice(storage, layout),
                    _ => bail!("expected a tensor on the CPU"),
                },
                _ => unreachable!("each tensor is locked"),
            });
        f(&slices.collect::<Result<Vec<_>>>()?)
    }

    fn pack(_: &(), _: &[(&[f32], ())]) -> Result<Vec<Buffer>> {
        Ok(vec![]) // its kernels read weights as they are
    }

    fn tensor(_: &(), memory: Buffer, dims: &[usize]) -> Result<Tensor> {
        Tensor::from_vec(memory.into_vec(), dims, &Device::Cpu)
    }

    fn copy(_: &(), view: &[f32]) -> Result<Buffer> {
        Ok(Buffer::copy_of(view))
    }

    fn write(_: &(), from: &Tensor, to: &mut [f32]) -> Result<()> {
        tensors::read_all(&[from.contiguous()?], |from| {
            to.copy_from_slice(from[0]);
            Ok(())
        })
    }

    fn accumulate(_: &(), gradient: &mut Grad<'_>, part: Buffer) -> Result<()> {
        gradient.give(part);
        Ok(())
    }

    fn open(_: &(), values: &mut BucketMemory) -> Result<Open> {
        Ok(match values {
            BucketMemory::Floats(floats) => Open::Floats(std::mem::take(floats)),
            BucketMemory::Tensor(tensor) => Open::Tensor(TensorMemory::new(tensor.clone())?),
        })
    }

    fn close(_: &(), open: Open) -> Result<BucketMemory> {
        Ok(match open {
            Open::Floats(floats) => BucketMemory::Floats(floats),
            Open::Tensor(taken) => BucketMemory::Tensor(taken.put_back()),
        })
    }

    fn parts<'a>(
        buckets: &'a mut [Option<Open>],
        parts: &[(usize, Range<usize>)],
    ) -> Vec<&'a mut [f32]> {
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|i| (parts[*i].0, parts[*i].1.start, parts[*i].1.end));
        let mut slices: Vec<&mut [f32]> = parts.iter().map(|_| Default::default()).collect();
        for (number, bucket) in buckets.iter_mut().enumerate() {
            let Some(open) = bucket else { continue };
            let mut rest = open.floats();
            let mut at = 0;
            for i in order.iter().filter(|i| parts[**i].0 == number) {
                let range = &parts[*i].1;
                let (part, others) = rest[range.start - at..].split_at_mut(range.len());
                (slices[*i], rest, at) = (part, others, range.end);
            }
        }
        slices
    }
}

/// The memory of a bucket while kernels write to it.
pub(crate) enum Open {
    Floats(Vec<f32>),
    /// That of a tensor.
    Tensor(TensorMemory),
}

impl Open {
    fn floats(&mut self) -> &mut [f32] {
        match self {
            Open::Floats(floats) => floats,
            Open::Tensor(taken) => taken.floats(),
        }
    }
}

/// The algorithm for a convolution.
fn convolution(op: Convolution) -> Option<Rc<dyn Kernel<Cpu>>> {
    if let Some(pooled) = Pooled::new(&op).filter(|_| arithmetic().winograd) {
        return Some(Rc::new(pooled));
    }
    if let Some(one_channel) = OneChannel::new(&op) {
        return Some(Rc::new(one_channel));
    }
    (op.pool == 1)
        .then(|| Rc::new(ConvolutionKernel::new(op.geometry, op.relu)) as Rc<dyn Kernel<Cpu>>)
}
