//! "Network Initialization": initializes ResNet-18 on two devices and on no other. Four examples are split
//! over the two devices, and each device has its own copy of the weights.
//!
//! `cargo run --example 09_resnet18_on_two_devices`

use candle_core::{DType, Device, Tensor};
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};

fn main() -> anyhow::Result<()> {
    let devices = d2l::devices(2)?;
    let init = Initializer::Normal(0.01);
    let net = DataParallel::new(&devices, init, 0, |vb| resnet18(10, vb))?;
    let count = net.num_parameters();
    let names = d2l::device_names(&devices);
    println!("{count} parameters on {names}");

    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (4, 1, 28, 28))?;
    let y = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
    let mut trainer = Trainer::new(&net, data_parallel_functional::cross_entropy, Sgd::new(0.0));
    for (i, (y_hat, _)) in trainer.step(&x, &y)?.shards.iter().enumerate() {
        println!("device {i} computed {:?}", y_hat.dims()); // [2, 10]
    }

    for i in 0..devices.len() {
        let kernel = net.parameter("0.weight", i)?.get(0)?.flatten_to(1)?;
        println!("the first kernel on device {i}: {kernel}");
    }
    if let Err(error) = net.parameter("0.weight", 2) {
        println!("device 2: {error}");
    }
    Ok(())
}
