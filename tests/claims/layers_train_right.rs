//! Layers of concise train right; those of candle-nn that do not are refused by name in the first step.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Module, ModuleT, Tensor};
use candle_nn::{VarBuilder, VarMap};
use concise::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, Dropout, GlobalAvgPool2d, LayerNorm, Linear, MaxPool2d,
    Sequential,
};
use concise::{DataParallel, Initializer, Sgd, Trainer};
use functional::{Gradients, Network, Value, candle, check_gradients, cross_entropy};

use crate::kit::{cpus, formula_batch, formula_tensor, has, largest_difference};
use crate::only_rounding_differs_from_pytorch::{close, tensor_is_close, theirs};

trials![
    what_candle_trains_right_passes,
    what_candle_trains_wrong_is_refused,
    the_trainer_refuses_a_wrong_gradient_unless_told,
    layers_have_the_gradients_of_finite_differences,
    dropout_repeats_itself,
    dropout_is_nothing_in_inference,
    layers_begin_as_pytorchs_do,
    steps_of_every_layer_are_pytorchs,
];

fn vb() -> VarBuilder<'static> {
    let varmap = Box::leak(Box::new(VarMap::new()));
    VarBuilder::from_varmap(varmap, DType::F32, &Device::Cpu)
}

type Forward = Box<dyn Fn(&Tensor) -> candle_core::Result<Tensor>>;

/// What the comparison says of a module and inputs of this shape.
fn says(f: Forward, dims: &[usize]) -> Result<()> {
    let x = Value::new(&formula_tensor(1, 1.0, dims)?)?;
    check_gradients(|| candle(move |x: &Tensor| f(x)).forward(&x, true))?;
    Ok(())
}

fn what_candle_trains_right_passes() -> Result<()> {
    let vb = vb();
    let linear = candle_nn::linear(6, 5, vb.pp("linear"))?;
    let conv2d = candle_nn::conv2d(2, 3, 3, Default::default(), vb.pp("conv2d"))?;
    let norm = candle_nn::batch_norm(2, 1e-5, vb.pp("norm"))?;
    let layer_norm = candle_nn::layer_norm_no_bias(6, 1e-5, vb.pp("layer_norm"))?;
    let group_norm = candle_nn::group_norm(1, 2, 1e-5, vb.pp("group_norm"))?;
    let modules: [(&str, Forward, &[usize]); 13] = [
        ("Linear", Box::new(move |x| linear.forward(x)), &[3, 6]),
        (
            "Conv2d",
            Box::new(move |x| conv2d.forward(x)),
            &[2, 2, 6, 7],
        ),
        (
            "BatchNorm",
            Box::new(move |x| norm.forward_t(x, false)),
            &[4, 2, 3, 3],
        ),
        (
            "LayerNorm",
            Box::new(move |x| layer_norm.forward(x)),
            &[3, 6],
        ),
        (
            "GroupNorm",
            Box::new(move |x| group_norm.forward(x)),
            &[2, 2, 3, 3],
        ),
        ("avg_pool2d", Box::new(|x| x.avg_pool2d(2)), &[2, 2, 6, 8]),
        ("relu", Box::new(|x| (x - 0.6)?.relu()), &[3, 6]),
        ("gelu", Box::new(|x| (x - 0.6)?.gelu()), &[3, 6]),
        ("gelu_erf", Box::new(|x| (x - 0.6)?.gelu_erf()), &[3, 6]),
        ("silu", Box::new(|x| (x - 0.6)?.silu()), &[3, 6]),
        (
            "sigmoid",
            Box::new(|x| candle_nn::ops::sigmoid(&(x - 0.6)?)),
            &[3, 6],
        ),
        ("tanh", Box::new(|x| (x - 0.6)?.tanh()), &[3, 6]),
        (
            "softmax",
            Box::new(|x| candle_nn::ops::softmax(x, 1)),
            &[3, 6],
        ),
    ];
    let all = modules.into_iter();
    let wrong =
        all.filter_map(|(name, f, dims)| Some(format!("{name}: {:#}", says(f, dims).err()?)));
    let wrong: Vec<String> = wrong.collect();
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

fn what_candle_trains_wrong_is_refused() -> Result<()> {
    let vb = vb();
    let layer_norm = candle_nn::layer_norm(6, 1e-5, vb.pp("layer_norm"))?;
    let config = candle_nn::Conv2dConfig {
        stride: 2,
        ..Default::default()
    };
    let conv2d = candle_nn::conv2d(2, 3, 3, config, vb.pp("conv2d"))?;
    let conv1d = candle_nn::conv1d(2, 3, 3, Default::default(), vb.pp("conv1d"))?;
    let rms_norm = candle_nn::rms_norm(6, 1e-5, vb.pp("rms_norm"))?;
    let modules: [(&str, Forward, &[usize], &str); 6] = [
        (
            "conv1d",
            Box::new(move |x| conv1d.forward(x)),
            &[2, 2, 9],
            "is wrong",
        ),
        (
            "RmsNorm",
            Box::new(move |x| rms_norm.forward(x)),
            &[3, 6],
            "0.00 times",
        ),
        (
            "max_pool2d",
            Box::new(|x| x.max_pool2d(2)),
            &[2, 2, 6, 8],
            "0.25 times",
        ),
        (
            "avg_pool2d",
            Box::new(|x| x.avg_pool2d(2)),
            &[2, 2, 7, 7],
            "candle",
        ),
        (
            "layer_norm",
            Box::new(move |x| layer_norm.forward(x)),
            &[3, 6],
            "0.00 times",
        ),
        (
            "conv2d",
            Box::new(move |x| conv2d.forward(x)),
            &[2, 2, 6, 7],
            "the gradient of",
        ),
    ];
    for (name, f, dims, words) in modules {
        let error = says(f, dims).expect_err(name);
        ensure!(format!("{error:#}").contains(words), "{name}: {error:#}");
    }
    Ok(())
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
    for words in [
        "pooled",
        "0.25 times",
        "data_parallel::layers",
        "check_gradients(false)",
    ] {
        has(&error, words)?;
    }
    let trainer = Trainer::new(&net()?, cross_entropy, Sgd::new(0.1));
    trainer.check_gradients(false).step(&x, &y)?;
    Ok(())
}

/// The gradient of the input, in a direction, beside a central difference.
fn layers_have_the_gradients_of_finite_differences() -> Result<()> {
    let linear = Linear::new(6, 5, vb())?;
    let norm = LayerNorm::new(6, vb())?;
    let two = Sequential::new()
        .add(LayerNorm::new(6, vb())?)
        .add(Linear::new(6, 3, vb())?);
    let layers: [(&str, Box<dyn Network>, &[usize]); 6] = [
        ("Linear", Box::new(linear), &[3, 6]),
        ("LayerNorm", Box::new(norm), &[3, 6]),
        ("Sequential", Box::new(two), &[3, 6]),
        (
            "MaxPool2d",
            Box::new(MaxPool2d::new(3).stride(2)),
            &[2, 7, 8, 2],
        ),
        ("AvgPool2d", Box::new(AvgPool2d::new(2)), &[2, 7, 7, 2]),
        ("GlobalAvgPool2d", Box::new(GlobalAvgPool2d), &[2, 5, 6, 3]),
    ];
    for (name, layer, dims) in layers {
        let x = candle_core::Var::from_tensor(&formula_tensor(1, 1.0, dims)?)?;
        let sum = |x: &Tensor| -> candle_core::Result<Value> {
            let y = layer.forward(&Value::new(x)?, true)?;
            let up = formula_tensor(2, 1.0, y.dims())?;
            let weigh = candle(move |y: &Tensor| (y * &up)?.flatten_all()?.sum_keepdim(0));
            weigh.forward(&y, true)?.sum()
        };
        let mut gradients = Gradients::new([("x", &x)], usize::MAX)?;
        gradients.backward(&sum(&x)?)?;
        let gradient = gradients.values()?.remove(0).reshape(dims)?;
        let along = (&gradient * (1e-3 / f64::from(crate::kit::largest(&gradient)?)))?;
        let at = |x: Tensor| sum(&x)?.eval()?.to_scalar::<f32>();
        let difference = at((x.as_tensor() + &along)?)? - at((x.as_tensor() - &along)?)?;
        let expected = 2.0 * (&gradient * &along)?.sum_all()?.to_scalar::<f32>()?;
        ensure!(
            (difference / expected - 1.0).abs() < 0.02,
            "{name}: {difference}, {expected}"
        );
    }
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
    let steps = |trainer: &mut Trainer, steps: std::ops::Range<u32>| -> Result<()> {
        for _ in steps {
            let (x, y) = formula_batch(0, 6)?;
            trainer.step(&x, &y)?;
        }
        Ok(())
    };
    let (whole, first, second) = (net(3)?, net(3)?, net(3)?);
    steps(&mut trainer(&whole), 0..4)?;
    let mut stops = trainer(&first);
    steps(&mut stops, 0..2)?;
    second.load_state_dict(&first.state_dict()?)?;
    let mut goes_on = trainer(&second);
    goes_on.load_state_dict(stops.state_dict()?)?;
    steps(&mut goes_on, 2..4)?;
    let weight = |net: &DataParallel| net.parameter("2.weight", 1);
    ensure!(largest_difference(&weight(&whole)?, &weight(&second)?)? == 0.0);
    // a first step again is another one than the third
    let again = net(3)?;
    again.load_state_dict(&first.state_dict()?)?;
    steps(&mut trainer(&again), 2..4)?;
    ensure!(largest_difference(&weight(&whole)?, &weight(&again)?)? > 1e-6);
    Ok(())
}

fn dropout_is_nothing_in_inference() -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, |vb| Dropout::new(0.5, vb))?;
    let x = formula_tensor(1, 1.0, &[4, 3])?;
    ensure!(largest_difference(&x, &net.forward(&x)?[0])? == 0.0);
    let alone = Dropout::new(0.5, vb())?.forward(&Value::new(&x)?, true);
    let error = alone.map(drop).expect_err("no trainer").to_string();
    has(&error, "only a Trainer draws its masks")?;
    let error = Dropout::new(1.0, vb())
        .map(drop)
        .expect_err("nothing is left")
        .to_string();
    has(&error, "p is 1; expected 0 or more, and less than 1")
}

/// Evenly between ±1/√(inputs), biases too; the book's Normal leaves biases at zero.
fn layers_begin_as_pytorchs_do() -> Result<()> {
    let net = |init| DataParallel::new(&cpus(1), init, 0, |vb| Linear::new(400, 1000, vb));
    let net_of_layers = net(Initializer::Layers)?;
    for name in ["weight", "bias"] {
        let values = net_of_layers.parameter(name, 0)?.flatten_all()?;
        let (most, mean) = (
            crate::kit::largest(&values)?,
            values.mean(0)?.to_scalar::<f32>()?,
        );
        ensure!(
            most <= 0.05 && most > 0.0499 && mean.abs() < 0.002,
            "{name}: {most}, {mean}"
        );
    }
    let bias = net(Initializer::Normal(0.01))?.parameter("bias", 0)?;
    ensure!(crate::kit::largest(&bias)? == 0.0);
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
    let losses = (0..5).map(|batch| {
        let (x, y) = formula_batch(batch, 7)?;
        Ok(trainer.step(&x, &y)?.loss.mean()?)
    });
    let losses = losses.collect::<Result<Vec<f32>>>()?;
    close("losses", &losses, &theirs["losses"]["float64"], 1e-5)?;
    for (name, theirs) in theirs["tensors"].as_object().context("no tensors")? {
        let float32 = theirs["float32"][1].as_f64().context("no distance")?;
        let tolerance = [1e-4, 1e-6_f64.max(4.0 * float32)];
        tensor_is_close(name, &net.parameter(name, 0)?, theirs, tolerance)?;
    }
    Ok(())
}
