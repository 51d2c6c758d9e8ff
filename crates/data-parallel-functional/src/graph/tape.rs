//! A tape: a computation as entries, in the order in which they run. It runs them forward, and backward to the gradients
//! of parameters, on any backend.

use super::writing::Writing;
use crate::kernel::{At, Backend, Grad, Input, Kernel, Pass};
use candle_core::{Result, Tensor, TensorId};
use std::rc::Rc;

/// The place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Leaf(usize),
    /// The result of an entry.
    Result(usize),
}

/// One kernel, on values.
pub(crate) struct Entry<B: Backend> {
    pub kernel: Rc<dyn Kernel<B>>,
    pub inputs: Vec<Operand>,
    /// Elements of the result.
    pub len: usize,
}

pub(crate) struct Tape<B: Backend> {
    /// Contiguous tensors. Each is locked while an entry reads it, and at no other time.
    pub leaves: Vec<Tensor>,
    pub entries: Vec<Entry<B>>,
    /// The outputs with their shapes; in a pass with a loss, the loss is the first.
    pub outputs: Vec<(Operand, Vec<usize>)>,
}

/// The results of the entries and the saved tensors of each kernel, from forward to backward.
pub(crate) struct Saved<B: Backend> {
    values: Vec<Option<B::Buffer>>,
    tensors: Vec<Vec<B::Buffer>>,
    /// The weight of each entry, where its kernel wants it repacked.
    packed: Vec<Option<B::Buffer>>,
}

impl<B: Backend> Tape<B> {
    /// The elements that forward and backward have in memory at the same time, at least: all values and the largest
    /// gradient of one that is computed from a variable.
    pub fn least_memory(&self) -> usize {
        let is_variable = |operand: &Operand| matches!(operand, Operand::Leaf(i) if self.leaves[*i].is_variable());
        let of_variable = |entry: &&Entry<B>| entry.inputs.iter().any(is_variable);
        let gradient = self.entries.iter().filter(of_variable);
        gradient.map(|entry| entry.len).max().unwrap_or(0)
            + self.entries.iter().map(|entry| entry.len).sum::<usize>()
    }

    /// Runs all entries. Without `pass.keep` each value is given back after its last use.
    pub fn forward(&self, pass: &Pass<B>) -> Result<Saved<B>> {
        let last_uses = self.last_uses();
        let mut saved = Saved {
            values: Vec::new(),
            tensors: Vec::new(),
            packed: self.entries.iter().map(|_| None).collect(),
        };
        for (i, entry) in self.entries.iter().enumerate() {
            self.pack(pass, i, &mut saved)?;
            let mut y = B::alloc(&pass.stream, entry.kernel.element(), entry.len)?;
            let inputs = self.inputs(i, &saved);
            let tensors = B::read(&pass.stream, &inputs, |x| {
                entry.kernel.forward(pass, x, B::view_mut(&mut y))
            })?;
            saved.values.push(Some(y));
            if pass.keep {
                saved.tensors.push(tensors);
                continue;
            }
            saved.packed[i] = None;
            for operand in &entry.inputs {
                if let Operand::Result(value) = *operand
                    && last_uses[value] == i
                {
                    saved.values[value] = None;
                }
            }
        }
        Ok(saved)
    }

    /// The last entry that reads the result of each entry; none for outputs.
    fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![usize::MAX; self.entries.len()];
        for (i, entry) in self.entries.iter().enumerate() {
            for operand in &entry.inputs {
                if let Operand::Result(value) = *operand {
                    last[value] = i;
                }
            }
        }
        for (operand, _) in &self.outputs {
            if let Operand::Result(value) = *operand {
                last[value] = usize::MAX;
            }
        }
        last
    }

    /// Repacks the weight of entry `first` if its kernel wants that, and with it those of later entries that are leaves.
    fn pack(&self, pass: &Pass<B>, first: usize, saved: &mut Saved<B>) -> Result<()> {
        let packing = |i: usize| {
            let kernel = &self.entries[i].kernel;
            Some((i, kernel.packing(kernel.input_element(0))?))
        };
        if saved.packed[first].is_some() || packing(first).is_none() {
            return Ok(());
        }
        let is_there = |i: &usize| matches!(self.entries[*i].inputs.get(1), Some(Operand::Leaf(_)));
        let entries = (first..self.entries.len())
            .filter(|i| *i == first || is_there(i))
            .filter(|i| saved.packed[*i].is_none());
        let (entries, packings): (Vec<usize>, Vec<_>) = entries.filter_map(packing).unzip();
        let weight = |i: &usize| self.input(self.entries[*i].inputs[1], saved);
        let weights: Vec<_> = entries.iter().map(weight).collect();
        let packed = B::read(&pass.stream, &weights, |weights| {
            let weights = weights.iter().copied().zip(packings);
            B::pack(&pass.stream, &weights.collect::<Vec<_>>())
        })?;
        for (i, memory) in entries.into_iter().zip(packed) {
            saved.packed[i] = Some(memory);
        }
        Ok(())
    }

    fn input<'a>(&'a self, operand: Operand, saved: &'a Saved<B>) -> Input<'a, B> {
        match operand {
            Operand::Leaf(i) => Input::Tensor(&self.leaves[i]),
            Operand::Result(i) => saved.input(i),
        }
    }

    /// The inputs of entry `i`.
    fn inputs<'a>(&'a self, i: usize, saved: &'a Saved<B>) -> Vec<Input<'a, B>> {
        let mut inputs: Vec<_> = self.entries[i]
            .inputs
            .iter()
            .map(|operand| self.input(*operand, saved))
            .collect();
        if let Some(weight) = &saved.packed[i] {
            inputs[1] = Input::Buffer(weight);
        }
        inputs
    }

    /// The loss, which is the first output, if it is on the CPU.
    pub fn loss(&self, saved: &Saved<B>) -> Option<f32> {
        match self.outputs.first()? {
            (Operand::Result(i), _) => B::at_hand(saved.values[*i].as_ref()?),
            (Operand::Leaf(_), _) => None,
        }
    }

    /// The outputs, after which the saved values are gone.
    pub fn outputs(&self, pass: &Pass<B>, mut saved: Saved<B>) -> Result<Vec<Tensor>> {
        let mut outputs: Vec<Tensor> = Vec::new();
        for (n, (operand, dims)) in self.outputs.iter().enumerate() {
            let mut others = self.outputs[..n].iter();
            let before = others.position(|(other, _)| other == operand);
            outputs.push(match (before, *operand) {
                (Some(before), _) => outputs[before].reshape(&dims[..])?,
                (None, Operand::Leaf(i)) => self.leaves[i].detach().reshape(&dims[..])?,
                (None, Operand::Result(i)) => {
                    let value = saved.values[i].take().expect("outputs are kept");
                    B::tensor(&pass.stream, value, dims)?
                }
            });
        }
        Ok(outputs)
    }
}

impl<B: Backend> Saved<B> {
    fn input(&self, i: usize) -> Input<'_, B> {
        Input::Buffer(self.values[i].as_ref().expect("it is still read"))
    }
}

/// The destination of the gradient of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Unwanted,
    /// To the result of an entry.
    Result(usize),
    /// To the gradient view of the parameter of this number.
    Parameter(usize),
}

/// Which gradients backward computes. It is known when forward has ended.
pub(crate) struct Plan {
    /// For each entry that takes part, where the gradients go that its kernel computes.
    targets: Vec<Option<Vec<Target>>>,
}

impl Plan {
    /// For each of `parameters` the entry after which its gradient is complete; none if the loss does not depend on
    /// it.
    pub fn completed_by(&self, parameters: usize) -> Vec<Option<usize>> {
        let mut entries = vec![None; parameters];
        for (entry, targets) in self.targets.iter().enumerate().rev() {
            for target in targets.iter().flatten() {
                if let Target::Parameter(parameter) = *target {
                    entries[parameter] = Some(entry); // backward comes to the first entry last
                }
            }
        }
        entries
    }
}

impl<B: Backend> Tape<B> {
    /// The plan for the gradients of the parameters that have a number, after a forward pass.
    pub fn plan(&self, number: impl Fn(TensorId) -> Option<usize>) -> Plan {
        let parameter =
            |tensor: &Tensor| number(tensor.id()).map_or(Target::Unwanted, Target::Parameter);
        let mut targets: Vec<Option<Vec<Target>>> = Vec::new();
        for entry in &self.entries {
            let of_input = |operand: &Operand| match *operand {
                Operand::Leaf(i) => parameter(&self.leaves[i]),
                Operand::Result(i) if targets[i].is_some() => Target::Result(i),
                Operand::Result(_) => Target::Unwanted,
            };
            let of_inputs = entry.inputs.iter().map(of_input);
            let parameters = entry.kernel.parameters();
            let all: Vec<_> = of_inputs.chain(parameters.iter().map(parameter)).collect();
            let wanted =
                !entry.kernel.is_detached() && all.iter().any(|target| *target != Target::Unwanted);
            targets.push(wanted.then_some(all));
        }
        let mut reached = vec![false; self.entries.len()];
        if let Some((Operand::Result(loss), _)) = self.outputs.first() {
            reached[*loss] = true;
        }
        for (i, entry) in self.entries.iter().enumerate().rev() {
            if !reached[i] || entry.kernel.is_detached() {
                targets[i] = None;
                continue;
            }
            for operand in &entry.inputs {
                if let Operand::Result(value) = *operand {
                    reached[value] = true;
                }
            }
        }
        Plan { targets }
    }

    /// Writes the gradients of the first output, a scalar, to the gradient views. Calls `done` after each entry.
    pub fn backward(
        &self,
        pass: &Pass<B>,
        saved: &Saved<B>,
        plan: &Plan,
        writing: &mut Writing<B>,
        mut done: impl FnMut(&mut Writing<B>, usize) -> Result<()>,
    ) -> Result<()> {
        let mut sums: Vec<Option<B::Buffer>> = self.entries.iter().map(|_| None).collect();
        if let Some((Operand::Result(loss), _)) = self.outputs.first() {
            sums[*loss] = Some(B::scalar(&pass.stream, 1.)?);
        }
        for i in (0..self.entries.len()).rev() {
            if let (Some(targets), Some(dy)) = (&plan.targets[i], sums[i].take()) {
                let entry = EntryBackward {
                    tape: self,
                    pass,
                    saved,
                    number: i,
                    targets,
                };
                entry.run(dy, &mut sums, writing)?;
            }
            done(writing, i)?;
        }
        Ok(())
    }
}

/// The backward of one entry: its kernel computes gradients of the inputs and of the parameters that forward has read.
struct EntryBackward<'a, B: Backend> {
    tape: &'a Tape<B>,
    pass: &'a Pass<B>,
    saved: &'a Saved<B>,
    /// The entry among those of the tape.
    number: usize,
    /// The destination of the gradient of each input, then of each parameter that the kernel has read.
    targets: &'a [Target],
}

impl<B: Backend> EntryBackward<'_, B> {
    /// Computes the gradients from that of the result, `dy`. Those of other results go to `sums`, by the entries that
    /// have computed the results; those of parameters to their views.
    fn run(
        &self,
        dy: B::Buffer,
        sums: &mut [Option<B::Buffer>],
        writing: &mut Writing<B>,
    ) -> Result<()> {
        let mut dx = self.places(sums, writing);
        let mut inputs = self.tape.inputs(self.number, self.saved);
        inputs.push(self.saved.input(self.number));
        B::read(&self.pass.stream, &inputs, |views| {
            let (y, x) = views.split_last().expect("the result is the last");
            let saved = &self.saved.tensors[self.number];
            let at = At { x, y: *y, saved };
            let kernel = &self.tape.entries[self.number].kernel;
            kernel.backward(self.pass, at, dy, &mut dx)
        })?;
        self.add_parts(&mut dx)?;
        let mut touched = Vec::new();
        for (target, gradient) in self.targets.iter().zip(dx) {
            match (*target, gradient) {
                (Target::Result(entry), Grad::Sum(sum)) => sums[entry] = Some(sum),
                (Target::Parameter(parameter), Grad::View { touched: true, .. }) => {
                    touched.push(parameter);
                }
                _ => {}
            }
        }
        writing.touched(&touched);
        Ok(())
    }

    /// For each gradient the memory that the kernel writes it to, or adds it to. It takes what there is of a sum out of
    /// `sums`; so the second place for the same result is empty.
    fn places<'w>(
        &self,
        sums: &mut [Option<B::Buffer>],
        writing: &'w mut Writing<B>,
    ) -> Vec<Grad<'w, B>> {
        let mut parameters = Vec::new();
        for (n, target) in self.targets.iter().enumerate() {
            if let Target::Parameter(parameter) = *target
                && self.same_before(n).is_none()
            {
                parameters.push(parameter);
            }
        }
        let mut views = writing.views(&parameters).into_iter();
        let mut dx: Vec<Grad<'w, B>> = Vec::new();
        for (n, target) in self.targets.iter().enumerate() {
            dx.push(match (*target, self.same_before(n)) {
                (Target::Unwanted, _) => Grad::Unwanted,
                (Target::Parameter(_), None) => views.next().expect("one for each parameter"),
                (Target::Parameter(_), Some(first)) => dx[first].part_of_view(),
                (Target::Result(entry), _) => match sums[entry].take() {
                    Some(sum) => Grad::Sum(sum),
                    None => {
                        let of = &self.tape.entries[entry];
                        Grad::Empty(of.kernel.element(), of.len)
                    }
                },
            });
        }
        dx
    }

    /// The first gradient with the same target as gradient `n`, if it stands before. A value that the entry reads twice has
    /// its gradient in two parts.
    fn same_before(&self, n: usize) -> Option<usize> {
        let mut before = self.targets[..n].iter();
        before.position(|target| *target == self.targets[n])
    }

    /// Adds the second part of such a gradient to the first.
    fn add_parts(&self, dx: &mut [Grad<'_, B>]) -> Result<()> {
        for n in 0..dx.len() {
            if let Some(first) = self.same_before(n)
                && let Grad::Sum(part) = std::mem::replace(&mut dx[n], Grad::Unwanted)
            {
                B::accumulate(&self.pass.stream, &mut dx[first], part)?;
            }
        }
        Ok(())
    }
}
