//! Values: computations that are written down, and computed together later. Here are the operations that may become
//! one with others, as [`super::compile`] says; the others are in `operations`.

use super::alone::are_together;
use super::checked::note_variable;
use crate::descriptors::convolution::{Convolution, Geometry};
use crate::descriptors::layout::Transpose;
use crate::descriptors::linear::Linear;
use crate::descriptors::loss::CrossEntropy;
use crate::descriptors::norm::{BatchNorm, Norm};
use crate::descriptors::pool::{Average, GlobalAverage, Maximum, Windows};
use crate::descriptors::{Add, Mean, Relu, Sum, args};
use crate::kernel::{CandleOp, Function, Op, SelfContained};
use candle_core::shape::ShapeWithOneHole;
use candle_core::{DType, Device, Result, Tensor, Var, bail};
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// A tensor, or operations on tensors that are written down and not yet computed. Shapes, types and devices are
/// checked when an operation is written.
///
/// [`eval`](Self::eval) computes it. [`Gradients::backward`](crate::Gradients::backward) computes it and its
/// gradients. Both compute the whole together: a convolution is followed by its ReLU and its pooling while its
/// output is still in the cache, and results between operations do not become tensors.
///
/// Images and activations are (B, H, W, C); [`nhwc`](Self::nhwc) brings (B, C, H, W) in. Weights have PyTorch's
/// layouts.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use data_parallel_functional::Value;
///
/// // the first layer of the book's LeNet
/// let images = Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?;
/// let w1 = Tensor::ones((20, 1, 3, 3), DType::F32, &Device::Cpu)?;
/// let h1 = Value::new(&images)?.nhwc()?.conv2d(&w1, None, 1, 0)?.relu()?.avg_pool2d(2, 2)?;
/// assert_eq!(h1.dims(), [2, 13, 13, 20]);
/// assert_eq!(h1.eval()?.dims(), [2, 13, 13, 20]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Value(pub(crate) Rc<Node>);

pub(crate) struct Node {
    pub source: Source,
    pub dims: Vec<usize>,
    dtype: DType,
    device: Device,
    /// True if it may depend on a variable that is trained.
    wanted: bool,
    /// The result of the last time that it was computed.
    pub result: RefCell<Option<Tensor>>,
}

/// The values before it are dropped one after the other: a chain of any length fits into the stack.
impl Drop for Node {
    fn drop(&mut self) {
        let mut values = self.source.take_inputs();
        while let Some(Value(node)) = values.pop() {
            if let Some(mut node) = Rc::into_inner(node) {
                values.append(&mut node.source.take_inputs());
            }
        }
    }
}

/// The origin of a value.
pub(crate) enum Source {
    /// A contiguous tensor, of which candle computes no gradient.
    Tensor(Tensor),
    /// The same elements in another shape.
    Reshaped(Value),
    Op(Op, Vec<Value>),
}

impl Source {
    /// Takes the values that it reads out of a source that is dropped.
    fn take_inputs(&mut self) -> Vec<Value> {
        match self {
            Self::Tensor(_) => Vec::new(),
            Self::Op(_, inputs) => std::mem::take(inputs),
            Self::Reshaped(_) => match std::mem::replace(self, Self::Op(Op::Detach, Vec::new())) {
                Self::Reshaped(input) => vec![input],
                _ => Vec::new(),
            },
        }
    }
}

impl Value {
    /// The tensor itself. A variable is a parameter, of which there is a gradient. Where candle has computed the
    /// tensor from variables, those are the parameters.
    ///
    /// # Errors
    /// Where the device has no memory left for a contiguous copy.
    pub fn new(x: &Tensor) -> Result<Self> {
        let computed = x.track_op() && !x.is_variable() && x.dtype().is_float();
        let wanted = note_variables(x)?;
        let source = if computed {
            let x = x.clone();
            let op = CandleOp {
                function: Rc::new(move |_: &[Tensor]| Ok(x.clone())),
                observer: None,
            };
            Source::Op(Op::Candle(op), Vec::new())
        } else {
            Source::Tensor(x.contiguous()?)
        };
        Ok(Self(Rc::new(Node {
            source,
            dims: x.dims().to_vec(),
            dtype: x.dtype(),
            device: x.device().clone(),
            wanted,
            result: RefCell::default(),
        })))
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.0.dims
    }

    /// The device that computes it.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    pub(crate) fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// True if a gradient of it is wanted, because it may depend on a variable that is trained.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.wanted
    }

    /// The tensor, where nothing is to be computed.
    pub(crate) fn tensor(&self) -> Option<&Tensor> {
        match &self.0.source {
            Source::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// A scalar as the result of an operation.
    pub(crate) fn computed(&self) -> Result<Self> {
        let mut value = self;
        while let Source::Reshaped(input) = &value.0.source {
            value = input;
        }
        match &value.0.source {
            Source::Tensor(_) => value.sum(),
            _ => Ok(value.clone()),
        }
    }

    /// Images (B, C, H, W), as the book and PyTorch hold them, to (B, H, W, C).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // two channels of one row each
    /// let x = Tensor::new(&[[[[1f32, 2., 3.]], [[4., 5., 6.]]]], &Device::Cpu)?;
    /// let y = Value::new(&x)?.nhwc()?.eval()?;
    /// assert_eq!(y.dims(), [1, 1, 3, 2]);
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [1., 4., 2., 5., 3., 6.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or has not 4 dimensions.
    pub fn nhwc(&self) -> Result<Self> {
        let (transpose, dims) = Transpose::nhwc(self.dims())?;
        self.transposed("nhwc", transpose, &dims)
    }

    /// Activations (B, H, W, C) to vectors (B, C·H·W) in the order channel, height, width. This is the order in
    /// which the book's `flatten` hands them to the linear layer, so that its weights fit.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // one row of three pixels with two channels each
    /// let x = Tensor::new(&[[[[1f32, 4.], [2., 5.], [3., 6.]]]], &Device::Cpu)?;
    /// let y = Value::new(&x)?.flatten()?.eval()?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 3., 4., 5., 6.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or has not 4 dimensions.
    pub fn flatten(&self) -> Result<Self> {
        let (transpose, dims) = Transpose::flatten(self.dims())?;
        self.transposed("flatten", transpose, &dims)
    }

    fn transposed(&self, name: &str, op: Transpose, dims: &[usize]) -> Result<Self> {
        if op.rows == 1 || op.columns == 1 {
            self.check(name, &[])?;
            Ok(self.node(Source::Reshaped(self.clone()), dims))
        } else {
            self.then(name, Op::Transpose(op), &[], dims)
        }
    }

    /// The larger of each element and 0; any shape. The gradient at 0 is 0, as in PyTorch. NaN stays NaN.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[-1f32, 0., 2.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&x)?.relu()?.eval()?.to_vec1::<f32>()?, [0., 0., 2.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn relu(&self) -> Result<Self> {
        self.then("relu", Op::Relu(Relu), &[], self.dims())
    }

    /// Two-dimensional cross-correlation, as every framework's convolution is: (B, H, W, I), `weight`
    /// (O, I, KH, KW), `bias` (O,) → (B, OH, OW, O), with OH = ⌊(H + 2·padding − KH) / stride⌋ + 1, and OW likewise.
    ///
    /// In the book: `F.conv2d(X, weight=params[0], bias=params[1])`, there in (B, I, H, W).
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// // the book's cross-correlation: 0·0 + 1·1 + 3·2 + 4·3 = 19
    /// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
    /// let weight = Tensor::arange(0f32, 4., &Device::Cpu)?.reshape((1, 1, 2, 2))?;
    /// let y = Value::new(&x)?.conv2d(&weight, None, 1, 0)?;
    /// assert_eq!(y.dims(), [1, 2, 2, 1]);
    /// assert_eq!(y.eval()?.flatten_all()?.to_vec1::<f32>()?, [19., 25., 37., 43.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, the channels or the bias do not match, or the kernel does not fit.
    pub fn conv2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
    ) -> Result<Self> {
        let of_bias = bias.map(|b| b.dims());
        let geometry = Geometry::new(self.dims(), weight.dims(), of_bias, stride, padding)?;
        let op = Convolution {
            geometry,
            relu: false,
            pool: 1,
        };
        let others = weighted(weight, bias);
        self.then("conv2d", Op::Convolution(op), &others, &op.dims())
    }

    /// The mean of each `kernel` × `kernel` window, in steps of `stride`: (B, H, W, C) → (B, OH, OW, C), with
    /// OH = ⌊(H − kernel) / stride⌋ + 1, and OW likewise. What no whole window covers is left out.
    ///
    /// In the book: `F.avg_pool2d(h, kernel_size=(2, 2), stride=(2, 2))`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
    /// // the third row and column are left out
    /// let y = Value::new(&x)?.avg_pool2d(2, 2)?.eval()?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or not 4-d, or the kernel does not fit.
    pub fn avg_pool2d(&self, kernel: usize, stride: usize) -> Result<Self> {
        let windows = Windows::new("avg_pool2d", self.dims(), kernel, stride)?;
        let op = Op::Average(Average(windows));
        self.then("avg_pool2d", op, &[], &windows.dims())
    }

    /// The largest value of each `kernel` × `kernel` window, in steps of `stride`: sizes as in
    /// [`avg_pool2d`](Self::avg_pool2d). Of several largest values, the first gets the gradient, as in PyTorch.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::arange(0f32, 9., &Device::Cpu)?.reshape((1, 3, 3, 1))?;
    /// let y = Value::new(&x)?.max_pool2d(2, 1)?.eval()?;
    /// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [4., 5., 7., 8.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or not 4-d, or the kernel does not fit.
    pub fn max_pool2d(&self, kernel: usize, stride: usize) -> Result<Self> {
        let windows = Windows::new("max_pool2d", self.dims(), kernel, stride)?;
        let op = Op::Maximum(Maximum(windows));
        self.then("max_pool2d", op, &[], &windows.dims())
    }

    /// The mean of each channel over the whole image: (B, H, W, C) → (B, C). In the book:
    /// `nn.AdaptiveAvgPool2d((1, 1))` and the flattening after it.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::arange(0f32, 8., &Device::Cpu)?.reshape((1, 2, 2, 2))?;
    /// assert_eq!(Value::new(&x)?.global_avg_pool2d()?.eval()?.to_vec2::<f32>()?, [[3., 4.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32 or not 4-d, or has no pixel.
    pub fn global_avg_pool2d(&self) -> Result<Self> {
        let pool = GlobalAverage::new(self.dims())?;
        let dims = [self.dims()[0], pool.channels];
        self.then("global_avg_pool2d", Op::GlobalAverage(pool), &[], &dims)
    }

    /// x · weightᵀ + bias over the last dimension: (…, I), `weight` (O, I), `bias` (O,) → (…, O). In the book:
    /// `nn.Linear`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// let weight = Tensor::new(&[[1f32, 0.], [0., 1.], [1., 1.]], &Device::Cpu)?;
    /// let bias = Tensor::new(&[0f32, 0., 10.], &Device::Cpu)?;
    /// let y = Value::new(&x)?.linear(&weight, Some(&bias))?.eval()?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 13.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, or the sizes do not match.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let op = Linear::new(self.dims(), weight.dims(), bias.map(|b| b.dims()))?;
        let others = weighted(weight, bias);
        let mut dims = self.dims().to_vec();
        dims[self.dims().len() - 1] = op.outputs;
        self.then("linear", Op::Linear(op), &others, &dims)
    }

    /// x · weight + bias: (B, I), as [`linear`](Self::linear) with a `weight` (I, O). In the book:
    /// `torch.mm(h, params[4]) + params[5]`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// let weight = Tensor::new(&[[1f32, 0., 1.], [0., 1., 1.]], &Device::Cpu)?;
    /// let y = Value::new(&x)?.matmul(&weight, None)?.eval()?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[1., 2., 3.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32, or the sizes do not match.
    pub fn matmul(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let op = Linear::matmul(self.dims(), weight.dims(), bias.map(|b| b.dims()))?;
        let others = weighted(weight, bias);
        let dims = [op.batch, op.outputs];
        self.then("matmul", Op::Linear(op), &others, &dims)
    }

    /// Normalizes each channel of (B, H, W, C), then scales it with `weight` and shifts it by `bias`, both (C,):
    /// (x − mean) / √(var + 1e-5) · weight + bias. In the book: `nn.BatchNorm2d`.
    ///
    /// With `train` the mean and the (biased) variance are the batch's. A backward pass then moves the running
    /// mean and variance, both (C,), towards them: running = 0.9 · running + 0.1 · batch, where the batch's variance
    /// is the unbiased one. It also adds 1 to `batches`, a scalar of i64 on the CPU: PyTorch's `num_batches_tracked`.
    /// [`eval`](Self::eval) leaves them as they are. Without `train` the running statistics are used.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use data_parallel_functional::Value;
    /// let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?.reshape((1, 1, 2, 1))?;
    /// let (weight, bias) = (Tensor::new(&[2f32], &Device::Cpu)?, Tensor::new(&[10f32], &Device::Cpu)?);
    /// let (mean, var) = (Var::new(&[0f32], &Device::Cpu)?, Var::new(&[1f32], &Device::Cpu)?);
    /// let y = Value::new(&x)?.batch_norm2d([&weight, &bias], [&mean, &var], None, true)?.eval()?;
    /// let y = y.flatten_all()?.to_vec1::<f32>()?;
    /// assert!((y[0] - 8.).abs() < 1e-4 && (y[1] - 12.).abs() < 1e-4);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where a tensor is not f32 or the channels do not match. A training batch with fewer than two values a
    /// channel is an error when it is computed.
    pub fn batch_norm2d(
        &self,
        [weight, bias]: [&Tensor; 2],
        running: [&Var; 2],
        batches: Option<&Var>,
        train: bool,
    ) -> Result<Self> {
        let how = BatchNorm::default();
        self.batch_norm2d_with([weight, bias], running, batches, train, how)
    }

    /// As [`batch_norm2d`](Self::batch_norm2d), with other numbers than 1e-5 and 0.1: `how` says which.
    ///
    /// # Errors
    /// As [`batch_norm2d`](Self::batch_norm2d); and for a negative ε, or a momentum that is not from 0 to 1.
    pub fn batch_norm2d_with(
        &self,
        [weight, bias]: [&Tensor; 2],
        running: [&Var; 2],
        batches: Option<&Var>,
        train: bool,
        how: BatchNorm,
    ) -> Result<Self> {
        how.check()?;
        let shapes = [self.dims(), weight.dims(), bias.dims()];
        let train = are_together(train);
        let mut norm = Norm::new(shapes, running.map(Var::clone), train)?;
        norm.batches = batches.cloned();
        norm.how = how;
        let others = [("weight", weight), ("bias", bias)];
        self.then("batch_norm2d", Op::Norm(norm), &others, self.dims())
    }

    /// The same numbers, through which no gradient goes: what is computed from them does not train what they were computed
    /// from. In PyTorch: `x.detach()`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use data_parallel_functional::{Gradients, Value};
    /// let w = Var::new(&[3f32], &Device::Cpu)?;
    /// let w_value = Value::new(&w)?;
    /// let product = (&w_value * &w_value.detach()?)?; // with a gradient to one of the two
    /// let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    /// gradients.backward(&product.sum()?)?;
    /// assert_eq!(gradients.values()?[0].to_vec1::<f32>()?, [3.]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn detach(&self) -> Result<Self> {
        self.check("detach", &[])?;
        let source = Source::Op(Op::Detach, vec![self.clone()]);
        Ok(self.node_with(source, self.dims(), false))
    }

    /// An operation that has a file of its own in `operations`; that file has its method too.
    pub(crate) fn self_contained(
        &self,
        name: &str,
        operation: impl SelfContained + 'static,
        others: &[(&str, &Tensor)],
        dims: &[usize],
    ) -> Result<Self> {
        self.then(name, Op::SelfContained(Rc::new(operation)), others, dims)
    }

    /// Such an operation on it and other values.
    pub(crate) fn self_contained_with(
        &self,
        name: &str,
        operation: impl SelfContained + 'static,
        others: &[(&str, &Self)],
        dims: &[usize],
    ) -> Result<Self> {
        self.with(name, Op::SelfContained(Rc::new(operation)), others, dims)
    }

    /// The cross-entropy of each label, one after the other.
    pub(crate) fn cross_entropies(&self, y: &Tensor) -> Result<Self> {
        let op = CrossEntropy::new(self.dims(), y)?;
        args::check_device("cross_entropy", self.device(), "y", y.device())?;
        let labels = op.batch;
        self.then("cross_entropy", Op::CrossEntropy(op), &[], &[labels])
    }

    /// The sum of all elements, a scalar; on the CPU added up in f64. In the book: `loss(…).sum()`.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let losses = Tensor::new(&[1f32, 2., 4.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&losses)?.sum()?.eval()?.to_scalar::<f32>()?, 7.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32.
    pub fn sum(&self) -> Result<Self> {
        self.then("sum", Op::Sum(Sum), &[], &[])
    }

    /// The mean of all elements, a scalar; on the CPU added up in f64.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let losses = Tensor::new(&[1f32, 2., 6.], &Device::Cpu)?;
    /// assert_eq!(Value::new(&losses)?.mean()?.eval()?.to_scalar::<f32>()?, 3.);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where it is not f32, or has no element.
    pub fn mean(&self) -> Result<Self> {
        let dims = self.dims();
        if dims.contains(&0) {
            bail!("mean: x has shape {dims:?}, expected at least one element")
        }
        self.then("mean", Op::Mean(Mean), &[], &[])
    }

    /// The same elements in another shape; one of its sizes may be `()`, which is then what is left. Nothing is copied.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor};
    /// # use data_parallel_functional::Value;
    /// let x = Value::new(&Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?)?;
    /// assert_eq!(x.reshape((2, ()))?.eval()?.to_vec2::<f32>()?, [[1., 2., 3.], [4., 5., 6.]]);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where the shape has another number of elements.
    pub fn reshape(&self, shape: impl ShapeWithOneHole) -> Result<Self> {
        if let Some(tensor) = self.tensor() {
            return Self::new(&tensor.reshape(shape)?);
        }
        let elements = self.dims().iter().product();
        let shape = shape.into_shape(elements)?;
        Ok(self.node(Source::Reshaped(self.clone()), shape.dims()))
    }

    /// A function of candle's operations on some values, which gives a result of this shape. It runs when the result is
    /// computed. Tensors stay as they are: of any type, and without a copy.
    pub(crate) fn candle(
        xs: &[&Self],
        f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
        dims: &[usize],
    ) -> Self {
        let op = CandleOp {
            function: of_computed(xs, f),
            observer: None,
        };
        Self::of_candle(xs, op, dims, xs.iter().any(|x| x.is_wanted()))
    }

    /// A function of candle's operations, whose inputs are those of `xs` that are computed. It may also depend on
    /// variables; `wanted` is true if one of them, or of the values, is trained.
    pub(crate) fn of_candle(xs: &[&Self], op: CandleOp, dims: &[usize], wanted: bool) -> Self {
        let computed = xs.iter().filter(|x| x.tensor().is_none());
        let inputs = computed.map(|x| (*x).clone()).collect();
        xs[0].node_with(Source::Op(Op::Candle(op), inputs), dims, wanted)
    }

    /// This operation on it and `others`, which have names for messages.
    fn then<'a>(
        &self,
        name: &str,
        op: Op,
        others: &[(&'a str, &'a Tensor)],
        dims: &[usize],
    ) -> Result<Self> {
        let value = |(name, x): &(&'a str, &'a Tensor)| Ok((*name, Self::new(x)?));
        let values = others.iter().map(value).collect::<Result<Vec<_>>>()?;
        let others: Vec<(&str, &Self)> = values.iter().map(|(name, x)| (*name, x)).collect();
        self.with(name, op, &others, dims)
    }

    /// This operation on it and other values.
    fn with(&self, name: &str, op: Op, others: &[(&str, &Self)], dims: &[usize]) -> Result<Self> {
        self.check(name, others)?;
        let others = others.iter().map(|(_, x)| *x);
        let inputs = [self].into_iter().chain(others).cloned();
        Ok(self.node(Source::Op(op, inputs.collect()), dims))
    }

    pub(super) fn node(&self, source: Source, dims: &[usize]) -> Self {
        let wanted = match &source {
            Source::Tensor(tensor) => tensor.is_variable(),
            Source::Reshaped(input) => input.is_wanted(),
            Source::Op(_, inputs) => inputs.iter().any(Self::is_wanted),
        };
        self.node_with(source, dims, wanted)
    }

    fn node_with(&self, source: Source, dims: &[usize], wanted: bool) -> Self {
        Self(Rc::new(Node {
            source,
            dims: dims.to_vec(),
            dtype: DType::F32,
            device: self.device().clone(),
            wanted,
            result: RefCell::default(),
        }))
    }

    /// An error unless it and `others` are f32 on one device.
    pub(crate) fn check(&self, op: &str, others: &[(&str, &Self)]) -> Result<()> {
        args::check_float(op, "x", self.0.dtype)?;
        for (name, other) in others {
            args::check_float(op, name, other.0.dtype)?;
            args::check_device(op, self.device(), name, other.device())?;
        }
        Ok(())
    }

    /// An error unless it and `other` are f32 on one device and have the same shape.
    pub(crate) fn check_same(&self, op: &str, other: &Self) -> Result<()> {
        if self.dims() != other.dims() {
            let x = self.dims();
            let other = other.dims();
            bail!("{op}: x has shape {x:?}, other {other:?}, expected the same")
        }
        self.check(op, &[("other", other)])
    }
}

/// A function of `xs` as a function of those that are computed. The others are in it, as they are.
pub(crate) fn of_computed(
    xs: &[&Value],
    f: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Rc<Function> {
    let tensors: Vec<Option<Tensor>> = xs.iter().map(|x| x.tensor().cloned()).collect();
    Rc::new(move |computed: &[Tensor]| {
        let mut computed = computed.iter();
        let x = |tensor: &Option<Tensor>| tensor.as_ref().or_else(|| computed.next()).cloned();
        f(&tensors.iter().filter_map(x).collect::<Vec<_>>())
    })
}

/// True if a variable that is trained is in `x`, or in what candle has computed it from.
fn note_variables(x: &Tensor) -> Result<bool> {
    let mut wanted = false;
    if x.track_op() {
        for variable in x.sorted_nodes().into_iter().filter(|x| x.is_variable()) {
            wanted |= note_variable(variable)?;
        }
    }
    Ok(wanted)
}

/// Weight and bias, with their names for messages.
pub(crate) fn weighted<'a>(
    weight: &'a Tensor,
    bias: Option<&'a Tensor>,
) -> Vec<(&'static str, &'a Tensor)> {
    let bias = bias.map(|bias| ("bias", bias));
    [("weight", weight)].into_iter().chain(bias).collect()
}

/// The elementwise sum of two values of f32 with the same shape.
impl std::ops::Add for &Value {
    type Output = Result<Value>;

    fn add(self, other: Self) -> Result<Value> {
        self.check_same("add", other)?;
        let op = Op::Add(Add { relu: false });
        let inputs = vec![self.clone(), other.clone()];
        Ok(self.node(Source::Op(op, inputs), self.dims()))
    }
}

impl std::ops::Add for Value {
    type Output = Result<Self>;

    fn add(self, other: Self) -> Result<Self> {
        &self + &other
    }
}

/// The shape and the device; nothing is computed.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims = self.dims();
        let device = self.device().location();
        write!(f, "Value{dims:?} on {device:?}")
    }
}
