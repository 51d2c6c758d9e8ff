//! Where the gradients of parameters belong while a backward pass runs on this thread: the operations
//! of this crate write there directly. It computes no gradient.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operation::{Grad, put};
use crate::storage::with_slice_mut;
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId};
use std::cell::RefCell;
use std::collections::HashMap;

/// Memory for gradients, one after the other.
pub(crate) enum Memory {
    /// On the CPU.
    Floats(Vec<f32>),
    /// On any device.
    Tensor(Tensor),
}

/// A parameter whose gradient belongs into a memory.
struct Parameter {
    tensor: Tensor,
    written: bool,
}

impl Parameter {
    fn len(&self) -> usize {
        self.tensor.elem_count()
    }
}

/// Memories, and the parameters whose gradients belong into each, in order.
#[derive(Default)]
pub(crate) struct Places(Vec<(Memory, Vec<Parameter>)>);

thread_local! {
    /// Those of the backward pass that runs on this thread.
    static PLACES: RefCell<Places> = const { RefCell::new(Places(Vec::new())) };
}

impl Places {
    pub fn add(&mut self, memory: Memory, parameters: impl IntoIterator<Item = Tensor>) {
        let parameter = |tensor| Parameter {
            tensor,
            written: false,
        };
        let parameters = parameters.into_iter().map(parameter);
        self.0.push((memory, parameters.collect()));
    }

    /// The first memory.
    pub fn first(&self) -> Option<&Memory> {
        self.0.first().map(|(memory, _)| memory)
    }

    /// As [`first`](Self::first), to write.
    pub fn first_mut(&mut self) -> Option<&mut Memory> {
        self.0.first_mut().map(|(memory, _)| memory)
    }

    /// Replaces all contents by the gradients of the scalar `loss`. Returns the number of the first
    /// parameter on which it does not depend, if there is one.
    pub fn backward(&mut self, loss: &Tensor) -> Result<Option<usize>> {
        for (_, parameters) in &mut self.0 {
            parameters.iter_mut().for_each(|p| p.written = false);
        }
        let store = {
            let _lent = Lent::new(self);
            loss.backward()?
        };
        let missing = self.put_rest(&store)?;
        Ok(missing)
    }

    /// Adds what came through other operations than those of this crate.
    fn put_rest(&mut self, store: &GradStore) -> Result<Option<usize>> {
        let (mut number, mut missing) = (0, None);
        for (memory, parameters) in &mut self.0 {
            let mut first = 0;
            for p in parameters {
                match store.get(&p.tensor) {
                    Some(grad) => memory.put(first, &grad.flatten_all()?, p.written)?,
                    None if !p.written => missing = missing.or(Some(number)),
                    None => {}
                }
                first += p.len();
                number += 1;
            }
        }
        Ok(missing)
    }
}

impl Memory {
    /// Writes or adds the gradient that begins at `first`.
    fn put(&mut self, first: usize, grad: &Tensor, add: bool) -> Result<()> {
        let len = grad.elem_count();
        match self {
            Memory::Floats(floats) => {
                let grad = grad.to_vec1::<f32>()?;
                put(&mut floats[first..first + len], grad.into_iter(), add);
                Ok(())
            }
            Memory::Tensor(tensor) => {
                let flat = tensor.flatten_all()?.detach();
                let grad = match add {
                    true => (flat.narrow(0, first, len)? + grad)?,
                    false => grad.force_contiguous()?,
                };
                flat.slice_set(&grad, 0, first)
            }
        }
    }
}

/// The places while they are the thread's; they come back even if backward panics.
struct Lent<'a>(&'a mut Places);

impl<'a> Lent<'a> {
    fn new(places: &'a mut Places) -> Self {
        PLACES.set(std::mem::take(places));
        Self(places)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *self.0 = PLACES.take();
    }
}

/// Places on the CPU by the ids of the parameters, and whether each is written.
type Taken<'a> = HashMap<TensorId, (&'a mut bool, &'a mut [f32])>;

/// The places on the CPU, to be given away.
pub(crate) struct Slices<'a>(Taken<'a>);

impl<'a> Slices<'a> {
    /// The place of one parameter's gradient, if it has one; given away once.
    pub fn take(&mut self, id: TensorId) -> Option<Grad<'a>> {
        let (is_written, to) = self.0.remove(&id)?;
        let written = std::mem::replace(is_written, true);
        Some(Grad::Slice { to, written })
    }
}

/// Calls `f` with the places that the backward pass on this thread has; without one, with none.
pub(crate) fn with_slices<R>(f: impl FnOnce(&mut Slices<'_>) -> Result<R>) -> Result<R> {
    PLACES.with_borrow_mut(|places| lend(&mut places.0, HashMap::new(), f))
}

/// Adds the places in `memories` to those in `taken`, one memory after the other.
fn lend<'a, R>(
    memories: &'a mut [(Memory, Vec<Parameter>)],
    mut taken: Taken<'a>,
    f: impl FnOnce(&mut Slices<'_>) -> Result<R>,
) -> Result<R> {
    let Some(((memory, parameters), others)) = memories.split_first_mut() else {
        return f(&mut Slices(taken));
    };
    match memory {
        Memory::Floats(floats) => {
            cut(floats, parameters, &mut taken);
            lend(others, taken, f)
        }
        Memory::Tensor(tensor) if !tensor.device().is_cpu() => lend(others, taken, f),
        Memory::Tensor(tensor) => with_slice_mut(tensor, |floats| {
            let mut taken: Taken = taken.into_iter().collect(); // for a shorter time
            cut(floats, parameters, &mut taken);
            lend(others, taken, f)
        }),
    }
}

/// Cuts a memory into the places of its parameters.
fn cut<'a>(mut floats: &'a mut [f32], parameters: &'a mut [Parameter], taken: &mut Taken<'a>) {
    for p in parameters {
        let (to, rest) = floats.split_at_mut(p.len());
        taken.insert(p.tensor.id(), (&mut p.written, to));
        floats = rest;
    }
}

/// Calls `f` with the places on a GPU, by the ids of the parameters: where each begins, and whether a part
/// of the gradient is there already, which it is from then on.
#[cfg(feature = "cuda")]
pub(crate) fn with_addresses<R>(
    stream: &cuda::Stream,
    f: impl FnOnce(&mut dyn FnMut(TensorId) -> Option<(cuda::Floats, bool)>) -> Result<R>,
) -> Result<R> {
    PLACES.with_borrow_mut(|places| lend_on(stream, &mut places.0, HashMap::new(), f))
}

#[cfg(feature = "cuda")]
fn lend_on<'a, R>(
    stream: &cuda::Stream,
    memories: &'a mut [(Memory, Vec<Parameter>)],
    mut taken: HashMap<TensorId, (&'a mut bool, cuda::Floats)>,
    f: impl FnOnce(&mut dyn FnMut(TensorId) -> Option<(cuda::Floats, bool)>) -> Result<R>,
) -> Result<R> {
    let Some(((memory, parameters), others)) = memories.split_first_mut() else {
        return f(&mut |id| {
            let (written, to) = taken.remove(&id)?;
            Some((to, std::mem::replace(written, true)))
        });
    };
    let tensor = match memory {
        Memory::Tensor(tensor) if !tensor.device().is_cpu() => tensor,
        _ => return lend_on(stream, others, taken, f),
    };
    cuda::with_memory_of(tensor, stream, |floats| {
        let mut first = 0;
        for p in parameters {
            let to = floats.at(first, p.len());
            first += to.len;
            taken.insert(p.tensor.id(), (&mut p.written, to));
        }
        lend_on(stream, others, taken, f)
    })
}
