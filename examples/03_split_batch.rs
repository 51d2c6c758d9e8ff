//! "Distributing Data": splits a 4×5 matrix over two devices, two rows each, and then five examples, which
//! two devices cannot share evenly.
//!
//! `cargo run --example 03_split_batch`

use candle_core::{Device, Tensor};
use scratch::split_batch;

fn main() -> anyhow::Result<()> {
    let devices = d2l::devices(2)?;
    let data = Tensor::arange(0i64, 20, &Device::Cpu)?.reshape((4, 5))?;
    let y = Tensor::arange(0u32, 4, &Device::Cpu)?;
    let (split, _) = split_batch(&data, &y, &devices)?;
    println!("input: {data}");
    println!("load into {}", d2l::device_names(&devices));
    println!("output: {}\n{}", split[0], split[1]);

    // Two devices share five examples: the first one gets three
    let y = Tensor::arange(0u32, 5, &Device::Cpu)?;
    let (_, y_shards) = split_batch(&y, &y, &devices)?;
    let shards = y_shards.iter().map(|y| y.to_vec1::<u32>());
    let shards: Vec<_> = shards.collect::<Result<_, _>>()?;
    println!("five examples: {shards:?}"); // [[0, 1, 2], [3, 4]]
    Ok(())
}
