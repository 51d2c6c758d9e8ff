//! Lends the places of a few parameters to one step of an expression. What is not lent stays in the
//! thread's places, so that memories can leave between two steps. It copies no gradient.

use super::{Memory, PLACES, Parameter, Place};
use crate::bucket::Values;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::operation::Grad;
use crate::storage::with_slice_mut;
use candle_core::{Result, bail};

/// Calls `f` with the slices of different places on the CPU, in their order.
pub(crate) fn with_slices<R>(
    wanted: &[Place],
    f: impl FnOnce(Vec<Grad<'_>>) -> Result<R>,
) -> Result<R> {
    let lent = wanted.iter().map(|_| Grad::Unwanted).collect();
    PLACES.with_borrow_mut(|places| {
        check(&places.memories, wanted)?;
        lend(&mut places.memories, 0, wanted, lent, f)
    })
}

/// An error where one of them was handed out.
fn check(memories: &[Memory], wanted: &[Place]) -> Result<()> {
    let is_in = |place: &Place| memories[place.memory].is_in(*place);
    wanted.iter().try_for_each(is_in)
}

/// The first of the memories from number `from` on that holds one of `wanted`.
fn next(from: usize, wanted: &[Place]) -> Option<usize> {
    wanted.iter().map(|w| w.memory).filter(|m| *m >= from).min()
}

/// Replaces those of `lent` that lie in `memories`, the first of which has the number `from`; one memory
/// after the other, because candle shows what a tensor holds only to a function.
fn lend<'a, R>(
    memories: &'a mut [Memory],
    from: usize,
    wanted: &[Place],
    mut lent: Vec<Grad<'a>>,
    f: impl FnOnce(Vec<Grad<'_>>) -> Result<R>,
) -> Result<R> {
    let Some(number) = next(from, wanted) else {
        return f(lent);
    };
    let (memory, others) = memories[number - from..].split_at_mut(1);
    let Memory {
        values, parameters, ..
    } = &mut memory[0];
    match values {
        Some(Values::Floats(floats)) => {
            cut(floats, number, parameters, wanted, &mut lent);
            lend(others, number + 1, wanted, lent, f)
        }
        Some(Values::Tensor(tensor)) => with_slice_mut(tensor, |floats| {
            let mut lent: Vec<Grad> = lent; // for a shorter time
            cut(floats, number, parameters, wanted, &mut lent);
            lend(others, number + 1, wanted, lent, f)
        }),
        None => bail!("bucket {number} is handed out: put it back first"),
    }
}

/// Cuts those places that are wanted out of memory `number`.
fn cut<'a>(
    mut floats: &'a mut [f32],
    number: usize,
    parameters: &'a mut [Parameter],
    wanted: &[Place],
    lent: &mut [Grad<'a>],
) {
    for (position, p) in parameters.iter_mut().enumerate() {
        let (to, rest) = floats.split_at_mut(p.tensor.elem_count());
        floats = rest;
        let place = Place {
            memory: number,
            position,
        };
        if let Some(i) = wanted.iter().position(|w| *w == place) {
            let written = &mut p.written;
            lent[i] = Grad::Slice { to, written };
        }
    }
}

/// Calls `f` with different places on a GPU, in their order. A memory is locked while a step of an expression
/// hands its work to the stream; that it was written is recorded before it can leave.
#[cfg(feature = "cuda")]
pub(crate) fn with_addresses<R>(
    stream: &cuda::Stream,
    wanted: &[Place],
    f: impl FnOnce(Vec<cuda::Grad<'_>>) -> Result<R>,
) -> Result<R> {
    let lent = wanted.iter().map(|_| cuda::Grad::Unwanted).collect();
    PLACES.with_borrow_mut(|places| {
        check(&places.memories, wanted)?;
        lend_on(stream, &mut places.memories, 0, wanted, lent, f)
    })
}

/// As [`lend`].
#[cfg(feature = "cuda")]
fn lend_on<'a, R>(
    stream: &cuda::Stream,
    memories: &'a mut [Memory],
    from: usize,
    wanted: &[Place],
    mut lent: Vec<cuda::Grad<'a>>,
    f: impl FnOnce(Vec<cuda::Grad<'_>>) -> Result<R>,
) -> Result<R> {
    let Some(number) = next(from, wanted) else {
        return f(lent);
    };
    let (memory, others) = memories[number - from..].split_at_mut(1);
    let Memory {
        values,
        parts,
        parameters,
    } = &mut memory[0];
    let Some(Values::Tensor(tensor)) = values else {
        bail!("bucket {number} of the gradients is not on a GPU")
    };
    cuda::with_memory_of(tensor, stream, |floats| {
        for (position, (p, part)) in parameters.iter_mut().zip(&**parts).enumerate() {
            let place = Place {
                memory: number,
                position,
            };
            if let Some(i) = wanted.iter().position(|w| *w == place) {
                let (to, written) = (
                    floats.at(part.range.start, part.range.len()),
                    &mut p.written,
                );
                lent[i] = cuda::Grad::Place { to, written };
            }
        }
        lend_on(stream, others, number + 1, wanted, lent, f)
    })
}
