//! From values to a [`Tape`]: puts the operations in order, and makes one of those that belong together. It
//! computes nothing.

use super::candle::CandleKernel;
use super::tape::{Entry, Operand, Tape};
use super::value::{Node, Source, Value};
use crate::descriptors::pool::Average;
use crate::kernel::{Backend, Kernel, Op, SelfContained};
use candle_core::{Result, Tensor, TensorId};
use std::collections::{HashMap, HashSet};
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
        without_bias: HashSet::new(),
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
    /// Convolutions that leave their bias to the batch norm behind them.
    without_bias: HashSet<*const Node>,
    /// The places of the values that have been compiled.
    operands: HashMap<*const Node, Operand>,
    leaves: HashMap<TensorId, Operand>,
    /// Values that are there in another type as well.
    casts: Vec<(Operand, B::Element, Operand)>,
}

/// A value that waits for the places of others.
struct Waiting<B: Backend> {
    value: Value,
    /// The others that have not been looked at, in the order in which they are compiled.
    others: std::vec::IntoIter<Value>,
    then: Then<B>,
}

/// The fate of a value when the others have their places.
enum Then<B: Backend> {
    /// It is one of the tape's tensors.
    Leaf(Tensor),
    /// It has the place of this value.
    Same(Value),
    Entry(Chosen<B>),
}

/// An entry whose inputs may have no places yet.
struct Chosen<B: Backend> {
    kernel: Rc<dyn Kernel<B>>,
    inputs: Vec<Value>,
    /// Elements of the result.
    len: usize,
    /// The values that have to be compiled before, in this order, if it is not the order of the inputs.
    before: Option<Vec<Value>>,
}

impl<B: Backend> Compiler<B> {
    fn count(&mut self, output: &Value) {
        let mut values = vec![output];
        while let Some(value) = values.pop() {
            let uses = self.uses.entry(key(value)).or_default();
            *uses += 1;
            if *uses == 1 {
                match &value.0.source {
                    Source::Tensor(_) => {}
                    Source::Reshaped(input) => values.push(input),
                    Source::Op(_, inputs) => values.extend(inputs),
                }
            }
        }
    }

    /// The place of a value. Adds the entries for it, where the tape has none yet: those that it reads come first, in the
    /// order in which it reads them.
    ///
    /// It does not call itself for each value that a value reads: a chain of any length fits into the stack.
    fn operand(&mut self, output: &Value) -> Result<Operand> {
        let mut stack = Vec::new();
        if !self.operands.contains_key(&key(output)) {
            stack.push(self.begin(output)?);
        }
        while let Some(last) = stack.last_mut() {
            match last.others.next() {
                Some(other) if self.operands.contains_key(&key(&other)) => {}
                Some(other) => stack.push(self.begin(&other)?),
                None => {
                    let Waiting { value, then, .. } = stack.pop().expect("it is the last");
                    let operand = self.end(then);
                    self.operands.insert(key(&value), operand);
                }
            }
        }
        Ok(self.place(output))
    }

    /// Says what becomes of a value, and what it waits for.
    fn begin(&mut self, value: &Value) -> Result<Waiting<B>> {
        let then = match &value.0.source {
            Source::Tensor(tensor) => Then::Leaf(tensor.clone()),
            Source::Reshaped(input) => Then::Same(input.clone()),
            Source::Op(op, inputs) => {
                let chosen = if self.without_bias.contains(&key(value)) {
                    Self::single(op, &inputs[..2], value.dims())?
                } else if let Some(fused) = self.fused(value)? {
                    Some(fused)
                } else {
                    Self::single(op, inputs, value.dims())?
                };
                Then::Entry(chosen.expect("an operation alone has a kernel"))
            }
        };
        let others = match &then {
            Then::Leaf(_) => Vec::new(),
            Then::Same(input) => vec![input.clone()],
            Then::Entry(chosen) => chosen.before.as_ref().unwrap_or(&chosen.inputs).clone(),
        };
        Ok(Waiting {
            value: value.clone(),
            others: others.into_iter(),
            then,
        })
    }

    /// The place of a value all of whose inputs have places.
    fn end(&mut self, then: Then<B>) -> Operand {
        match then {
            Then::Leaf(tensor) => {
                let leaves = &mut self.tape.leaves;
                *self.leaves.entry(tensor.id()).or_insert_with(|| {
                    leaves.push(tensor);
                    Operand::Leaf(leaves.len() - 1)
                })
            }
            Then::Same(input) => self.place(&input),
            Then::Entry(chosen) => self.push(chosen),
        }
    }

    fn place(&self, value: &Value) -> Operand {
        self.operands[&key(value)]
    }

    /// One more entry, which reads each input in its type.
    fn push(&mut self, chosen: Chosen<B>) -> Operand {
        let Chosen {
            kernel,
            inputs,
            len,
            ..
        } = chosen;
        let inputs = inputs
            .iter()
            .enumerate()
            .map(|(n, input)| self.cast(self.place(input), kernel.input_element(n)))
            .collect();
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
    fn single(op: &Op, inputs: &[Value], dims: &[usize]) -> Result<Option<Chosen<B>>> {
        let kernel: Option<Rc<dyn Kernel<B>>> = match op {
            Op::Candle(f) => Some(Rc::new(CandleKernel::new(f.clone(), inputs, dims))),
            Op::Detach => Some(Rc::new(CandleKernel::detached(inputs, dims))),
            Op::Gather(gather) => Some(Rc::new(gather.clone())),
            _ => B::kernel(op.clone())?,
        };
        match (kernel, op) {
            (Some(kernel), _) => Ok(Some(Chosen {
                kernel,
                inputs: inputs.to_vec(),
                len: dims.iter().product(),
                before: None,
            })),
            (None, Op::SelfContained(operation)) => {
                let value = computed_by_candle(operation, inputs, dims);
                let Source::Op(of_candle, inputs) = &value.0.source else {
                    unreachable!("it is an operation of candle's")
                };
                Self::single(of_candle, inputs, dims)
            }
            (None, _) => Ok(None),
        }
    }

    /// A layer with the ReLU and the pooling that follow it, if one entry can be all of them.
    fn fused(&mut self, value: &Value) -> Result<Option<Chosen<B>>> {
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
                    Self::single(&Op::Convolution(conv), inputs, dims)
                }
            }
            Op::Linear(mut linear) if pool == 1 => {
                linear.relu = relu;
                Self::single(&Op::Linear(linear), inputs, dims)
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
        self.uses.get(&key(value)) == Some(&1)
    }

    /// A batch norm, with what is added to it and its ReLU.
    fn norm(&mut self, layer: &Value, shortcut: Option<&Value>, relu: bool) -> Result<Chosen<B>> {
        let Source::Op(Op::Norm(norm), inputs) = &layer.0.source else {
            unreachable!("the caller has seen a batch norm")
        };
        let mut norm = norm.clone();
        let [x, others @ ..] = &inputs[..] else {
            unreachable!("a batch norm has an input")
        };
        let shift = if norm.train && self.is_read_once(x) {
            self.bias_left_by(x)
        } else {
            None
        };
        norm.relu = relu;
        norm.shortcut = shortcut.is_some();
        norm.shift = shift.is_some();
        let kernel = B::kernel(Op::Norm(norm))?.expect("a batch norm has a kernel");
        let x = std::iter::once(x);
        let inputs = x.clone().chain(others).chain(shortcut).chain(shift);
        let before = x.chain(shift).chain(others).chain(shortcut);
        Ok(Chosen {
            kernel,
            inputs: inputs.cloned().collect(),
            len: layer.dims().iter().product(),
            before: Some(before.cloned().collect()),
        })
    }

    /// A sum; of a batch norm and something else, the two are one.
    fn add(&mut self, sum: &Value, relu: bool) -> Result<Option<Chosen<B>>> {
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
        Self::single(&Op::Add(add), inputs, sum.dims())
    }

    /// The bias of the convolution in front of a batch norm, which is then compiled without it. The batch's mean would
    /// subtract the bias again: only the running mean depends on it.
    fn bias_left_by<'v>(&mut self, x: &'v Value) -> Option<&'v Value> {
        let Source::Op(Op::Convolution(_), inputs) = &x.0.source else {
            return None;
        };
        let bias = inputs.get(2)?;
        self.without_bias.insert(key(x));
        Some(bias)
    }
}

/// The identity of a value.
fn key(value: &Value) -> *const Node {
    Rc::as_ptr(&value.0)
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
