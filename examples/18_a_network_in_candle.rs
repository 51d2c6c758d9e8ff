//! A network in candle becomes data-parallel, then right, then fast; and its parameters go back to candle.
//!
//! `cargo run --example 18_a_network_in_candle`

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use candle_nn::VarMap;
use data_parallel::prelude::*;

/// The network of candle's MNIST example: images (B, 1, 28, 28) to the scores of ten classes, (B, 10).
struct ConvNet {
    conv1: candle_nn::Conv2d,
    conv2: candle_nn::Conv2d,
    fc1: candle_nn::Linear,
    fc2: candle_nn::Linear,
}

impl ConvNet {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            conv1: candle_nn::conv2d(1, 32, 5, Default::default(), vb.pp("conv1"))?,
            conv2: candle_nn::conv2d(32, 64, 5, Default::default(), vb.pp("conv2"))?,
            fc1: candle_nn::linear(1024, 1024, vb.pp("fc1"))?,
            fc2: candle_nn::linear(1024, 10, vb.pp("fc2"))?,
        })
    }
}

impl Module for ConvNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x
            .apply(&self.conv1)?
            .max_pool2d(2)?
            .apply(&self.conv2)?
            .max_pool2d(2)?;
        x.flatten_from(1)?
            .apply(&self.fc1)?
            .relu()?
            .apply(&self.fc2)
    }
}

/// As it is. Its pooling has a quarter of the gradient, so the first step is an error.
fn in_candle(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new().add(candle(ConvNet::new(vb)?)))
}

/// Our convolutions and pooling, and the rest as it is.
fn mixed(vb: VarBuilder<'_>) -> Result<Sequential> {
    let fc1 = candle_nn::linear(1024, 1024, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(1024, 10, vb.pp("fc2"))?;
    let rest = candle(move |x: &Tensor| x.apply(&fc1)?.relu()?.apply(&fc2));
    Ok(images(&vb)?.add(rest))
}

/// Our layers alone.
fn ours(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(images(&vb)?
        .add(Linear::new(1024, 1024, vb.pp("fc1"))?)
        .add(Relu)
        .add(Linear::new(1024, 10, vb.pp("fc2"))?))
}

fn images(vb: &VarBuilder<'_>) -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Nhwc) // candle has (B, C, H, W), our layers (B, H, W, C)
        .add(Conv2d::new(1, 32, 5, vb.pp("conv1"))?)
        .add(MaxPool2d::new(2))
        .add(Conv2d::new(32, 64, 5, vb.pp("conv2"))?)
        .add(MaxPool2d::new(2))
        .add(Flatten))
}

type Build = fn(VarBuilder<'_>) -> Result<Sequential>;

fn trainer(network: Build, gpus: usize) -> Result<(DataParallel, Trainer)> {
    let net = DataParallel::new(&devices(gpus)?, Initializer::Layers, 0, network)?;
    let trainer = Trainer::new(&net, cross_entropy, AdamW::default());
    Ok((net, trainer))
}

/// The median of the milliseconds of a step without checks, whether the gradients are right or not.
fn milliseconds(network: Build, gpus: usize) -> Result<f64> {
    let (_, trainer) = trainer(network, gpus)?;
    let mut trainer = trainer.check_gradients(false).within_shards();
    let (x, y) = batch()?;
    let mut times = Vec::new();
    for _ in 0..9 {
        let since = Instant::now();
        trainer.step(&x, &y)?;
        times.push(1e3 * since.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The parameters of `net` in the `VarMap` of candle's own network.
fn back_to_candle(net: &DataParallel, folder: &Path) -> Result<ConvNet> {
    let mut varmap = VarMap::new();
    let convnet = ConvNet::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    net.save(folder.join("model.safetensors"))?;
    varmap.load(folder.join("model.safetensors"))?;
    Ok(convnet)
}

/// Random images and labels.
fn batch() -> Result<(Tensor, Tensor)> {
    let x = uniform(&mut rng(0), 0.0, 1.0, (64, 1, 28, 28))?;
    Ok((
        x,
        Tensor::from_iter((0..64u32).map(|i| i % 10), &Device::Cpu)?,
    ))
}

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (x, y) = batch()?;
    let refused = trainer(in_candle, 2)?.1.step(&x, &y).err();
    let refused = format!("{:#}", refused.context("candle's pooling is right now")?);
    let first = refused.split(". ").next().unwrap_or_default(); // what is wrong, without the advice
    println!("{}", first.replace(": ", ":\n  "));
    println!("milliseconds of a step on 64 images, on 1 and 2 devices:");
    let networks: [(&str, Build); 3] = [("in candle", in_candle), ("mixed", mixed), ("ours", ours)];
    for (name, network) in networks {
        let [one, two] = [1, 2].map(|gpus| milliseconds(network, gpus));
        println!("{name:9} {:6.1} {:6.1}", one?, two?);
    }
    let (net, mut trainer) = trainer(ours, 2)?;
    trainer.step(&x, &y)?;
    trainer.step(&x, &y)?;
    let convnet = back_to_candle(&net, folder.path())?;
    let ours = net.forward(&x)?.get(0)?;
    let candles = convnet.forward(&x)?.get(0)?;
    let apart = (ours - candles)?.abs()?.max(0)?.to_scalar::<f32>()?;
    println!("outputs here and in candle: at most {apart:e} apart");
    Ok(())
}
