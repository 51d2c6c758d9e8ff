//! Where the gradients of parameters belong while a backward pass runs on this thread. The operations of
//! this crate write there directly. A memory is handed out during the pass, as soon as its gradients are
//! complete. This module computes no gradient.
//!
//! When is a gradient complete? An expression reports when it has finished with a parameter, but not whether
//! another expression will add to the same gradient. What candle's own operations add is known only at the
//! end of the pass. So each pass counts the expressions that add to each gradient, and the next pass expects
//! the same count. A gradient for a memory that is already handed out is an error.

mod lend;
#[cfg(test)]
mod tests;

#[cfg(feature = "cuda")]
pub(crate) use lend::with_addresses;
pub(crate) use lend::with_slices;

use crate::bucket::{Bucket, Part, Values};
use crate::chain;
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId, bail};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{SendError, Sender};

/// Memories for gradients, and the parameters that each memory is for.
#[derive(Default)]
pub(crate) struct Places {
    memories: Vec<Memory>,
    by_id: HashMap<TensorId, Place>,
    /// The channel for memories that become complete during a pass.
    ready: Option<Sender<Bucket>>,
    /// How many memories this pass has given away; they go in their order.
    given: usize,
    /// A pass began that did not end well.
    failed: bool,
}

/// Where one parameter is: the number of its memory, and its own among those in there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    memory: usize,
    position: usize,
}

struct Memory {
    /// None while it is given away.
    values: Option<Values>,
    /// Of each parameter, in order.
    parts: Arc<[Part]>,
    parameters: Vec<Parameter>,
}

/// A parameter that has its gradient in a memory.
struct Parameter {
    name: String,
    tensor: Tensor,
    /// Whether what lies in its place counts.
    written: bool,
    came: Came,
    /// After how many expressions it is complete; none where that is not known before the end.
    expected: Option<usize>,
}

/// What came of a gradient in this pass.
#[derive(Default)]
struct Came {
    /// How many expressions are through with the parameter.
    expressions: usize,
    /// Whether operations of candle's own had a part.
    others: bool,
}

thread_local! {
    /// Those of the backward pass that runs on this thread.
    static PLACES: RefCell<Places> = RefCell::default();
}

/// Where the parameter's gradient belongs in the pass that runs on this thread, if it does.
pub(crate) fn of(id: TensorId) -> Result<Option<Place>> {
    PLACES.with_borrow(|places| {
        let place = places.by_id.get(&id).copied();
        place.map_or(Ok(()), |place| places.memories[place.memory].is_in(place))?;
        Ok(place)
    })
}

/// An expression has added all it has to the gradient in this place. A memory that is complete now goes.
pub(crate) fn finish(place: Place) -> Result<()> {
    PLACES.with_borrow_mut(|places| places.finish(place))
}

impl Memory {
    /// An error where it is given away.
    fn is_in(&self, place: Place) -> Result<()> {
        match self.values {
            Some(_) => Ok(()),
            None => bail!(
                "parameter {} got another gradient after its bucket was handed out: the network \
                 uses its parameters differently than in the last step; train it without \
                 overlap",
                self.parameters[place.position].name
            ),
        }
    }

    /// Zeros where nothing was written.
    fn fill(&mut self, position: usize) -> Result<()> {
        let parameter = &mut self.parameters[position];
        if let (Some(values), false) = (&mut self.values, parameter.written) {
            values.zero(self.parts[position].range.clone())?;
            parameter.written = true;
        }
        Ok(())
    }

    /// Whether nothing more is expected.
    fn is_complete(&self) -> bool {
        let is = |p: &Parameter| p.expected.is_some_and(|n| p.came.expressions >= n);
        self.parameters.iter().all(is)
    }

    /// Adds what came through other operations than those of this crate.
    fn put_rest(&mut self, memory: usize, store: &GradStore) -> Result<()> {
        for position in 0..self.parameters.len() {
            let Some(grad) = store.get(&self.parameters[position].tensor) else {
                continue;
            };
            self.is_in(Place { memory, position })?;
            let parameter = &mut self.parameters[position];
            if let Some(values) = &mut self.values {
                let range = self.parts[position].range.clone();
                values.put(range, grad, parameter.written)?;
            }
            parameter.written = true;
            parameter.came.others = true;
        }
        Ok(())
    }
}

impl Places {
    /// A memory for parameters that follow each other; the first has the number `first`.
    pub fn add(
        &mut self,
        values: Values,
        first: usize,
        parameters: impl IntoIterator<Item = (String, Tensor)>,
    ) {
        let memory = self.memories.len();
        let (mut parts, mut of_memory, mut start) = (Vec::new(), Vec::new(), 0);
        for (position, (name, tensor)) in parameters.into_iter().enumerate() {
            let end = start + tensor.elem_count();
            parts.push(Part {
                parameter: first + position,
                range: start..end,
            });
            start = end;
            self.by_id.insert(tensor.id(), Place { memory, position });
            of_memory.push(Parameter {
                name,
                tensor,
                written: false,
                came: Came::default(),
                expected: None,
            });
        }
        self.memories.push(Memory {
            values: Some(values),
            parts: parts.into(),
            parameters: of_memory,
        });
    }

    /// What each memory holds.
    pub fn layout(&self) -> impl ExactSizeIterator<Item = &Arc<[Part]>> {
        self.memories.iter().map(|m| &m.parts)
    }

    /// What lies in the place of each parameter, in their order.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        let mut all = Vec::new();
        for (i, memory) in self.memories.iter().enumerate() {
            let Some(values) = &memory.values else {
                bail!("bucket {i} is handed out: put it back first")
            };
            for part in memory.parts.iter() {
                all.push((part.parameter, values.get(part.range.clone())?));
            }
        }
        all.sort_by_key(|(parameter, _)| *parameter);
        Ok(all.into_iter().map(|(_, values)| values).collect())
    }

    /// Forgets what was written. After a pass that failed nothing is expected any more.
    pub fn zero(&mut self) {
        for p in self.memories.iter_mut().flat_map(|m| &mut m.parameters) {
            p.written = false;
            p.expected = p.expected.filter(|_| !self.failed);
        }
        self.failed = false;
    }

    /// Adds the gradients of the scalar `loss`; `ready` gets the memories as they are complete, each once.
    #[tracing::instrument(skip_all, name = "backward")]
    pub fn backward(&mut self, loss: &Tensor, ready: Option<&Sender<Bucket>>) -> Result<()> {
        self.check_in()?;
        self.failed = true; // until the end
        self.given = 0;
        for p in self.memories.iter_mut().flat_map(|m| &mut m.parameters) {
            p.came = Came::default();
        }
        let store = {
            let _lent = Lent::new(self, ready.cloned());
            match chain::backward(loss)? {
                true => None,
                false => Some(loss.backward()?),
            }
        };
        for (i, memory) in self.memories.iter_mut().enumerate() {
            if let Some(store) = &store {
                memory.put_rest(i, store)?;
            }
        }
        self.learn()?;
        if let Some(ready) = ready {
            self.give_rest(ready)?;
        }
        self.failed = false;
        Ok(())
    }

    /// Gives all memories away.
    pub fn give(&mut self, ready: &Sender<Bucket>) -> Result<()> {
        self.check_in()?;
        for memory in &mut self.memories {
            (0..memory.parts.len()).try_for_each(|i| memory.fill(i))?;
        }
        self.given = 0;
        self.give_rest(ready)
    }

    /// Takes a memory back.
    pub fn put_back(&mut self, bucket: Bucket) -> Result<()> {
        let Bucket { index, values, .. } = bucket;
        let count = self.memories.len();
        let Some(memory) = self.memories.get_mut(index) else {
            bail!("cannot put back bucket {index}: there are {count} buckets")
        };
        let expected = memory.parts.last().map_or(0, |part| part.range.end);
        if values.elem_count() != expected {
            let found = values.elem_count();
            bail!("cannot put back bucket {index} with {found} elements: it had {expected}")
        }
        let device = memory.parameters.first().map(|p| p.tensor.device());
        let is_at_home = device.is_none_or(|device| match &values {
            Values::Floats(_) => device.is_cpu(),
            Values::Tensor(tensor) => tensor.device().same_device(device),
        });
        if !is_at_home {
            bail!("cannot put back bucket {index}: it is not on the device of its parameters")
        }
        if memory.values.is_some() {
            bail!("cannot put back bucket {index}: it was not handed out")
        }
        memory.values = Some(values);
        Ok(())
    }

    /// An error unless all memories are here and what they hold counts.
    fn check_in(&self) -> Result<()> {
        if self.failed {
            bail!("the last backward pass failed halfway: call zero() first")
        }
        match self.memories.iter().position(|m| m.values.is_none()) {
            Some(out) => bail!("bucket {out} is handed out: put it back first"),
            None => Ok(()),
        }
    }

    fn finish(&mut self, place: Place) -> Result<()> {
        let memory = &mut self.memories[place.memory];
        memory.is_in(place)?;
        memory.fill(place.position)?;
        memory.parameters[place.position].came.expressions += 1;
        let Some(ready) = self.ready.clone() else {
            return Ok(());
        };
        while self
            .memories
            .get(self.given)
            .is_some_and(Memory::is_complete)
        {
            self.give_next(&ready)?;
        }
        Ok(())
    }

    /// At the end of a pass: the next one expects what came in this. An error where something never came.
    fn learn(&mut self) -> Result<()> {
        let mut missing: Option<(usize, &str)> = None;
        for memory in &mut self.memories {
            for (p, part) in memory.parameters.iter_mut().zip(&*memory.parts) {
                let Came {
                    expressions,
                    others,
                } = p.came;
                p.expected = (!others).then_some(expressions);
                let is_first = missing.is_none_or(|(number, _)| part.parameter < number);
                if expressions == 0 && !others && is_first {
                    missing = Some((part.parameter, &p.name));
                }
            }
        }
        match missing {
            Some((_, name)) => bail!("the loss does not depend on the parameter {name}"),
            None => Ok(()),
        }
    }

    fn give_rest(&mut self, ready: &Sender<Bucket>) -> Result<()> {
        while self.given < self.memories.len() {
            self.give_next(ready)?;
        }
        Ok(())
    }

    /// Gives the next memory away, in the order of their numbers, which is the same in every replica.
    fn give_next(&mut self, ready: &Sender<Bucket>) -> Result<()> {
        let index = self.given;
        self.given += 1;
        let memory = &mut self.memories[index];
        let Some(values) = memory.values.take() else {
            bail!("bucket {index} is handed out: put it back first")
        };
        let parts = memory.parts.clone();
        let bucket = Bucket {
            index,
            parts,
            values,
        };
        if let Err(SendError(bucket)) = ready.send(bucket) {
            memory.values = Some(bucket.values);
            bail!("cannot hand out bucket {index}: its receiver was dropped")
        }
        Ok(())
    }
}

/// The places while they are the thread's; they come back even if backward panics.
struct Lent<'a> {
    places: &'a mut Places,
    /// Those of a pass in which this one runs.
    outer: Places,
}

impl<'a> Lent<'a> {
    fn new(places: &'a mut Places, ready: Option<Sender<Bucket>>) -> Self {
        let mut inner = std::mem::take(places);
        inner.ready = ready;
        let outer = PLACES.replace(inner);
        Self { places, outer }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.places = PLACES.replace(std::mem::take(&mut self.outer));
        self.places.ready = None;
    }
}
