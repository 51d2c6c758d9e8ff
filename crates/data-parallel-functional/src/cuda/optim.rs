//! The optimizers' steps on a GPU: one kernel for all slices with the same numbers, in place. It knows addresses and
//! numbers, and no optimizer.

use super::floats::Element;
use super::gradient::Cuda;
use super::launch::{Address, THREADS, Table, launch};
use super::stream::Stream;
use super::tensors::{memory_of, with_floats};
use crate::kernel::Backend;
use candle_core::{Result, Tensor};
use std::ops::Range;

/// The most elements of an entry of the table. Slices of many more than others are cut, or few blocks would have most of
/// the work.
const OF_AN_ENTRY: usize = 1 << 16;

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
    let memory = |tensor| memory_of(tensor, stream);
    let of_params = slices.iter().map(|slice| memory(slice.param));
    let params = of_params.collect::<Result<Vec<_>>>()?;
    let state = first.state.iter().map(memory).collect::<Result<Vec<_>>>()?;
    with_floats(&sums, stream, |sums| {
        for group in groups(slices) {
            let mut table = Table::new();
            for i in &group {
                let first = slices[*i].first;
                let range = &slices[*i].range;
                for start in (0..range.len()).step_by(OF_AN_ENTRY) {
                    let len = OF_AN_ENTRY.min(range.len() - start);
                    let param = params[*i].at(range.start + start, len);
                    let state = |k: usize| {
                        let state = state.get(k).map(|all| all.at(first + start, len));
                        state.map_or(0, |floats| floats.address)
                    };
                    let param = param.address;
                    let sums = sums[*i].at(start, len).address;
                    let threads = len.div_ceil(Element::F32.of_16_bytes());
                    table.push([param, sums, state(0), state(1), len as u64], threads);
                }
            }
            if let Some(grid) = table.grid() {
                let numbers = slices[group[0]].numbers;
                stream.with_table(table.numbers, |table| launch(stream, table, grid, numbers))?;
            }
        }
        Ok(())
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
