//! Tapes with values of bf16 in memory: which values are bf16, and the steps that convert between the types.
//! Our kernels read bf16, compute in f32, and round their results to bf16; cuDNN multiplies bf16.

use super::Cuda;
use super::memory::{Block, Element, Floats};
use super::operation::{At, Grad, Operation};
use super::stream::Stream;
use crate::precision::{self, Precision};
use crate::tape::{Step, Tape};
use candle_core::Result;
use std::collections::HashMap;

/// The same tape, where [`Precision::Bf16`] is set with values of bf16. Leaves and the result are f32.
pub(crate) fn narrowed(tape: Tape<Cuda>) -> Tape<Cuda> {
    if precision::get() != Precision::Bf16 {
        return tape;
    }
    let Tape { leaves, steps } = tape;
    let mut narrowing = Narrowing {
        values: (0..leaves.len()).collect(),
        tape: Tape {
            leaves,
            steps: Vec::new(),
        },
        casts: HashMap::new(),
    };
    for step in steps {
        narrowing.step(step);
    }
    if let Some(result) = narrowing.values.last().copied() {
        narrowing.cast(result, Element::F32);
    }
    narrowing.tape
}

struct Narrowing {
    /// The number in the new tape of each value of the old one.
    values: Vec<usize>,
    tape: Tape<Cuda>,
    /// Values of the new tape that are there in the other type as well.
    casts: HashMap<usize, usize>,
}

impl Narrowing {
    fn step(&mut self, step: Step<Cuda>) {
        let Step {
            operation,
            inputs,
            dims,
        } = step;
        let typed = |n: usize| match operation.narrows_input(n) {
            true => Element::Bf16,
            false => Element::F32,
        };
        let inputs = inputs.iter().enumerate();
        let inputs = inputs
            .map(|(n, old)| self.cast(self.values[*old], typed(n)))
            .collect();
        let operation: Box<dyn Operation> = match operation.narrows() {
            true => Box::new(Narrow(operation)),
            false => operation,
        };
        let value = self.push(operation, inputs, dims);
        self.values.push(value);
    }

    fn push(
        &mut self,
        operation: Box<dyn Operation>,
        inputs: Vec<usize>,
        dims: Vec<usize>,
    ) -> usize {
        self.tape.steps.push(Step {
            operation,
            inputs,
            dims,
        });
        self.tape.leaves.len() + self.tape.steps.len() - 1
    }

    /// A value of the new tape in the type that is asked for.
    fn cast(&mut self, value: usize, to: Element) -> usize {
        let (is, dims) = match value.checked_sub(self.tape.leaves.len()) {
            None => (Element::F32, &self.tape.leaves[value].dims),
            Some(i) => (
                self.tape.steps[i].operation.element(),
                &self.tape.steps[i].dims,
            ),
        };
        if is == to {
            return value;
        }
        if let Some(cast) = self.casts.get(&value) {
            return *cast;
        }
        let dims = dims.clone();
        let cast = self.push(Box::new(Cast(to)), vec![value], dims);
        self.casts.insert(value, cast);
        cast
    }
}

/// An operation with a result of bf16.
struct Narrow(Box<dyn Operation>);

impl Operation for Narrow {
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, keep: bool) -> Result<Vec<Block>> {
        self.0.forward(stream, x, y, keep)
    }

    fn backward(&self, stream: &Stream, at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()> {
        self.0.backward(stream, at, dy, dx)
    }

    fn element(&self) -> Element {
        Element::Bf16
    }
}

/// The same numbers in that type.
struct Cast(Element);

impl Operation for Cast {
    fn forward(&self, stream: &Stream, x: &[Floats], y: Floats, _keep: bool) -> Result<Vec<Block>> {
        stream.copy(x[0], y)?;
        Ok(vec![])
    }

    fn backward(&self, stream: &Stream, _at: At<'_>, dy: Block, dx: &mut [Grad]) -> Result<()> {
        dx[0].add(stream, dy.floats())
    }

    fn element(&self) -> Element {
        self.0
    }
}
