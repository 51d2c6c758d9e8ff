//! Gradient views: the slices of the buckets that a backward pass writes to.

use crate::kernel::{Backend, Grad};
use crate::memory::bucket::{BucketMemory, Part};
use candle_core::{Result, Tensor, bail};
use std::ops::Range;

/// A parameter with the view of its gradient.
pub(crate) struct Parameter {
    pub name: String,
    pub tensor: Tensor,
    /// The number of its bucket, and its elements there.
    pub view: (usize, Range<usize>),
    /// True if its view holds a gradient.
    pub written: bool,
    /// True if this pass has added to it.
    pub touched: bool,
    /// True if a pass has added to it since it was forgotten.
    pub used: bool,
}

/// Zeros where nothing was written.
pub(crate) fn fill(
    parameters: &mut [Parameter],
    parts: &[Part],
    values: &mut BucketMemory,
) -> Result<()> {
    for part in parts {
        let written = &mut parameters[part.parameter].written;
        if !std::mem::replace(written, true) {
            values.zero(part.range.clone())?;
        }
    }
    Ok(())
}

/// The text of the error for a parameter without a gradient.
pub(crate) fn unused(name: &str) -> String {
    format!(
        "the loss does not depend on the parameter {name}; if that is meant, freeze it with \
         Trainer::rate({name:?}, 0.0), or set allow_unused"
    )
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
    pub fn open(&mut self, stream: &B::Stream, values: &mut BucketMemory) -> Result<()> {
        self.open.push(Some(B::open(stream, values)?));
        Ok(())
    }

    /// The gradient views of different parameters, in their order.
    pub fn views(&mut self, parameters: &[usize]) -> Vec<Grad<'_, B>> {
        let of = |number: &usize| self.parameters[*number].view.clone();
        let parts: Vec<_> = parameters.iter().map(of).collect();
        let slices = B::parts(&mut self.open, &parts).into_iter();
        let view = |(number, to): (&usize, _)| Grad::View {
            to,
            len: self.parameters[*number].tensor.elem_count(),
            written: self.parameters[*number].written,
            touched: false,
        };
        parameters.iter().zip(slices).map(view).collect()
    }

    /// Records that a kernel has added to the gradients of these parameters.
    pub fn touched(&mut self, parameters: &[usize]) {
        for number in parameters {
            let parameter = &mut self.parameters[*number];
            parameter.written = true;
            parameter.touched = true;
            parameter.used = true;
        }
    }

    /// Gives back the memory of a bucket whose gradients are complete. A gradient to which nothing was added is zeros if
    /// that is allowed, and else an error.
    pub fn complete(
        &mut self,
        stream: &B::Stream,
        index: usize,
        parts: &[Part],
    ) -> Result<BucketMemory> {
        let mut parameters = parts.iter().map(|part| &self.parameters[part.parameter]);
        let missing = parameters.find(|parameter| !parameter.touched);
        if let Some(Parameter { name, .. }) = missing.filter(|_| !self.allow_unused) {
            bail!(
                "no gradient comes to the parameter {name}, although the network uses it: something between it and the \
                 loss computes none. The page \"What trains in candle\" says what to use instead; or freeze it with \
                 Trainer::rate({name:?}, 0.0)"
            )
        }
        let mut values = self.close(stream, index)?.expect("it is complete once");
        fill(self.parameters, parts, &mut values)?;
        Ok(values)
    }

    /// Gives back the memory of a bucket with any contents; none if it was given back before.
    pub fn close(&mut self, stream: &B::Stream, index: usize) -> Result<Option<BucketMemory>> {
        let open = self.open.get_mut(index).and_then(Option::take);
        open.map(|open| B::close(stream, open)).transpose()
    }
}
