//! The operations: their sizes, and the checks of what they are given. Nothing is computed here.

pub(crate) mod args;
pub(crate) mod convolution;
pub(crate) mod dropout;
pub(crate) mod layout;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod synchronized;
pub(crate) mod tokens;

use candle_core::{Result, Tensor};
use convolution::Convolution;
use dropout::Dropout;
use layout::Transpose;
use linear::Linear;
use loss::CrossEntropy;
use norm::Norm;
use pool::{Average, GlobalAverage, Maximum};
use std::rc::Rc;
use tokens::{Attention, Embedding, Gelu, LayerNorm};

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
    Gelu(Gelu),
    Dropout(Dropout),
    Embedding(Embedding),
    LayerNorm(LayerNorm),
    Attention(Attention),
    /// The same numbers, through which no gradient goes.
    Detach,
    Candle(Rc<Function>),
}

/// A function of candle's own operations, with all the variables that it reads.
pub(crate) type Function = dyn Fn(&[Tensor]) -> Result<Tensor>;

/// The positive part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

/// The elementwise sum of two values, and its positive part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Add {
    pub relu: bool,
}

/// The sum of all elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sum;

/// The mean of all elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mean;
