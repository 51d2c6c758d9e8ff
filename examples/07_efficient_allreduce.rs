//! Exercise 3 of 13.5.8: a more efficient `allreduce`, which sums different parameters on different devices. The vectors
//! are cut into pieces, and each device sums every k-th piece. With long vectors all devices work at the same time, and all
//! links carry the same number of bytes.
//!
//! `cargo run --example 07_efficient_allreduce`

use anyhow::Result;
use candle_core::{Tensor, Var};
use d2l::{Timer, view_to_device};
use rayon::prelude::*;
use scratch::allreduce;

/// The values of a piece: 256 kB, which stay in the cache of a core while it adds them.
const PIECE: usize = 1 << 16;

/// As the book's `allreduce`, but the devices sum the pieces of the vectors in turns.
fn efficient_allreduce(data: &[Var]) -> candle_core::Result<()> {
    if data.len() == 1 {
        return Ok(()); // there is nothing to add
    }
    let flat = |v: &Var| v.as_detached_tensor().flatten_all(); // the same memory
    let vectors = data.iter().map(flat).collect::<Result<Vec<_>, _>>()?;
    let n = vectors[0].elem_count();
    let starts: Vec<usize> = (0..n).step_by(PIECE).collect();
    starts.par_iter().enumerate().try_for_each(|(i, &start)| {
        let device = data[i % data.len()].device();
        let len = PIECE.min(n - start);
        let piece = |v: &Tensor| view_to_device(&v.narrow(0, start, len)?, device);
        let mut sum = piece(&vectors[0])?;
        for v in &vectors[1..] {
            sum = (sum + piece(v)?)?;
        }
        for v in &vectors {
            v.slice_set(&view_to_device(&sum, v.device())?, 0, start)?;
        }
        Ok(())
    })
}

/// Vectors of `n` random values, one on each of `k` devices.
fn vectors(k: usize, n: usize) -> candle_core::Result<Vec<Var>> {
    let (devices, rng) = (d2l::devices(k)?, &mut d2l::rng(0));
    let vector = |device| Var::from_tensor(&d2l::normal(rng, 1.0, n)?.to_device(device)?);
    devices.iter().map(vector).collect()
}

/// Milliseconds of an all-reduce: the mean of ten.
fn milliseconds(data: &[Var], all_reduce: fn(&[Var]) -> candle_core::Result<()>) -> Result<f64> {
    let mut timer = Timer::new();
    for _ in 0..10 {
        all_reduce(data)?;
    }
    data.iter().try_for_each(|v| v.device().synchronize())?;
    Ok(timer.stop() * 1e3 / 10.0)
}

fn main() -> Result<()> {
    let k = 4;
    let n = 11_175_818; // ResNet-18's gradient
    d2l::share_cores(None, k);
    let (books, ours) = (vectors(k, n)?, vectors(k, n)?);
    println!("{n} values on each of {k} devices");
    println!(
        "the book's allreduce: {:.1} ms",
        milliseconds(&books, allreduce)?
    );
    println!(
        "efficient_allreduce: {:.1} ms",
        milliseconds(&ours, efficient_allreduce)?
    );
    let same = books[0].to_vec1::<f32>()? == ours[k - 1].to_vec1::<f32>()?;
    println!("the same bits: {same}");
    let mb = 2 * (k - 1) * 4 * n / 1_000_000;
    println!("through the busiest link: {mb} MB, in parts {} MB", mb / k);
    Ok(())
}
