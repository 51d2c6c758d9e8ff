//! From an expression to a [`Tape`]: checks shapes, puts the operations in order, and makes one of
//! those that belong together. It computes nothing.

use crate::activation::{Relu, Sum};
use crate::args;
use crate::conv::Convolution;
use crate::expr::{Expr, Node, Op};
use crate::im2col::Geometry;
use crate::layer::{Backend, Layer};
use crate::layout::Transpose;
use crate::linear::{self, Linear};
use crate::norm::Norm;
use crate::pool::{Average, GlobalAverage, Maximum, Windows};
use crate::tape::{Leaf, Step, Tape, View};
use candle_core::{Result, Tensor, TensorId, bail};
use std::collections::HashMap;
use std::sync::Arc;

/// The tape that computes `expr`, which is more than a tensor, on a backend.
pub(crate) fn tape<B: Backend>(expr: &Expr) -> Result<Tape<B>> {
    let mut compiler = Compiler {
        tape: Tape::new(),
        uses: HashMap::new(),
        values: HashMap::new(),
        leaves: HashMap::new(),
    };
    compiler.survey(expr)?;
    compiler.value(expr)?;
    Ok(compiler.tape)
}

struct Compiler<B: Backend> {
    tape: Tape<B>,
    /// How often a node is read.
    uses: HashMap<*const Node, usize>,
    values: HashMap<*const Node, usize>,
    leaves: HashMap<(TensorId, View), usize>,
}

impl<B: Backend> Compiler<B> {
    /// Counts uses and collects the leaves: their numbers come before those of the steps.
    fn survey(&mut self, expr: &Expr) -> Result<()> {
        let uses = self.uses.entry(Arc::as_ptr(&expr.0)).or_default();
        *uses += 1;
        if *uses > 1 {
            return Ok(());
        }
        let (op, names) = expr.0.op.names();
        for (input, name) in expr.0.inputs.iter().zip(names) {
            self.survey(input)?;
            let Op::Tensor(x) = &input.0.op else { continue };
            args::check_float(op, name, x)?;
            let view = match (op, *name, x.dims()) {
                // a linear layer reads a transposed view without a copy
                ("linear", "weight", _) if is_transposed(x)? => View::Transposed,
                ("nhwc", _, [_, 1, _, _]) => View::OneChannel,
                _ => View::AsItIs,
            };
            let leaf = self.leaf(x, view)?;
            self.values.insert(Arc::as_ptr(&input.0), leaf);
            if view == View::OneChannel {
                self.values.insert(Arc::as_ptr(&expr.0), leaf); // nothing is left to do
            }
        }
        Ok(())
    }

    fn leaf(&mut self, x: &Tensor, view: View) -> Result<usize> {
        if let Some(leaf) = self.leaves.get(&(x.id(), view)) {
            return Ok(*leaf);
        }
        let data = match view {
            View::Transposed => x.t()?,
            _ => x.contiguous()?,
        };
        let dims = match (view, x.dims()) {
            (View::OneChannel, [b, _, h, w]) => vec![*b, *h, *w, 1],
            (_, dims) => dims.to_vec(),
        };
        let number = self.tape.leaves.len();
        self.leaves.insert((x.id(), view), number);
        self.tape.leaves.push(Leaf {
            source: x.clone(),
            data: data.detach(),
            view,
            dims,
        });
        Ok(number)
    }

    /// The number of an expression's value. Adds the steps for it, where the tape has none yet.
    fn value(&mut self, expr: &Expr) -> Result<usize> {
        if let Some(value) = self.values.get(&Arc::as_ptr(&expr.0)) {
            return Ok(*value);
        }
        let value = match self.layer(expr)? {
            Some(value) => value,
            None => self.single(expr)?,
        };
        self.values.insert(Arc::as_ptr(&expr.0), value);
        Ok(value)
    }

    /// A layer with what follows it, where that can be one step.
    fn layer(&mut self, expr: &Expr) -> Result<Option<usize>> {
        let (pool, inner) = match expr.0.op {
            Op::AvgPool2d { kernel, stride } if kernel == stride && kernel > 1 => {
                (kernel, self.only_here(expr))
            }
            Op::AvgPool2d { .. } => return Ok(None),
            _ => (1, Some(expr)),
        };
        let Some(inner) = inner else { return Ok(None) };
        let (relu, layer) = match (&inner.0.op, self.only_here(inner)) {
            (Op::Relu, Some(layer)) => (true, layer),
            (Op::Relu, None) => return Ok(None),
            _ => (false, inner),
        };
        match &layer.0.op {
            Op::Conv2d { .. } => self.fused(layer, relu, pool),
            Op::Linear | Op::Matmul if pool == 1 => self.linear(layer, relu).map(Some),
            Op::BatchNorm2d { .. } if pool == 1 => self.norm(layer, None, relu).map(Some),
            Op::Add if pool == 1 => self.sum(layer, relu).map(Some),
            _ => Ok(None),
        }
    }

    /// The first input of `expr`, if that input is read only once.
    fn only_here<'e>(&self, expr: &'e Expr) -> Option<&'e Expr> {
        let input = expr.0.inputs.first()?;
        self.read_once(input).then_some(input)
    }

    fn read_once(&self, expr: &Expr) -> bool {
        self.uses.get(&Arc::as_ptr(&expr.0)) == Some(&1)
    }

    fn values(&mut self, inputs: &[Expr]) -> Result<Vec<usize>> {
        inputs.iter().map(|input| self.value(input)).collect()
    }

    /// The shape of a value, as the expression sees it.
    fn dims(&self, value: usize) -> &[usize] {
        match value.checked_sub(self.tape.leaves.len()) {
            None => &self.tape.leaves[value].dims,
            Some(step) => &self.tape.steps[step].dims,
        }
    }

    /// The number of the result of a step more.
    fn push(&mut self, layer: Layer, inputs: Vec<usize>, dims: impl Into<Vec<usize>>) -> usize {
        let operation = B::operation(layer).expect("nothing is behind it that it could not take");
        self.step(operation, inputs, dims)
    }

    fn step(
        &mut self,
        operation: Box<B::Operation>,
        inputs: Vec<usize>,
        dims: impl Into<Vec<usize>>,
    ) -> usize {
        self.tape.steps.push(Step {
            operation,
            inputs,
            dims: dims.into(),
        });
        self.tape.leaves.len() + self.tape.steps.len() - 1
    }

    fn geometry(&mut self, conv: &Expr) -> Result<(Geometry, Vec<usize>)> {
        let Op::Conv2d { stride, padding } = conv.0.op else {
            bail!("expected a convolution")
        };
        let inputs = self.values(&conv.0.inputs)?;
        let bias = inputs.get(2).map(|b| self.dims(*b));
        let (x, weight) = (self.dims(inputs[0]), self.dims(inputs[1]));
        Ok((Geometry::new(x, weight, bias, stride, padding)?, inputs))
    }

    /// A convolution with its ReLU and its pooling, where they can be one step.
    fn fused(&mut self, conv: &Expr, relu: bool, pool: usize) -> Result<Option<usize>> {
        let (geometry, inputs) = self.geometry(conv)?;
        let layer = Convolution {
            geometry,
            relu,
            pool,
        };
        let dims = layer.dims();
        if layer.pooled().contains(&0) {
            return Ok(None); // the pooling says why
        }
        let operation = B::operation(Layer::Convolution(layer));
        Ok(operation.map(|operation| self.step(operation, inputs, dims)))
    }

    fn linear(&mut self, layer: &Expr, relu: bool) -> Result<usize> {
        let inputs = self.values(&layer.0.inputs)?;
        let dims = [self.dims(inputs[0]), self.dims(inputs[1])];
        let bias = inputs.get(2).map(|b| self.dims(*b));
        let leaf = self.tape.leaves.get(inputs[1]);
        let (sizes, transposed) = match layer.0.op {
            Op::Matmul => (linear::check_matmul(dims, bias)?, true),
            _ => (
                linear::check(dims, bias)?,
                leaf.is_some_and(|leaf| leaf.view == View::Transposed),
            ),
        };
        let linear = Linear::new(sizes, transposed, relu);
        let dims = linear.dims();
        Ok(self.push(Layer::Linear(linear), inputs, dims))
    }

    /// Batch norm, with what is added to it and its ReLU.
    fn norm(&mut self, layer: &Expr, shortcut: Option<&Expr>, relu: bool) -> Result<usize> {
        let Op::BatchNorm2d { running, train } = &layer.0.op else {
            bail!("expected a batch norm")
        };
        let x = &layer.0.inputs[0];
        let shift = match x.0.op {
            Op::Conv2d { .. } if *train && self.read_once(x) => self.without_bias(x)?,
            _ => None,
        };
        let mut inputs = self.values(&layer.0.inputs)?;
        let parts = [0, 1, 2].map(|i| self.dims(inputs[i]));
        let mut norm = Norm::new(parts, running, *train, relu)?;
        let dims = self.dims(inputs[0]).to_vec();
        if let Some(shortcut) = shortcut {
            norm.shortcut = true;
            inputs.push(self.value(shortcut)?);
            args::same(&dims, self.dims(inputs[3]))?;
        }
        norm.shift = shift.is_some();
        inputs.extend(shift);
        Ok(self.push(Layer::Norm(norm), inputs, dims))
    }

    /// A sum; of a batch norm and something else, the two are one.
    fn sum(&mut self, sum: &Expr, relu: bool) -> Result<usize> {
        for (i, j) in [(0, 1), (1, 0)] {
            let (layer, other) = (&sum.0.inputs[i], &sum.0.inputs[j]);
            let norm = |x: &Expr| matches!(x.0.op, Op::BatchNorm2d { .. });
            // two of them run in their order, in which they move running statistics that they share
            if norm(layer) && !norm(other) && self.read_once(layer) {
                return self.norm(layer, Some(other), relu);
            }
        }
        let inputs = self.values(&sum.0.inputs)?;
        let dims = self.dims(inputs[0]).to_vec();
        args::same(&dims, self.dims(inputs[1]))?;
        Ok(self.push(Layer::Sum(Sum { relu }), inputs, dims))
    }

    /// Pushes the convolution in front of a batch norm without its bias, and returns the bias. The batch's
    /// mean would subtract the bias again: only the running mean depends on it.
    fn without_bias(&mut self, conv: &Expr) -> Result<Option<usize>> {
        let (geometry, mut inputs) = self.geometry(conv)?;
        let bias = inputs.get(2).copied();
        inputs.truncate(2);
        let layer = Convolution {
            geometry,
            relu: false,
            pool: 1,
        };
        let dims = layer.dims();
        let value = self.push(Layer::Convolution(layer), inputs, dims);
        self.values.insert(Arc::as_ptr(&conv.0), value);
        Ok(bias)
    }

    fn single(&mut self, expr: &Expr) -> Result<usize> {
        let inputs = self.values(&expr.0.inputs)?;
        let x = self.dims(inputs[0]).to_vec();
        Ok(match expr.0.op {
            Op::Nhwc => {
                let (transpose, dims) = Transpose::nhwc(&x)?;
                self.push(Layer::Transpose(transpose), inputs, dims)
            }
            Op::Flatten => {
                let (transpose, dims) = Transpose::flatten(&x)?;
                self.push(Layer::Transpose(transpose), inputs, dims)
            }
            Op::AvgPool2d { kernel, stride } => {
                let windows = Windows::new("avg_pool2d", &x, kernel, stride)?;
                self.push(Layer::Average(Average(windows)), inputs, windows.dims())
            }
            Op::MaxPool2d { kernel, stride } => {
                let windows = Windows::new("max_pool2d", &x, kernel, stride)?;
                self.push(Layer::Maximum(Maximum(windows)), inputs, windows.dims())
            }
            Op::GlobalAvgPool2d => {
                let pool = GlobalAverage::new(&x)?;
                self.push(Layer::GlobalAverage(pool), inputs, [x[0], x[3]])
            }
            Op::Relu => self.push(Layer::Relu(Relu), inputs, x),
            _ => bail!("every other operation is a layer"),
        })
    }
}

/// Whether a matrix is the transposed view of one that lies in memory row by row.
fn is_transposed(x: &Tensor) -> Result<bool> {
    Ok(x.rank() == 2 && !x.is_contiguous() && x.t()?.is_contiguous())
}

impl Op {
    /// The names of the operation and of its inputs, for messages.
    fn names(&self) -> (&'static str, &'static [&'static str]) {
        match self {
            Op::Tensor(_) => ("", &[]),
            Op::Nhwc => ("nhwc", &["x"]),
            Op::Flatten => ("flatten", &["x"]),
            Op::Relu => ("relu", &["x"]),
            Op::Add => ("add", &["x", "other"]),
            Op::Conv2d { .. } => ("conv2d", &["x", "weight", "bias"]),
            Op::AvgPool2d { .. } => ("avg_pool2d", &["x"]),
            Op::MaxPool2d { .. } => ("max_pool2d", &["x"]),
            Op::GlobalAvgPool2d => ("global_avg_pool2d", &["x"]),
            Op::Linear => ("linear", &["x", "weight", "bias"]),
            Op::Matmul => ("matmul", &["x", "weight", "bias"]),
            Op::BatchNorm2d { .. } => ("batch_norm2d", &["x", "weight", "bias"]),
        }
    }
}
