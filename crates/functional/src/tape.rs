//! An expression made ready: its operations in the order in which they run, those that belong
//! together already one. It runs them forward, and backward through buffers of its own, so that
//! candle's graph sees one operation.

use crate::buffer::Buffer;
use crate::layer::{Backend, Cpu};
use crate::operation::{At, Grad};
use crate::places::{self, Place};
use crate::storage;
use candle_core::{Result, Tensor};

/// A tensor that an expression reads.
pub(crate) struct Leaf {
    /// As the expression was given it.
    pub source: Tensor,
    /// Its elements in row-major order; of a transposed matrix, those of the matrix itself.
    pub data: Tensor,
    pub view: View,
    /// The shape that the expression sees.
    pub dims: Vec<usize>,
}

/// How an expression sees a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum View {
    AsItIs,
    /// The transposed view of a matrix that lies in memory row by row.
    Transposed,
    /// Images of one channel, which are the same floats in either order: (B, H, W, 1).
    OneChannel,
}

/// One operation, on values that are numbered: the leaves first, then the results of the steps.
pub(crate) struct Step<B: Backend> {
    pub operation: Box<B::Operation>,
    pub inputs: Vec<usize>,
    pub dims: Vec<usize>,
}

/// The operations of an expression in their order, as they run on a backend.
pub(crate) struct Tape<B: Backend> {
    pub leaves: Vec<Leaf>,
    pub steps: Vec<Step<B>>,
}

impl<B: Backend> Tape<B> {
    /// Without leaves and steps.
    pub(crate) fn new() -> Self {
        Self {
            leaves: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// The shape of the result.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.steps.last().expect("a tape has a step").dims
    }

    /// The length of each step's gradient, where one of its inputs wants one; nothing otherwise.
    pub(crate) fn wanted(&self, leaves: impl Iterator<Item = bool>) -> Vec<Option<usize>> {
        let mut wanted: Vec<bool> = leaves.collect();
        let step = |step: &Step<B>| {
            let any = step.inputs.iter().any(|i| wanted[*i]);
            wanted.push(any);
            any.then(|| step.dims.iter().product())
        };
        self.steps.iter().map(step).collect()
    }

    /// The leaves that step `i` is the first to read, and so the last to add to their gradients.
    pub(crate) fn first_read_by(&self, i: usize) -> impl Iterator<Item = usize> {
        let inputs = &self.steps[i].inputs;
        let first = move |n: usize| {
            let mut earlier = self.steps[..i].iter().flat_map(|s| &s.inputs);
            !inputs[..n].contains(&inputs[n]) && !earlier.any(|j| *j == inputs[n])
        };
        let leaves = (0..inputs.len()).filter(|n| inputs[*n] < self.leaves.len());
        leaves.filter(move |n| first(*n)).map(|n| inputs[n])
    }

    /// Whether an earlier leaf is the same tensor, seen in another way.
    pub(crate) fn is_there_before(&self, leaf: usize) -> bool {
        let id = self.leaves[leaf].source.id();
        self.leaves[..leaf].iter().any(|l| l.source.id() == id)
    }

    /// The values that step `i` is the last to read, by the numbers of their steps.
    pub(crate) fn last_read_by(&self, i: usize) -> impl Iterator<Item = usize> {
        let later = move |value: usize| {
            let mut later = self.steps[i + 1..].iter().flat_map(|s| &s.inputs);
            later.any(|j| *j == value)
        };
        let inputs = self.steps[i].inputs.iter().copied();
        let steps = inputs.filter(|value| *value >= self.leaves.len());
        steps
            .filter(move |v| !later(*v))
            .map(|v| v - self.leaves.len())
    }
}

/// What a forward pass leaves for backward: the results of all steps but the last, which is the
/// tensor that the caller has, and what each step kept.
pub(crate) struct Kept {
    values: Vec<Buffer>,
    steps: Vec<Vec<Buffer>>,
}

impl Tape<Cpu> {
    /// The result; where not `keep`, each value is given back after its last use.
    pub(crate) fn forward(&self, keep: bool) -> Result<(Vec<f32>, Kept)> {
        let last = self.steps.len() - 1;
        let mut kept = Kept {
            values: Vec::new(),
            steps: Vec::new(),
        };
        let mut result = Vec::new();
        storage::read_all(self.leaves.iter().map(|l| &l.data), |leaves| {
            for (i, step) in self.steps.iter().enumerate() {
                let len = step.dims.iter().product();
                let mut y = Buffer::default();
                let y_slice: &mut [f32] = if i == last {
                    result = vec![0.; len];
                    &mut result
                } else {
                    y = Buffer::new(len);
                    &mut y
                };
                let x = inputs(step, leaves, &kept.values);
                kept.steps.push(step.operation.forward(&x, y_slice, keep)?);
                drop(x);
                kept.values.push(y);
                if !keep {
                    for value in self.last_read_by(i) {
                        kept.values[value] = Buffer::default();
                    }
                }
            }
            Ok(())
        })?;
        Ok((result, kept))
    }

    /// Sums up the gradients of the leaves, from the result `y` and its gradient.
    pub(crate) fn backward(
        &self,
        kept: &Kept,
        y: &[f32],
        dy: Buffer,
        leaf_grads: Vec<Grad<'static>>,
    ) -> Result<Vec<Grad<'static>>> {
        let mut grads = leaf_grads;
        let of_steps = self.wanted(grads.iter().map(Grad::wanted));
        grads.extend(
            of_steps
                .into_iter()
                .map(|len| len.map_or(Grad::Unwanted, Grad::Empty)),
        );
        if let Some(last) = grads.last_mut() {
            last.give(dy);
        }
        storage::read_all(self.leaves.iter().map(|l| &l.data), |leaves| {
            for (i, step) in self.steps.iter().enumerate().rev() {
                if let Some(Grad::Buffer(dy)) = grads.pop() {
                    let at = At {
                        x: &inputs(step, leaves, &kept.values),
                        y: match i + 1 == self.steps.len() {
                            true => y,
                            false => &kept.values[i],
                        },
                        kept: &kept.steps[i],
                    };
                    with_grads(&step.inputs, &mut grads, |dx| {
                        step.operation.backward(at, dy, dx)
                    })?;
                }
                let mut complete = self.first_read_by(i).filter_map(|i| grads[i].place());
                complete.try_for_each(places::finish)?;
            }
            Ok(())
        })?;
        Ok(grads)
    }
}

fn inputs<'a>(step: &Step<Cpu>, leaves: &[&'a [f32]], values: &'a [Buffer]) -> Vec<&'a [f32]> {
    let value = |&i: &usize| match i.checked_sub(leaves.len()) {
        None => leaves[i],
        Some(i) => &values[i][..],
    };
    step.inputs.iter().map(value).collect()
}

/// Calls `f` with the gradients of `inputs`, those of parameters in their places; a value that is there
/// twice is summed up in two parts.
fn with_grads(
    inputs: &[usize],
    grads: &mut [Grad<'static>],
    f: impl FnOnce(&mut [Grad<'_>]) -> Result<()>,
) -> Result<()> {
    let before = |n: usize| inputs[..n].iter().position(|i| *i == inputs[n]);
    let mut taken: Vec<Grad<'static>> = Vec::new();
    for (n, &i) in inputs.iter().enumerate() {
        taken.push(match before(n) {
            None => grads[i].take(),
            Some(first) => taken[first].part(),
        });
    }
    let places: Vec<Place> = taken.iter().filter_map(Grad::place).collect();
    places::with_slices(&places, |lent| {
        let mut dx: Vec<Grad> = taken; // for as long as the places are lent
        let placed = dx.iter_mut().filter(|grad| grad.place().is_some());
        placed.zip(lent).for_each(|(grad, slice)| *grad = slice);
        f(&mut dx)?;
        for n in 0..inputs.len() {
            if let Some(first) = before(n)
                && let Grad::Buffer(part) = dx[n].take()
            {
                dx[first].give(part);
            }
        }
        for (&i, grad) in inputs.iter().zip(dx) {
            match grad {
                Grad::Buffer(sum) => grads[i] = Grad::Buffer(sum),
                Grad::Empty(len) => grads[i] = Grad::Empty(len),
                _ => {} // in its place, or unwanted
            }
        }
        Ok(())
    })
}
