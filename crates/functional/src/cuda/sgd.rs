//! The optimizer's step on a GPU: one kernel for all parameters, in place.

use super::floats::Floats;
use super::gradient::Cuda;
use super::stream::{Address, Stream, launch};
use super::tensors::{with_floats, with_memory_of};
use crate::kernel::Backend;
use candle_core::{Result, Tensor, Var};

/// Threads of a block, and elements that each of them takes where there are enough.
const THREADS: usize = 256;
const OF_A_THREAD: usize = 4;
/// Blocks of the largest parameter.
const BLOCKS: usize = 128;

/// The step of [`Sgd`](crate::Sgd) with learning rate, momentum and weight decay, on tensors that fit.
pub(crate) fn step(
    rates: [f64; 3],
    params: &[&Var],
    sums: &[Tensor],
    batch_size: usize,
    velocity: Option<&Tensor>,
) -> Result<()> {
    let stream = &Cuda::stream(params[0].device(), 0)?;
    let sums = sums
        .iter()
        .map(Tensor::contiguous)
        .collect::<Result<Vec<_>>>()?;
    let sums: Vec<&Tensor> = sums.iter().collect();
    with_floats(&sums, stream, |sums| {
        with_all(params, stream, Vec::new(), |params| match velocity {
            None => launch_step(rates, stream, params, sums, batch_size, None),
            Some(velocity) => with_memory_of(velocity, stream, |velocity| {
                launch_step(rates, stream, params, sums, batch_size, Some(velocity))
            }),
        })
    })
}

/// Calls `f` with the elements of all of `params`, to write.
fn with_all<R>(
    params: &[&Var],
    stream: &Stream,
    mut taken: Vec<Floats>,
    f: impl FnOnce(&[Floats]) -> Result<R>,
) -> Result<R> {
    match params.split_first() {
        None => f(&taken),
        Some((first, others)) => with_memory_of(first, stream, |floats| {
            taken.push(floats);
            with_all(others, stream, taken, f)
        }),
    }
}

fn launch_step(
    rates: [f64; 3],
    stream: &Stream,
    params: &[Floats],
    sums: &[Floats],
    batch_size: usize,
    velocity: Option<Floats>,
) -> Result<()> {
    let (mut table, mut first) = (Vec::new(), 0);
    for (param, sum) in params.iter().zip(sums) {
        let velocity = velocity.map_or(0, |all| all.at(first, param.len).address);
        table.extend([param.address, sum.address, velocity, param.len as u64]);
        first += param.len;
    }
    let largest = params.iter().map(|p| p.len).max().unwrap_or(0);
    if largest == 0 {
        return Ok(());
    }
    let blocks = largest.div_ceil(THREADS * OF_A_THREAD).min(BLOCKS);
    let grid = (blocks as u32, params.len() as u32, 1);
    let share = (1. / batch_size as f64) as f32;
    let [lr, momentum, decay] = rates.map(|v| v as f32);
    stream.with_table(table, |table| {
        launch!(stream, "sgd", grid, (THREADS as u32, 1, 1);
            Address(table), lr, momentum, decay, share)
    })
}
