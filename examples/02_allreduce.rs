//! "Data Synchronization", second cell: adds up vectors on different devices, and broadcasts the sum back to
//! all of them.
//!
//! `cargo run --example 02_allreduce`

use candle_core::{Tensor, Var};
use scratch::allreduce;

fn main() -> anyhow::Result<()> {
    let devices = d2l::devices(2)?;
    let ones = |i: usize| Tensor::full(i as f32 + 1.0, (1, 2), &devices[i]);
    let data = [Var::from_tensor(&ones(0)?)?, Var::from_tensor(&ones(1)?)?];
    println!("before allreduce:\n{}\n{}", data[0], data[1]); // [[1, 1]] and [[2, 2]]
    allreduce(&data)?;
    println!("after allreduce:\n{}\n{}", data[0], data[1]); // [[3, 3]] twice
    Ok(())
}
