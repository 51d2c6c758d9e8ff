//! The optimizers' steps on a GPU: one kernel for all slices with the same numbers, in place. It knows addresses and
//! numbers, and no optimizer.

use super::floats::Floats;
use super::gradient::Cuda;
use super::launch::{Address, THREADS, launch};
use super::stream::Stream;
use super::tensors::{with_floats, with_memory_of};
use crate::kernel::Backend;
use candle_core::{Result, Tensor};
use std::ops::Range;

/// Elements that each thread takes where there are enough.
const OF_A_THREAD: usize = 4;
/// Blocks of the largest slice.
const BLOCKS: usize = 128;

/// Some elements of a parameter, with the sums of their gradients.
pub(crate) struct Slice<'a, const N: usize> {
    pub param: &'a Tensor,
    pub range: Range<usize>,
    pub sums: &'a Tensor,
    /// The optimizer's state of the whole bucket, in which that of the slice begins at `first`. Kernels get the first
    /// two tensors.
    pub state: &'a [Tensor],
    pub first: usize,
    /// The arguments of the kernel.
    pub numbers: [f32; N],
}

/// The step of SGD: the numbers are lr, momentum, Nesterov's momentum, decay, and what makes a sum a mean.
pub(crate) fn sgd(slices: &[Slice<'_, 5>]) -> Result<()> {
    in_groups(slices, |stream, table, grid, numbers| {
        let [lr, momentum, ahead, decay, share] = numbers;
        launch!(stream, "sgd", grid, (THREADS, 1, 1);
            Address(table), lr, momentum, ahead, decay, share)
    })
}

/// The step of AdamW, with the numbers that the kernel takes.
pub(crate) fn adamw(slices: &[Slice<'_, 8>]) -> Result<()> {
    in_groups(slices, |stream, table, grid, numbers| {
        let [share, keep, rate, root, new1, beta2, new2, eps] = numbers;
        launch!(stream, "adamw", grid, (THREADS, 1, 1);
            Address(table), share, keep, rate, root, new1, beta2, new2, eps)
    })
}

/// Calls `launch` for the slices that have the same numbers: with a table of where they are, and the blocks that they
/// take.
fn in_groups<const N: usize>(
    slices: &[Slice<'_, N>],
    launch: impl Fn(&Stream, u64, (u32, u32, u32), [f32; N]) -> Result<()>,
) -> Result<()> {
    let Some(first) = slices.first() else {
        return Ok(());
    };
    let stream = &Cuda::stream(first.param.device(), 0)?;
    let sums: Vec<&Tensor> = slices.iter().map(|slice| slice.sums).collect();
    let params = slices.iter().map(|slice| slice.param);
    let written: Vec<&Tensor> = params.chain(first.state).collect();
    with_floats(&sums, stream, |sums| {
        with_all(&written, stream, Vec::new(), |written| {
            let (params, state) = written.split_at(slices.len());
            for group in groups(slices) {
                let (mut table, mut largest) = (Vec::new(), 0);
                for i in &group {
                    let (first, range) = (slices[*i].first, &slices[*i].range);
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
                    let numbers = slices[group[0]].numbers;
                    stream.with_table(table, |table| launch(stream, table, grid, numbers))?;
                }
            }
            Ok(())
        })
    })
}

/// The slices with the same numbers.
fn groups<const N: usize>(slices: &[Slice<'_, N>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, slice) in slices.iter().enumerate() {
        let same = |group: &&mut Vec<usize>| slices[group[0]].numbers == slice.numbers;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(i),
            None => groups.push(vec![i]),
        }
    }
    groups
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
