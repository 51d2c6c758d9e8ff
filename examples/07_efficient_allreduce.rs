//! Exercise 3 of 13.5.8: a more efficient `allreduce`, which sums different parameters on different devices.
//! Each of k devices sums one k-th of the values. All devices work at the same time, and all links carry the
//! same number of bytes.
//!
//! `cargo run --example 07_efficient_allreduce`

use anyhow::Result;
use candle_core::{Device, Tensor, Var};
use d2l::Timer;
use rayon::prelude::*;
use scratch::allreduce;

/// As the book's `allreduce`, but device i sums part i of the values. Then every device copies the sums of
/// all parts.
fn efficient_allreduce(data: &[Var]) -> candle_core::Result<()> {
    let k = data.len();
    if k == 1 {
        return Ok(()); // there is nothing to add
    }
    let devices: Vec<Device> = data.iter().map(|v| v.device().clone()).collect();
    let cut = |v: &Var| v.as_detached_tensor().flatten_all()?.chunk(k, 0);
    let parts = data.iter().map(cut).collect::<Result<Vec<_>, _>>()?;
    let sums = (0..parts[0].len()).into_par_iter().map(|i| {
        let of = |j: usize| parts[j][i].to_device(&devices[i]);
        (1..k).try_fold(of(0)?, |sum, j| sum + of(j)?)
    });
    let sums = sums.collect::<Result<Vec<Tensor>, _>>()?;
    d2l::barrier(&devices)?; // no device overwrites what another one still reads
    parts
        .par_iter()
        .zip(&devices)
        .try_for_each(|(parts, device)| {
            let mut own = parts.iter().zip(&sums);
            own.try_for_each(|(part, sum)| part.slice_set(&sum.to_device(device)?, 0, 0))
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
    let (k, n) = (4, 4_000_000);
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
