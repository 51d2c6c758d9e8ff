//! From values to a [`Tape`]: puts the operations in order, and makes one of those that belong together. It
//! computes nothing.

use super::candle::CandleKernel;
use super::tape::{Entry, Operand, Tape};
use super::value::{Node, Source, Value};
use crate::descriptors::pool::Average;
use crate::kernel::{Backend, Kernel, Op, SelfContained};
use candle_core::{Result, TensorId};
use std::collections::HashMap;
use std::rc::Rc;

/// The tape that computes `outputs` on a backend.
pub(crate) fn compile<B: Backend>(outputs: &[&Value]) -> Result<Tape<B>> {
    let mut compiler = Compiler {
        tape: Tape {
            leaves: Vec::new(),
            entries: Vec::new(),
            outputs: Vec::new(),
        },
        uses: HashMap::new(),
        operands: HashMap::new(),
        leaves: HashMap::new(),
        casts: Vec::new(),
    };
    outputs.iter().for_each(|value| compiler.count(value));
    for value in outputs {
        let operand = compiler.operand(value)?;
        let operand = compiler.cast(operand, B::Element::default());
        compiler.tape.outputs.push((operand, value.dims().to_vec()));
    }
    Ok(compiler.tape)
}

/// A layer, and what follows it.
struct Chain<'v> {
    layer: &'v Value,
    relu: bool,
    /// The side of the windows of which it takes the mean; 1 without a pooling.
    pool: usize,
}

struct Compiler<B: Backend> {
    tape: Tape<B>,
    /// Number of times that a value is read.
    uses: HashMap<*const Node, usize>,
    /// The places of the values that have been compiled.
    operands: HashMap<*const Node, Operand>,
    leaves: HashMap<TensorId, Operand>,
    /// Values that are there in another type as well.
    casts: Vec<(Operand, B::Element, Operand)>,
}

impl<B: Backend> Compiler<B> {
    fn count(&mut self, value: &Value) {
        let uses = self.uses.entry(Rc::as_ptr(&value.0)).or_default();
        *uses += 1;
        if *uses == 1 {
            match &value.0.source {
                Source::Tensor(_) => {}
                Source::Reshaped(input) => self.count(input),
                Source::Op(_, inputs) => inputs.iter().for_each(|input| self.count(input)),
            }
        }
    }

    /// The place of a value. Adds the entries for it, where the tape has none yet.
    fn operand(&mut self, value: &Value) -> Result<Operand> {
        if let Some(operand) = self.operands.get(&Rc::as_ptr(&value.0)) {
            return Ok(*operand);
        }
        let operand = match &value.0.source {
            Source::Tensor(tensor) => {
                let leaves = &mut self.tape.leaves;
                *self.leaves.entry(tensor.id()).or_insert_with(|| {
                    leaves.push(tensor.clone());
                    Operand::Leaf(leaves.len() - 1)
                })
            }
            Source::Reshaped(input) => self.operand(input)?,
            Source::Op(op, inputs) => match self.fused(value)? {
                Some(operand) => operand,
                None => self
                    .single(op, inputs, value.dims())?
                    .expect("an operation alone has a kernel"),
            },
        };
        self.operands.insert(Rc::as_ptr(&value.0), operand);
        Ok(operand)
    }

    fn operands(&mut self, values: &[Value]) -> Result<Vec<Operand>> {
        values.iter().map(|value| self.operand(value)).collect()
    }

    /// One more entry, which reads each input in its type.
    fn push(
        &mut self,
        kernel: Box<dyn Kernel<B>>,
        inputs: Vec<Operand>,
        dims: &[usize],
    ) -> Operand {
        let inputs = inputs
            .into_iter()
            .enumerate()
            .map(|(n, operand)| self.cast(operand, kernel.input_element(n)))
            .collect();
        let len = dims.iter().product();
        self.push_entry(Entry {
            kernel,
            inputs,
            len,
        })
    }

    fn push_entry(&mut self, entry: Entry<B>) -> Operand {
        self.tape.entries.push(entry);
        Operand::Result(self.tape.entries.len() - 1)
    }

    /// A value in the type that is asked for.
    fn cast(&mut self, operand: Operand, to: B::Element) -> Operand {
        let (is, len) = match operand {
            Operand::Leaf(i) => (B::Element::default(), self.tape.leaves[i].elem_count()),
            Operand::Result(i) => {
                let entry = &self.tape.entries[i];
                (entry.kernel.element(), entry.len)
            }
        };
        if is == to {
            return operand;
        }
        let is_known =
            |(of, element, _): &&(Operand, B::Element, Operand)| (*of, *element) == (operand, to);
        if let Some((_, _, cast)) = self.casts.iter().find(is_known) {
            return *cast;
        }
        let cast = self.push_entry(Entry {
            kernel: B::cast(to),
            inputs: vec![operand],
            len,
        });
        self.casts.push((operand, to, cast));
        cast
    }

    /// The entry of one operation; none if it is a fused one without a kernel here.
    fn single(&mut self, op: &Op, inputs: &[Value], dims: &[usize]) -> Result<Option<Operand>> {
        let kernel: Option<Box<dyn Kernel<B>>> = match op {
            Op::Candle(f) => Some(Box::new(CandleKernel::new(f.clone(), inputs, dims))),
            Op::Detach => Some(Box::new(CandleKernel::detached(inputs, dims))),
            Op::Gather(gather) => Some(Box::new(gather.clone())),
            _ => B::kernel(op.clone())?,
        };
        match (kernel, op) {
            (Some(kernel), _) => {
                let inputs = self.operands(inputs)?;
                Ok(Some(self.push(kernel, inputs, dims)))
            }
            (None, Op::SelfContained(operation)) => {
                let value = computed_by_candle(operation, inputs, dims);
                let Source::Op(of_candle, inputs) = &value.0.source else {
                    unreachable!("it is an operation of candle's")
                };
                self.single(of_candle, inputs, dims)
            }
            (None, _) => Ok(None),
        }
    }

    /// A layer with the ReLU and the pooling that follow it, if one entry can be all of them.
    fn fused(&mut self, value: &Value) -> Result<Option<Operand>> {
        let Some(Chain { layer, relu, pool }) = self.chain(value) else {
            return Ok(None);
        };
        let Source::Op(op, inputs) = &layer.0.source else {
            return Ok(None);
        };
        let dims = value.dims();
        match op.clone() {
            Op::Convolution(mut conv) => {
                (conv.relu, conv.pool) = (relu, pool);
                if conv.pooled().contains(&0) {
                    Ok(None)
                } else {
                    self.single(&Op::Convolution(conv), inputs, dims)
                }
            }
            Op::Linear(mut linear) if pool == 1 => {
                linear.relu = relu;
                self.single(&Op::Linear(linear), inputs, dims)
            }
            Op::Norm(_) if pool == 1 => self.norm(layer, None, relu).map(Some),
            Op::Add(_) if pool == 1 => self.add(layer, relu),
            _ => Ok(None),
        }
    }

    /// Looks from the end of a chain at what comes before it: a pooling, a ReLU, a layer. None if something else reads a
    /// value in between, which then has to be computed by itself.
    fn chain<'v>(&self, value: &'v Value) -> Option<Chain<'v>> {
        let (pool, before_pool) = match op(value) {
            Some(Op::Average(Average(windows))) => {
                let is_side_by_side = windows.kernel == windows.stride && windows.kernel > 1;
                let before = self.read_only_here(value).filter(|_| is_side_by_side)?;
                (windows.kernel, before)
            }
            _ => (1, value),
        };
        let (relu, layer) = match op(before_pool) {
            Some(Op::Relu(_)) => (true, self.read_only_here(before_pool)?),
            _ => (false, before_pool),
        };
        Some(Chain { layer, relu, pool })
    }

    /// The first input of `value`, if nothing else reads that.
    fn read_only_here<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        let Source::Op(_, inputs) = &value.0.source else {
            return None;
        };
        inputs.first().filter(|input| self.is_read_once(input))
    }

    fn is_read_once(&self, value: &Value) -> bool {
        self.uses.get(&Rc::as_ptr(&value.0)) == Some(&1)
    }

    /// A batch norm, with what is added to it and its ReLU.
    fn norm(&mut self, layer: &Value, shortcut: Option<&Value>, relu: bool) -> Result<Operand> {
        let Source::Op(Op::Norm(norm), inputs) = &layer.0.source else {
            unreachable!("the caller has seen a batch norm")
        };
        let mut norm = norm.clone();
        let x = &inputs[0];
        let shift = if norm.train && self.is_read_once(x) {
            self.without_bias(x)?
        } else {
            None
        };
        let mut operands = self.operands(inputs)?;
        if let Some(shortcut) = shortcut {
            operands.push(self.operand(shortcut)?);
        }
        operands.extend(shift);
        norm.relu = relu;
        norm.shortcut = shortcut.is_some();
        norm.shift = shift.is_some();
        let kernel = B::kernel(Op::Norm(norm))?.expect("a batch norm has a kernel");
        Ok(self.push(kernel, operands, layer.dims()))
    }

    /// A sum; of a batch norm and something else, the two are one.
    fn add(&mut self, sum: &Value, relu: bool) -> Result<Option<Operand>> {
        let Source::Op(Op::Add(add), inputs) = &sum.0.source else {
            unreachable!("the caller has seen a sum")
        };
        for (layer, other) in [(&inputs[0], &inputs[1]), (&inputs[1], &inputs[0])] {
            let is_norm = |x: &Value| matches!(op(x), Some(Op::Norm(_)));
            // two of them run in their order, in which they move running statistics that they share
            if is_norm(layer) && !is_norm(other) && self.is_read_once(layer) {
                return self.norm(layer, Some(other), relu).map(Some);
            }
        }
        let mut add = *add;
        add.relu = relu;
        self.single(&Op::Add(add), inputs, sum.dims())
    }

    /// Adds the convolution in front of a batch norm without its bias, and returns the bias. The batch's
    /// mean would subtract the bias again: only the running mean depends on it.
    fn without_bias(&mut self, x: &Value) -> Result<Option<Operand>> {
        let Source::Op(conv @ Op::Convolution(_), inputs) = &x.0.source else {
            return Ok(None);
        };
        let operand = self
            .single(conv, &inputs[..2], x.dims())?
            .expect("a convolution alone has a kernel");
        self.operands.insert(Rc::as_ptr(&x.0), operand);
        inputs.get(2).map(|bias| self.operand(bias)).transpose()
    }
}

/// The operation that computes a value.
fn op(value: &Value) -> Option<&Op> {
    match &value.0.source {
        Source::Op(op, _) => Some(op),
        _ => None,
    }
}

/// An operation for a backend that has no kernel of it.
pub(crate) fn computed_by_candle(
    operation: &Rc<dyn SelfContained>,
    inputs: &[Value],
    dims: &[usize],
) -> Value {
    let operation = operation.clone();
    let inputs: Vec<&Value> = inputs.iter().collect();
    Value::candle(&inputs, move |x| operation.with_candle(x), dims)
}
