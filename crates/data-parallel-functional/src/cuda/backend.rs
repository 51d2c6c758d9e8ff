//! NVIDIA GPUs as a backend: kernels, and memory. With [`Precision::Bf16`] values between kernels are bf16: our
//! kernels read bf16, compute in f32, and round their results; cuDNN multiplies bf16.
//!
//! `compile` adds casts where f32 enters or leaves. Sums, matrix products, parameters and statistics are f32.
//! Convolutions whose channels are no multiples of 8 compute as with TF32.

use super::convolution::{Packing, pack};
use super::floats::{Element, Floats};
use super::gradient::{At, Cuda, Grad, Pass};
use super::memory::Block;
use super::one_channel::OneChannel;
use super::stream::Stream;
use super::tensors::{memory_of, tensor, with_floats};
use crate::descriptors::convolution::Geometry;
use crate::kernel::{Backend, Input, Kernel, Op};
use crate::memory::bucket::BucketMemory;
use crate::settings::precision::{Precision, arithmetic};
use candle_core::{DType, Device, Result, Tensor, bail};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

impl Backend for Cuda {
    type Buffer = Block;
    type View<'a> = Floats;
    type ViewMut<'a> = Floats;
    type Element = Element;
    type Stream = Arc<Stream>;
    type Open = Open;
    type Packing = Packing;

    fn stream(device: &Device, _: usize) -> Result<Arc<Stream>> {
        match device {
            Device::Cuda(device) => {
                let stream = Stream::of(device)?;
                stream.free.begin_pass();
                Ok(stream)
            }
            other => bail!("expected a GPU, got {:?}", other.location()),
        }
    }

    fn kernel(op: Op) -> Result<Option<Rc<dyn Kernel<Self>>>> {
        Ok(Some(match op {
            Op::Transpose(op) => narrow(op, |_| true),
            Op::Relu(op) => narrow(op, |_| true),
            Op::Add(op) => narrow(op, |_| true),
            Op::Average(op) => narrow(op, |_| true),
            Op::Maximum(op) => narrow(op, |_| true),
            Op::GlobalAverage(op) => narrow(op, |_| true),
            // matrix products are f32: they are few, and exact
            Op::Linear(op) => Rc::new(op),
            Op::Norm(op) => {
                let shortcut = op.shortcut;
                narrow(op, move |n| n == 0 || (n == 3 && shortcut))
            }
            Op::Convolution(op) => {
                if OneChannel::new(&op).is_some() {
                    narrow(op, |_| false) // images are read as they are
                } else if has_bf16(&op.geometry) {
                    narrow(op, |n| n == 0)
                } else {
                    Rc::new(op)
                }
            }
            Op::CrossEntropy(op) => Rc::new(op),
            Op::Sum(op) => Rc::new(op),
            Op::Mean(op) => Rc::new(op),
            // candle computes them here
            Op::SelfContained(_) | Op::Detach | Op::Gather(_) | Op::Candle(_) => return Ok(None),
        }))
    }

    fn cast(to: Element) -> Rc<dyn Kernel<Self>> {
        Rc::new(Cast(to))
    }

    fn alloc(stream: &Arc<Stream>, element: Element, len: usize) -> Result<Block> {
        Block::of(element, stream, len)
    }

    fn scalar(stream: &Arc<Stream>, value: f32) -> Result<Block> {
        let block = Block::new(stream, 1)?;
        stream.fill(block.floats(), value)?;
        Ok(block)
    }

    fn at_hand(_: &Block) -> Option<f32> {
        None
    }

    fn view_mut(memory: &mut Block) -> Floats {
        memory.floats()
    }

    fn read<R>(
        stream: &Arc<Stream>,
        inputs: &[Input<'_, Self>],
        f: impl for<'v> FnOnce(&'v [Floats]) -> Result<R>,
    ) -> Result<R> {
        let tensors = inputs.iter().filter_map(|input| match *input {
            Input::Tensor(tensor) => Some(tensor),
            Input::Buffer(_) => None,
        });
        let tensors: Vec<&Tensor> = tensors.collect();
        with_floats(&tensors, stream, |of_tensors| {
            let mut of_tensors = of_tensors.iter();
            let views = inputs.iter().map(|input| match *input {
                Input::Tensor(_) => *of_tensors.next().expect("one for each tensor"),
                Input::Buffer(block) => block.floats(),
            });
            f(&views.collect::<Vec<_>>())
        })
    }

    fn pack(stream: &Arc<Stream>, weights: &[(Floats, Packing)]) -> Result<Vec<Block>> {
        pack(stream, weights)
    }

    fn tensor(stream: &Arc<Stream>, memory: Block, dims: &[usize]) -> Result<Tensor> {
        if dims.contains(&0) {
            return Tensor::zeros(dims, DType::F32, &Device::Cuda(stream.device().clone()));
        }
        Ok(tensor(memory.into_slice(stream)?, dims, stream))
    }

    fn copy(stream: &Arc<Stream>, view: Floats) -> Result<Block> {
        let copy = Block::new(stream, view.len)?;
        stream.copy(view, copy.floats())?;
        Ok(copy)
    }

    fn write(stream: &Arc<Stream>, from: &Tensor, to: Floats) -> Result<()> {
        with_floats(&[from], stream, |from| stream.copy(from[0], to))
    }

    fn accumulate(stream: &Arc<Stream>, gradient: &mut Grad<'_>, part: Block) -> Result<()> {
        gradient.give(stream, part)
    }

    fn open(stream: &Arc<Stream>, values: &mut BucketMemory) -> Result<Open> {
        let BucketMemory::Tensor(tensor) = values else {
            bail!("a bucket of the gradients is not on a GPU")
        };
        let floats = memory_of(tensor, stream)?;
        let tensor = tensor.clone();
        Ok(Open { tensor, floats })
    }

    fn close(_: &Arc<Stream>, open: Open) -> Result<BucketMemory> {
        Ok(BucketMemory::Tensor(open.tensor))
    }

    fn parts(buckets: &mut [Option<Open>], parts: &[(usize, Range<usize>)]) -> Vec<Floats> {
        let part = |(bucket, range): &(usize, Range<usize>)| {
            let open = buckets[*bucket].as_ref().expect("it was not handed out");
            open.floats.at(range.start, range.len())
        };
        parts.iter().map(part).collect()
    }
}

/// The memory of a bucket while kernels write to it. Only they use it until it is closed.
pub(crate) struct Open {
    tensor: Tensor,
    floats: Floats,
}

/// True if cuDNN has algorithms for bf16: they want channels in eights.
fn has_bf16(g: &Geometry) -> bool {
    g.channels.is_multiple_of(8) && g.out_channels.is_multiple_of(8)
}

/// A kernel that takes both types; with [`Precision::Bf16`] its result is bf16, and so are the inputs for which
/// `inputs` says so.
fn narrow(
    kernel: impl Kernel<Cuda> + 'static,
    inputs: impl Fn(usize) -> bool + 'static,
) -> Rc<dyn Kernel<Cuda>> {
    match arithmetic().precision {
        Precision::Bf16 => Rc::new(Narrow { kernel, inputs }),
        _ => Rc::new(kernel),
    }
}

struct Narrow<K, F> {
    kernel: K,
    inputs: F,
}

impl<K: Kernel<Cuda>, F: Fn(usize) -> bool> Kernel<Cuda> for Narrow<K, F> {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        self.kernel.forward(pass, x, y)
    }

    fn backward(&self, pass: &Pass, at: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        self.kernel.backward(pass, at, dy, dx)
    }

    fn packing(&self, of_x: Element) -> Option<Packing> {
        self.kernel.packing(of_x)
    }

    fn element(&self) -> Element {
        Element::Bf16
    }

    fn input_element(&self, n: usize) -> Element {
        if (self.inputs)(n) {
            Element::Bf16
        } else {
            Element::F32
        }
    }
}

/// The same numbers in that type.
struct Cast(Element);

impl Kernel<Cuda> for Cast {
    fn forward(&self, pass: &Pass, x: &[Floats], y: Floats) -> Result<Vec<Block>> {
        pass.stream.copy(x[0], y)?;
        Ok(vec![])
    }

    fn backward(&self, pass: &Pass, _: At<'_, '_>, dy: Block, dx: &mut [Grad<'_>]) -> Result<()> {
        dx[0].add(&pass.stream, dy.floats())
    }

    fn element(&self) -> Element {
        self.0
    }

    fn input_element(&self, _n: usize) -> Element {
        match self.0 {
            Element::F32 => Element::Bf16,
            Element::Bf16 => Element::F32,
        }
    }
}
