//! Expressions: operations that are written down one after the other and computed together.
//! This file says what can be written; [`crate::compile`] says what becomes one.

use crate::layer::Cpu;
use crate::{compile, grad, plain, record};
use candle_core::{Device, Result, Tensor, Var};
use std::ops::Add;
use std::sync::Arc;

/// Operations on a tensor that nothing has computed yet: [`eval`](Self::eval) does, all at once.
///
/// It reads like calls one after the other, and means the same. What is gained: results between
/// two operations need not become tensors of candle's, a convolution is followed by its ReLU and
/// its pooling while its output is still in the cache, and backward goes through all of it in
/// buffers that are used again. Each method is the function of the same name in this crate.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use functional::Expr;
///
/// // the first layer of the book's LeNet
/// let images = Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?;
/// let w1 = Tensor::ones((20, 1, 3, 3), DType::F32, &Device::Cpu)?;
/// let h1 = Expr::new(&images).nhwc().conv2d(&w1, None, 1, 0).relu().avg_pool2d(2, 2);
/// assert_eq!(h1.eval()?.dims(), [2, 13, 13, 20]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Expr(pub(crate) Arc<Node>);

pub(crate) struct Node {
    pub op: Op,
    pub inputs: Vec<Expr>,
}

pub(crate) enum Op {
    Tensor(Tensor),
    Nhwc,
    Flatten,
    Relu,
    Add,
    Conv2d { stride: usize, padding: usize },
    AvgPool2d { kernel: usize, stride: usize },
    MaxPool2d { kernel: usize, stride: usize },
    GlobalAvgPool2d,
    Linear,
    Matmul,
    BatchNorm2d { running: [Var; 2], train: bool },
}

impl Expr {
    /// The tensor itself.
    pub fn new(x: &Tensor) -> Self {
        Self(Arc::new(Node {
            op: Op::Tensor(x.clone()),
            inputs: Vec::new(),
        }))
    }

    fn then<'t>(self, op: Op, others: impl IntoIterator<Item = &'t Tensor>) -> Self {
        let mut inputs = vec![self];
        inputs.extend(others.into_iter().map(Expr::new));
        Self(Arc::new(Node { op, inputs }))
    }

    /// As [`crate::nhwc`].
    pub fn nhwc(self) -> Self {
        self.then(Op::Nhwc, [])
    }

    /// As [`crate::flatten`].
    pub fn flatten(self) -> Self {
        self.then(Op::Flatten, [])
    }

    /// As [`crate::relu`].
    pub fn relu(self) -> Self {
        self.then(Op::Relu, [])
    }

    /// As [`crate::conv2d`].
    pub fn conv2d(
        self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        stride: usize,
        padding: usize,
    ) -> Self {
        let op = Op::Conv2d { stride, padding };
        self.then(op, std::iter::once(weight).chain(bias))
    }

    /// As [`crate::avg_pool2d`].
    pub fn avg_pool2d(self, kernel: usize, stride: usize) -> Self {
        self.then(Op::AvgPool2d { kernel, stride }, [])
    }

    /// As [`crate::max_pool2d`].
    pub fn max_pool2d(self, kernel: usize, stride: usize) -> Self {
        self.then(Op::MaxPool2d { kernel, stride }, [])
    }

    /// As [`crate::global_avg_pool2d`].
    pub fn global_avg_pool2d(self) -> Self {
        self.then(Op::GlobalAvgPool2d, [])
    }

    /// As [`crate::linear`].
    pub fn linear(self, weight: &Tensor, bias: Option<&Tensor>) -> Self {
        self.then(Op::Linear, std::iter::once(weight).chain(bias))
    }

    /// As [`crate::matmul`].
    pub fn matmul(self, weight: &Tensor, bias: Option<&Tensor>) -> Self {
        self.then(Op::Matmul, std::iter::once(weight).chain(bias))
    }

    /// As [`crate::batch_norm2d`]; the running statistics move when the expression is evaluated.
    pub fn batch_norm2d(
        self,
        weight: &Tensor,
        bias: &Tensor,
        running_mean: &Var,
        running_var: &Var,
        train: bool,
    ) -> Self {
        let running = [running_mean.clone(), running_var.clone()];
        self.then(Op::BatchNorm2d { running, train }, [weight, bias])
    }

    /// Computes the expression. Its gradient comes by candle's `backward`, as for any operation.
    ///
    /// # Errors
    /// Those of its operations.
    #[tracing::instrument(skip_all, name = "forward")]
    pub fn eval(&self) -> Result<Tensor> {
        match (&self.0.op, self.device()) {
            (Op::Tensor(x), _) => Ok(x.clone()),
            (_, Device::Cpu) => record::evaluate::<Cpu>(compile::tape(self)?, grad::recording()),
            #[cfg(feature = "cuda")]
            (_, Device::Cuda(_)) => {
                let tape = crate::cuda::narrowed(compile::tape(self)?);
                record::evaluate(tape, grad::recording())
            }
            _ => plain::eval(self),
        }
    }

    /// The device of the tensor that it begins with.
    fn device(&self) -> &Device {
        match &self.0.op {
            Op::Tensor(x) => x.device(),
            _ => self.0.inputs[0].device(),
        }
    }
}

impl From<&Tensor> for Expr {
    fn from(x: &Tensor) -> Self {
        Self::new(x)
    }
}

/// The elementwise sum of two values of the same shape.
impl Add for Expr {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(Arc::new(Node {
            op: Op::Add,
            inputs: vec![self, other],
        }))
    }
}
