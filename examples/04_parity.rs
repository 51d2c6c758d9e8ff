//! Compares one training step of LeNet on one device with the same step on two. Parameters and minibatch are
//! the same, so the updates differ only by rounding.
//!
//! `cargo run --example 04_parity`

use candle_core::{DType, Device, Result, Tensor};
use d2l::Param;
use scratch::{init_params, replicas, train_batch};

/// The parameters on the last of `k` devices after one step.
fn step(k: usize, x: &Tensor, y: &Tensor) -> Result<Vec<Param>> {
    let params = init_params(0)?;
    let devices = d2l::devices(k)?;
    let mut device_params = replicas(&params, &devices)?;
    train_batch(x, y, &device_params, &devices, 0.2)?;
    Ok(device_params.swap_remove(k - 1))
}

fn main() -> Result<()> {
    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (256, 1, 28, 28))?;
    // 25 or 26 examples of each class
    let y = (Tensor::arange(0f32, 256.0, &Device::Cpu)? / 25.6)?.to_dtype(DType::U32)?;
    let one = step(1, &x, &y)?;
    let two = step(2, &x, &y)?;
    let names = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"];
    for ((name, a), b) in names.iter().zip(&one).zip(&two) {
        let a = a.to_device(&Device::Cpu)?;
        let b = b.to_device(&Device::Cpu)?;
        let differences = (a - b)?.abs()?.flatten_all()?;
        let largest = differences.max(0)?.to_scalar::<f32>()?;
        println!("{name}: the updates differ by at most {largest:.2e}");
        assert!(largest <= 1e-6);
    }
    Ok(())
}
