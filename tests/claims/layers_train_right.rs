//! Layers of concise train right; those of candle-nn that do not are refused by name in the first step.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};
use concise::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, Dropout, GlobalAvgPool2d, LayerNorm, Linear, MaxPool2d,
    Sequential,
};
use concise::{DataParallel, Initializer, Sgd, Trainer};
use functional::{Network, Value, candle, cross_entropy};

use crate::kit::{cpus, formula_batch, formula_tensor, has, largest};
use crate::kit::{largest_difference, says, steps};
use crate::only_rounding_differs_from_pytorch::{close, tensor_is_close, theirs};

trials![
    the_trainer_refuses_a_wrong_gradient_unless_told,
    dropout_repeats_itself,
    dropout_is_nothing_in_inference,
    layers_begin_as_pytorchs_do,
    steps_of_every_layer_are_pytorchs,
];

fn vb() -> VarBuilder<'static> {
    let varmap = Box::leak(Box::new(VarMap::new()));
    VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu)
}

/// A whole network of candle's, with a pool.
fn pooled(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = candle_nn::conv2d(1, 4, 5, Default::default(), vb.pp("conv"))?;
    let fc = candle_nn::linear(4 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(candle(move |x: &Tensor| {
        let h = conv.forward(x)?.relu()?.max_pool2d(2)?;
        fc.forward(&h.flatten_from(1)?)
    }))
}

fn the_trainer_refuses_a_wrong_gradient_unless_told() -> Result<()> {
    let (x, y) = formula_batch(0, 5)?;
    let net = || DataParallel::new(&cpus(2), Initializer::Layers, 0, pooled);
    let error = Trainer::new(&net()?, cross_entropy, Sgd::new(0.1)).step(&x, &y);
    let error = format!("{:#}", error.expect_err("a quarter of the gradient"));
    has(&error, "candle (tests/claims/layers_train_right.rs:")?;
    has(&error, "0.25 times")?;
    has(&error, "The page \"What trains in candle\" says")?;
    has(&error, "check_gradients(false)")?;
    let trainer = Trainer::new(&net()?, cross_entropy, Sgd::new(0.1));
    trainer.check_gradients(false).step(&x, &y)?;
    Ok(())
}

fn with_dropout(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    Ok(Sequential::new()
        .add(|x: &Value, _| x.nhwc()?.flatten())
        .add(Linear::new(784, 16, vb.pp("0"))?)
        .add(Dropout::new(0.5, vb.pp("1"))?)
        .add(Linear::new(16, 10, vb.pp("2"))?))
}

/// Interrupted after two steps, or not.
fn dropout_repeats_itself() -> Result<()> {
    let net = |seed| DataParallel::new(&cpus(2), Initializer::Layers, seed, with_dropout);
    let trainer = |net: &DataParallel| Trainer::new(net, cross_entropy, Sgd::new(0.1));
    let (whole, first, second) = (net(3)?, net(3)?, net(3)?);
    steps(&mut trainer(&whole), 0..4, 6)?;
    let mut stops = trainer(&first);
    steps(&mut stops, 0..2, 6)?;
    second.load_state_dict(&first.state_dict()?)?;
    let mut goes_on = trainer(&second);
    goes_on.load_state_dict(stops.state_dict()?)?;
    steps(&mut goes_on, 2..4, 6)?;
    let weight = |net: &DataParallel| net.parameter("2.weight", 1);
    ensure!(largest_difference(&weight(&whole)?, &weight(&second)?)? == 0.0);
    // a first step again is another one than the third
    let again = net(3)?;
    again.load_state_dict(&first.state_dict()?)?;
    steps(&mut trainer(&again), 2..4, 6)?;
    ensure!(largest_difference(&weight(&whole)?, &weight(&again)?)? > 1e-6);
    Ok(())
}

fn dropout_is_nothing_in_inference() -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, |vb| Dropout::new(0.5, vb))?;
    let x = formula_tensor(1, 1.0, &[4, 3])?;
    ensure!(largest_difference(&x, &net.forward(&x)?[0])? == 0.0);
    let alone = Dropout::new(0.5, vb())?.forward(&Value::new(&x)?, true);
    says("only a Trainer draws its masks", alone)?;
    let all = Dropout::new(1.0, vb());
    says("p is 1; expected 0 or more, and less than 1", all)
}

/// Evenly between ±1/√(inputs), biases too; the book's Normal leaves biases at zero.
fn layers_begin_as_pytorchs_do() -> Result<()> {
    let net = |init| DataParallel::new(&cpus(1), init, 0, |vb| Linear::new(400, 1000, vb));
    let net_of_layers = net(Initializer::Layers)?;
    for name in ["weight", "bias"] {
        let values = net_of_layers.parameter(name, 0)?.flatten_all()?;
        let (most, mean) = (largest(&values)?, values.mean(0)?.to_scalar::<f32>()?);
        let is_even = most <= 0.05 && most > 0.0499 && mean.abs() < 0.002;
        ensure!(is_even, "{name}: {most}, {mean}");
    }
    let bias = net(Initializer::Normal(0.01))?.parameter("bias", 0)?;
    ensure!(largest(&bias)? == 0.0);
    Ok(())
}

/// The network of `layer_steps.py`, with PyTorch's names.
fn every_layer(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    Ok(Sequential::new()
        .add(|x: &Value, _| x.nhwc())
        .add(Conv2d::new(1, 6, 5, vb.pp("0"))?)
        .add(MaxPool2d::new(3).stride(2))
        .add(BatchNorm2d::new(6, vb.pp("2"))?)
        .add(|x: &Value, _| x.relu())
        .add(AvgPool2d::new(2))
        .add(Conv2d::new(6, 8, 3, vb.pp("5"))?.stride(2).padding(1))
        .add(GlobalAvgPool2d)
        .add(LayerNorm::new(8, vb.pp("8"))?)
        .add(Linear::new(8, 10, vb.pp("9"))?))
}

fn steps_of_every_layer_are_pytorchs() -> Result<()> {
    let theirs = theirs(include_str!("../pytorch/layers.json"));
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, every_layer)?;
    let mut state = net.state_dict()?;
    let drawn = state
        .iter_mut()
        .filter(|(name, _)| matches!(&name[..2], "0." | "5." | "9."));
    for (s, (_, tensor)) in drawn.enumerate() {
        *tensor = formula_tensor(s as u32, 0.2, tensor.dims())?;
    }
    net.load_state_dict(&state)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let losses = steps(&mut trainer, 0..5, 7)?;
    close("losses", &losses, &theirs["losses"]["float64"], 1e-5)?;
    for (name, theirs) in theirs["tensors"].as_object().context("no tensors")? {
        let float32 = theirs["float32"][1].as_f64().context("no distance")?;
        let tolerance = [1e-4, 1e-6_f64.max(4.0 * float32)];
        tensor_is_close(name, &net.parameter(name, 0)?, theirs, tolerance)?;
    }
    Ok(())
}
