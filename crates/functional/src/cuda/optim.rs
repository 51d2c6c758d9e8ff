//! The optimizers' steps on a GPU: one kernel for all slices with the same numbers, in place.

use super::floats::Floats;
use super::gradient::Cuda;
use super::stream::{Address, Stream, THREADS, launch};
use super::tensors::{with_floats, with_memory_of};
use crate::kernel::Backend;
use crate::optim::{AdamW, Memory, Sgd, Slice};
use candle_core::{Result, Tensor};

/// Elements that each thread takes where there are enough.
const OF_A_THREAD: usize = 4;
/// Blocks of the largest slice.
const BLOCKS: usize = 128;

/// The step of [`Sgd`].
pub(crate) fn sgd(sgd: &Sgd, slices: &[Slice<'_>]) -> Result<()> {
    let [momentum, decay] = [sgd.momentum, sgd.weight_decay].map(|value| value as f32);
    let ahead = if sgd.nesterov { momentum } else { 0. };
    in_groups(slices, |stream, slice, table, grid| {
        let [lr, share] = [slice.lr, 1. / slice.examples].map(|value| value as f32);
        launch!(stream, "sgd", grid, (THREADS, 1, 1);
            Address(table), lr, momentum, ahead, decay, share)
    })
}

/// The step of [`AdamW`].
pub(crate) fn adamw(adamw: &AdamW, slices: &[Slice<'_>]) -> Result<()> {
    let [new1, beta2, new2, eps] =
        [1. - adamw.beta1, adamw.beta2, 1. - adamw.beta2, adamw.eps].map(|value| value as f32);
    in_groups(slices, |stream, slice, table, grid| {
        let [share, keep, rate, root] = adamw.numbers(slice);
        launch!(stream, "adamw", grid, (THREADS, 1, 1);
            Address(table), share, keep, rate, root, new1, beta2, new2, eps)
    })
}

/// Calls `launch` with the first of the slices that have the same numbers, with where all of them are, and with how
/// many blocks they take.
fn in_groups(
    slices: &[Slice<'_>],
    launch: impl Fn(&Stream, &Slice<'_>, u64, (u32, u32, u32)) -> Result<()>,
) -> Result<()> {
    let stream = &Cuda::stream(slices[0].param.device(), 0)?;
    let (sums, state): (Vec<&Tensor>, Vec<&[Tensor]>) = slices.iter().map(on_gpu).unzip();
    let params = slices.iter().map(|slice| &**slice.param);
    let written: Vec<&Tensor> = params.chain(state[0]).collect();
    with_floats(&sums, stream, |sums| {
        with_all(&written, stream, Vec::new(), |written| {
            let (params, state) = written.split_at(slices.len());
            for group in groups(slices) {
                let (mut table, mut largest) = (Vec::new(), 0);
                for i in &group {
                    let (first, range) = (first_of(&slices[*i]), &slices[*i].range);
                    let param = params[*i].at(range.start, range.len());
                    let state = |k: usize| {
                        let state = state.get(k).map(|all| all.at(first, range.len()));
                        state.map_or(0, |floats| floats.address)
                    };
                    table.extend([param.address, sums[*i].address, state(0), state(1)]);
                    table.push(range.len() as u64);
                    largest = largest.max(range.len());
                }
                let blocks = largest.div_ceil(THREADS as usize * OF_A_THREAD).min(BLOCKS);
                let grid = (blocks as u32, group.len() as u32, 1);
                if largest > 0 {
                    let launch = |table| launch(stream, &slices[group[0]], table, grid);
                    stream.with_table(table, launch)?;
                }
            }
            Ok(())
        })
    })
}

/// The slices with the same numbers.
fn groups(slices: &[Slice<'_>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, slice) in slices.iter().enumerate() {
        let same = |group: &&mut Vec<usize>| {
            let other = &slices[group[0]];
            (other.lr, other.step) == (slice.lr, slice.step)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
}

/// The sums of a slice, and the state of its bucket.
fn on_gpu<'a>(slice: &'a Slice<'_>) -> (&'a Tensor, &'a [Tensor]) {
    match &slice.memory {
        Memory::Gpu { sum, state, .. } => (sum, state),
        Memory::Cpu { .. } => unreachable!("one of the slices is on a GPU, so all are"),
    }
}

/// Where its state begins in that of the bucket.
fn first_of(slice: &Slice<'_>) -> usize {
    match slice.memory {
        Memory::Gpu { first, .. } => first,
        Memory::Cpu { .. } => 0,
    }
}

/// Calls `f` with the elements of all of `tensors`, to write.
fn with_all<R>(
    tensors: &[&Tensor],
    stream: &Stream,
    mut taken: Vec<Floats>,
    f: impl FnOnce(&[Floats]) -> Result<R>,
) -> Result<R> {
    match tensors.split_first() {
        None => f(&taken),
        Some((first, others)) => with_memory_of(first, stream, |floats| {
            taken.push(floats);
            with_all(others, stream, taken, f)
        }),
    }
}
