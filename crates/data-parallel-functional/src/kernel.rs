//! The traits of a backend and of an operation on it: a kernel with a forward and a backward pass.
//! The graph calls kernels and knows nothing else of a backend.
//!
//! One tape serves both backends. A [`Backend`] says what memory, views and accumulation are; a [`Kernel`] has forward
//! and backward.

use crate::descriptors::convolution::Convolution;
use crate::descriptors::layout::Transpose;
use crate::descriptors::linear::Linear;
use crate::descriptors::loss::CrossEntropy;
use crate::descriptors::norm::Norm;
use crate::descriptors::pool::{Average, GlobalAverage, Maximum};
use crate::descriptors::{Add, Mean, Relu, Sum};
use crate::gather::Gather;
use crate::memory::bucket::BucketMemory;
use crate::statistics::Summation;
use candle_core::{Device, Result, Tensor};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// One operation, or several that one kernel computes.
#[derive(Clone)]
pub(crate) enum Op {
    Transpose(Transpose),
    Relu(Relu),
    Add(Add),
    Average(Average),
    Maximum(Maximum),
    GlobalAverage(GlobalAverage),
    Linear(Linear),
    Norm(Norm),
    Convolution(Convolution),
    CrossEntropy(CrossEntropy),
    Sum(Sum),
    Mean(Mean),
    /// One that has a file of its own.
    SelfContained(Rc<dyn SelfContained>),
    /// The same numbers, through which no gradient goes.
    Detach,
    /// The rows of all replicas.
    Gather(Gather),
    Candle(CandleOp),
}

/// A function of candle's own operations, with all the variables that it reads.
pub(crate) type Function = dyn Fn(&[Tensor]) -> Result<Tensor>;

/// Such a function as an operation. Its inputs are those that are computed.
#[derive(Clone)]
pub(crate) struct CandleOp {
    pub function: Rc<Function>,
    /// Looks at it when it runs in training.
    pub observer: Option<Rc<dyn Observer>>,
}

/// Looks at the numbers of a function that runs in training. An error ends the pass.
pub(crate) trait Observer {
    /// At the result that candle has computed of `x`, with its graph.
    fn result(&self, x: &[Tensor], y: &Tensor) -> Result<()>;
    /// At the gradients of the inputs, from that of the result.
    fn gradients(&self, x: &[Tensor], dy: &Tensor, gradients: &[Option<&Tensor>]) -> Result<()>;
}

/// The host's cores, the backend of `cpu`.
pub(crate) struct Cpu;

/// An operation that has a kernel on the CPU, and that candle computes on any other device.
pub(crate) trait SelfContained: Kernel<Cpu> {
    /// The result, from the inputs. candle differentiates it as well.
    fn with_candle(&self, x: &[Tensor]) -> Result<Tensor>;
}

/// A place where kernels run: the CPU, or NVIDIA GPUs.
pub(crate) trait Backend: Sized + 'static {
    /// Memory of one value or gradient between kernels.
    type Buffer;
    /// An input of a kernel.
    type View<'a>: Copy;
    /// The output of a kernel.
    type ViewMut<'a>;
    /// The type of the numbers in memory; tensors and parameters have the default.
    type Element: Copy + Default + PartialEq;
    /// The queue that runs the kernels of a pass in order.
    type Stream;
    /// The memory of a bucket while kernels write gradients to it.
    type Open;
    /// The order and the type in which a kernel wants a weight.
    type Packing;

    /// The queue for a pass that has at least `least` numbers in memory at the same time.
    fn stream(device: &Device, least: usize) -> Result<Self::Stream>;

    /// The kernel of `op`. None if it is a fused operation that needs several kernels here, or if candle computes it.
    fn kernel(op: Op) -> Result<Option<Rc<dyn Kernel<Self>>>>;

    /// The kernel that converts numbers to another type.
    fn cast(to: Self::Element) -> Rc<dyn Kernel<Self>>;

    /// Memory for `len` numbers of any value: the caller writes them before it reads them.
    fn alloc(stream: &Self::Stream, element: Self::Element, len: usize) -> Result<Self::Buffer>;

    /// Memory for one number.
    fn scalar(stream: &Self::Stream, value: f32) -> Result<Self::Buffer>;

    /// The first number of a memory, if it is at hand; none on a GPU, which the host would wait for.
    fn at_hand(memory: &Self::Buffer) -> Option<f32>;

    /// All of a memory, to write.
    fn view_mut(memory: &mut Self::Buffer) -> Self::ViewMut<'_>;

    /// Calls `f` with all that `inputs` hold. Tensors stay locked until `f` returns.
    fn read<R>(
        stream: &Self::Stream,
        inputs: &[Input<'_, Self>],
        f: impl for<'v> FnOnce(&'v [Self::View<'v>]) -> Result<R>,
    ) -> Result<R>;

    /// Repacks weights at once.
    fn pack(
        stream: &Self::Stream,
        weights: &[(Self::View<'_>, Self::Packing)],
    ) -> Result<Vec<Self::Buffer>>;

    /// The memory as a tensor of this shape.
    fn tensor(stream: &Self::Stream, memory: Self::Buffer, dims: &[usize]) -> Result<Tensor>;

    /// A copy.
    fn copy(stream: &Self::Stream, view: Self::View<'_>) -> Result<Self::Buffer>;

    /// Writes all that a tensor holds.
    fn write(stream: &Self::Stream, from: &Tensor, to: Self::ViewMut<'_>) -> Result<()>;

    /// Adds `part` to a gradient; the first part becomes the gradient.
    fn accumulate(
        stream: &Self::Stream,
        gradient: &mut Grad<'_, Self>,
        part: Self::Buffer,
    ) -> Result<()>;

    /// Makes the memory of a bucket ready to write gradients to it.
    fn open(stream: &Self::Stream, values: &mut BucketMemory) -> Result<Self::Open>;

    /// Ends the writing: gives back the memory that [`open`](Self::open) took.
    fn close(stream: &Self::Stream, open: Self::Open) -> Result<BucketMemory>;

    /// Slices of open buckets, in the order of `parts`: each part is the number of a bucket and a range of its elements.
    /// No two parts overlap.
    fn parts<'a>(
        buckets: &'a mut [Option<Self::Open>],
        parts: &[(usize, Range<usize>)],
    ) -> Vec<Self::ViewMut<'a>>;
}

/// Adds a contiguous tensor to a gradient.
pub(crate) fn accumulate_tensor<B: Backend>(
    stream: &B::Stream,
    gradient: &mut Grad<'_, B>,
    tensor: &Tensor,
) -> Result<()> {
    let mut part = B::alloc(stream, B::Element::default(), tensor.elem_count())?;
    B::write(stream, tensor, B::view_mut(&mut part))?;
    B::accumulate(stream, gradient, part)
}

/// The source of an input.
pub(crate) enum Input<'a, B: Backend> {
    /// A contiguous tensor, of f32 unless it is a loss's labels.
    Tensor(&'a Tensor),
    Buffer(&'a B::Buffer),
}

/// An operation on a backend.
pub(crate) trait Kernel<B: Backend> {
    /// Writes all of `y`, which has any values before. Returns the tensors that [`backward`](Self::backward) needs
    /// besides `x` and `y`.
    fn forward(
        &self,
        pass: &Pass<B>,
        x: &[B::View<'_>],
        y: B::ViewMut<'_>,
    ) -> Result<Vec<B::Buffer>>;

    /// Hands each input that wants it its gradient, and after those each of [`parameters`](Self::parameters).
    /// `dy` is complete and may be written over.
    fn backward(
        &self,
        pass: &Pass<B>,
        at: At<'_, '_, B>,
        dy: B::Buffer,
        dx: &mut [Grad<'_, B>],
    ) -> Result<()>;

    /// The type of `y` and of its gradient.
    fn element(&self) -> B::Element {
        B::Element::default()
    }

    /// The type in which input `n` is read.
    fn input_element(&self, _n: usize) -> B::Element {
        B::Element::default()
    }

    /// The repacking of input 1, a weight, before forward, where input 0 is of that type. `x[1]` is the repacked one
    /// then, in forward and in backward.
    fn packing(&self, _of_x: B::Element) -> Option<B::Packing> {
        None
    }

    /// True if no gradient goes through it.
    fn is_detached(&self) -> bool {
        false
    }

    /// Variables that forward has read besides its inputs.
    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

/// A forward pass and its backward pass.
pub(crate) struct Pass<B: Backend> {
    pub stream: B::Stream,
    /// True if a backward pass follows.
    pub keep: bool,
    /// Sums the statistics of batch norms in training over replicas.
    pub norms: Option<Arc<dyn Summation>>,
}

/// The inputs and the result of forward, and the saved tensors that forward returned.
pub(crate) struct At<'v, 'k, B: Backend> {
    pub x: &'v [B::View<'v>],
    pub y: B::View<'v>,
    pub saved: &'k [B::Buffer],
}

/// The gradient of one value, while its parts are added up.
pub(crate) enum Grad<'a, B: Backend> {
    Unwanted,
    /// Wanted, with this type and number of elements, and nothing there yet.
    Empty(B::Element, usize),
    Sum(B::Buffer),
    /// The gradient of a parameter, in its bucket: `written` if a part of it is there already, `touched` if this kernel
    /// has added to it.
    View {
        to: B::ViewMut<'a>,
        len: usize,
        written: bool,
        touched: bool,
    },
}

impl<B: Backend> Grad<'_, B> {
    pub fn wanted(&self) -> bool {
        !matches!(self, Grad::Unwanted)
    }

    /// Another part of the gradient of a parameter, to be added later.
    pub fn part_of_view(&self) -> Self {
        match self {
            Grad::View { len, .. } => Grad::Empty(B::Element::default(), *len),
            _ => Grad::Unwanted,
        }
    }
}
