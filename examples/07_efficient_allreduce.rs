//! Exercise: a more efficient `allreduce`, by aggregating different parameters on different devices. Each
//! device sums one part in k of the values, so that all of them work at once and no link carries more
//! than the others.
//!
//! `cargo run --example 07_efficient_allreduce`

use anyhow::Result;
use candle_core::{Device, Tensor, Var};
use collective::{Algorithm, Member, Options};
use d2l::Timer;
use rayon::prelude::*;
use scratch::allreduce;

/// As the book's `allreduce`, but device i sums part i of the values for all, while the others sum theirs;
/// then each copies the sums of all parts.
fn efficient_allreduce(data: &[Var]) -> candle_core::Result<()> {
    let (k, n) = (data.len(), data[0].elem_count());
    if k == 1 {
        return Ok(());
    }
    let devices: Vec<Device> = data.iter().map(|v| v.device().clone()).collect();
    let flat = data.iter().map(|v| v.as_detached_tensor().flatten_all());
    let flat = flat.collect::<Result<Vec<Tensor>, _>>()?;
    let size = n.div_ceil(k);
    let parts: Vec<_> = (0..n).step_by(size).map(|i| (i, size.min(n - i))).collect();
    let devices_of_parts = parts.par_iter().zip(&devices);
    let sums = devices_of_parts.map(|(&(begin, len), device)| {
        let of = |i: usize| flat[i].narrow(0, begin, len)?.to_device(device);
        (1..k).try_fold(of(0)?, |sum, i| sum + of(i)?)
    });
    let sums = sums.collect::<Result<Vec<Tensor>, _>>()?;
    d2l::barrier(&devices)?; // nobody writes over what another still reads
    let copies = flat.par_iter().zip(&devices);
    copies.try_for_each(|(flat, device)| {
        let mut parts = parts.iter().zip(&sums);
        parts.try_for_each(|((begin, _), sum)| flat.slice_set(&sum.to_device(device)?, 0, *begin))
    })
}

/// Vectors of `n` random values, one on each of `k` devices.
fn vectors(k: usize, n: usize) -> candle_core::Result<Vec<Var>> {
    let (devices, rng) = (d2l::devices(k)?, &mut d2l::rng(0));
    let vector = |device| Var::from_tensor(&d2l::normal(rng, 1.0, n)?.to_device(device)?);
    devices.iter().map(vector).collect()
}

/// `collective` does the same in one memory: k threads, of which each sums its part of all vectors where
/// they lie. The seconds of such an all-reduce.
fn seconds_of_owners(k: usize, n: usize, times: usize) -> Result<f64> {
    let algorithm = Algorithm::Owner;
    let options = Options {
        algorithm,
        ..Options::default()
    };
    let sum = |mut member: Member| {
        let mut data = vec![1.0; n];
        let mut timer = Timer::new();
        for _ in 0..times {
            data = member.all_reduce(data)?;
        }
        Ok(timer.stop() / times as f64)
    };
    std::thread::scope(|scope| {
        let members = collective::group(k, options).into_iter();
        let threads: Vec<_> = members.map(|m| scope.spawn(move || sum(m))).collect();
        let mut seconds = threads.into_iter().map(|t| t.join().expect("no panic"));
        seconds.next_back().expect("a member")
    })
}

/// The seconds of an all-reduce of tensors.
fn seconds_of(all_reduce: AllReduce, data: &[Var], times: usize) -> Result<f64> {
    let mut timer = Timer::new();
    (0..times).try_for_each(|_| all_reduce(data))?;
    Ok(timer.stop() / times as f64)
}

type AllReduce = fn(&[Var]) -> candle_core::Result<()>;

fn main() -> Result<()> {
    let (k, n, times) = (4, 4_000_000, 10);
    d2l::share_cores(None, k);
    let (books, ours) = (vectors(k, n)?, vectors(k, n)?);
    println!("{n} values on each of {k} devices");
    let ms = seconds_of(allreduce, &books, times)? * 1e3;
    println!("the book's allreduce: {ms:.1} ms");
    let ms = seconds_of(efficient_allreduce, &ours, times)? * 1e3;
    println!("efficient_allreduce: {ms:.1} ms");
    let ms = seconds_of_owners(k, n, times)? * 1e3;
    println!("the owners of collective: {ms:.1} ms");
    let difference = (books[0].as_tensor() - ours[k - 1].as_tensor())?
        .abs()?
        .max(0)?;
    println!("largest difference: {}", difference.to_scalar::<f32>()?);
    let mb = 2 * (k - 1) * 4 * n / 1_000_000;
    println!("through the busiest link: {mb} MB, in parts {} MB", mb / k);
    Ok(())
}
