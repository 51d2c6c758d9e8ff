//! The places of gradients while a backward pass writes to them.

use crate::bucket::{Part, Values};
use crate::kernel::{Backend, Grad};
use candle_core::{Result, Tensor, bail};
use std::ops::Range;

/// A parameter that has a place for its gradient.
pub(crate) struct Parameter {
    pub name: String,
    pub tensor: Tensor,
    /// The number of its bucket, and its elements there.
    pub place: (usize, Range<usize>),
    /// Whether what lies in its place counts.
    pub written: bool,
    /// Whether this pass has added to it.
    pub touched: bool,
}

/// Zeros where nothing was written.
pub(crate) fn fill(
    parameters: &mut [Parameter],
    parts: &[Part],
    values: &mut Values,
) -> Result<()> {
    for part in parts {
        let written = &mut parameters[part.parameter].written;
        if !std::mem::replace(written, true) {
            values.zero(part.range.clone())?;
        }
    }
    Ok(())
}

/// The buckets while a backward pass writes to them.
pub(crate) struct Writing<'a, B: Backend> {
    parameters: &'a mut [Parameter],
    /// Those that were not closed yet.
    open: Vec<Option<B::Open>>,
    allow_unused: bool,
}

impl<'a, B: Backend> Writing<'a, B> {
    pub fn new(parameters: &'a mut [Parameter], allow_unused: bool) -> Self {
        parameters.iter_mut().for_each(|p| p.touched = false);
        Self {
            parameters,
            open: Vec::new(),
            allow_unused,
        }
    }

    /// Takes the memory of the next bucket.
    pub fn open(&mut self, stream: &B::Stream, values: &mut Values) -> Result<()> {
        self.open.push(Some(B::open(stream, values)?));
        Ok(())
    }

    /// The places of different parameters, in their order.
    pub fn places(&mut self, parameters: &[usize]) -> Vec<Grad<'_, B>> {
        let of = |number: &usize| self.parameters[*number].place.clone();
        let parts: Vec<_> = parameters.iter().map(of).collect();
        let views = B::parts(&mut self.open, &parts).into_iter();
        let place = |(number, to): (&usize, _)| Grad::Place {
            to,
            len: self.parameters[*number].tensor.elem_count(),
            written: self.parameters[*number].written,
            touched: false,
        };
        parameters.iter().zip(views).map(place).collect()
    }

    /// Records that a kernel has added to the gradients of these parameters.
    pub fn touched(&mut self, parameters: &[usize]) {
        for number in parameters {
            let parameter = &mut self.parameters[*number];
            (parameter.written, parameter.touched) = (true, true);
        }
    }

    /// Gives back the memory of a bucket whose gradients are complete. What nothing was added to is zeros, where that
    /// is allowed, and else an error.
    pub fn complete(&mut self, stream: &B::Stream, index: usize, parts: &[Part]) -> Result<Values> {
        let missing = parts
            .iter()
            .find(|part| !self.parameters[part.parameter].touched);
        if let Some(part) = missing.filter(|_| !self.allow_unused) {
            bail!(
                "the loss does not depend on the parameter {}: candle computes no gradient of it",
                self.parameters[part.parameter].name
            )
        }
        let mut values = self.close(stream, index)?.expect("it is complete once");
        fill(self.parameters, parts, &mut values)?;
        Ok(values)
    }

    /// Gives back the memory of a bucket, whatever is in it; nothing where it is gone.
    pub fn close(&mut self, stream: &B::Stream, index: usize) -> Result<Option<Values>> {
        let open = self.open.get_mut(index).and_then(Option::take);
        open.map(|open| B::close(stream, open)).transpose()
    }
}
