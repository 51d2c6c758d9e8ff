//! Layers of concise train right; what does not, in networks and losses of candle's operations, is refused by name at the
//! first step that has it.

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap, ops};
use data_parallel::functional::{
    Attention, Network, Value, candle, cross_entropy, masked_cross_entropy, squared_error,
};
use data_parallel::layers::{
    AvgPool2d, BatchNorm2d, Conv2d, ConvTranspose2d, Dropout, GlobalAvgPool2d, GroupNorm, Gru,
    LayerNorm, Linear, Lstm, MaxPool2d, RmsNorm, Sequential, Upsample,
};
use data_parallel::{DataParallel, Initializer, Sgd, Trainer};

use crate::kit::{are_pytorchs, theirs};
use crate::kit::{cpus, formula_batch, formula_tensor, has, largest};
use crate::kit::{largest_difference, says, steps};
use crate::states::{draw, near};

#[path = "../../examples/cost_of_convolutions.rs"]
#[expect(dead_code, reason = "it is a program")]
mod convolutions;

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

#[test]
fn the_trainer_refuses_a_wrong_gradient_unless_told() -> Result<()> {
    let (x, y) = formula_batch(0, 5)?;
    let net = || DataParallel::new(&cpus(2), Initializer::Layers, 0, pooled);
    let mut trainer = Trainer::new(&net()?, cross_entropy, Sgd::new(0.1));
    for words in [
        concat!("candle (", file!(), ":"),
        "0.25 times",
        "The page \"What trains in candle\" says",
        "check_gradients(false)",
    ] {
        says(words, trainer.step(&x, &y))?;
    }
    let trainer = Trainer::new(&net()?, cross_entropy, Sgd::new(0.1));
    trainer.check_gradients(false).step(&x, &y)?;
    Ok(())
}

/// (1 - p)² · cross-entropy of each example, p by `softmax`.
fn focal(
    y_hat: &Value,
    y: &Tensor,
    softmax: fn(&Tensor) -> candle_core::Result<Tensor>,
) -> candle_core::Result<Value> {
    let y = y.unsqueeze(1)?;
    let of_each = candle(move |x: &Tensor| {
        let p = softmax(x)?.gather(&y, 1)?.squeeze(1)?;
        let log_p = ops::log_softmax(x, 1)?.gather(&y, 1)?.squeeze(1)?;
        p.affine(-1.0, 1.0)?.sqr()? * log_p.neg()?
    });
    of_each.forward(y_hat, true)
}

#[test]
fn a_wrong_gradient_in_a_loss_is_refused() -> Result<()> {
    let (x, y) = formula_batch(0, 5)?;
    let build = |vb: VarBuilder<'_>| {
        let layers = Sequential::new().add(|x: &Value, _| x.nhwc()?.flatten());
        Ok(layers.add(Linear::new(784, 10, vb)?))
    };
    let net = || DataParallel::new(&cpus(2), Initializer::Layers, 0, build);
    let right = |y_hat: &Value, y: &Tensor| focal(y_hat, y, |x| ops::softmax(x, 1));
    let mut trainer = Trainer::new(&net()?, right, Sgd::new(0.1));
    for _ in 0..3 {
        trainer.step(&x, &y)?;
    }
    let fused = |y_hat: &Value, y: &Tensor| focal(y_hat, y, ops::softmax_last_dim);
    let mut trainer = Trainer::new(&net()?, fused, Sgd::new(0.1));
    let words = concat!("candle (", file!(), ":");
    says(words, trainer.step(&x, &y))?;
    says(
        "the gradient of input 0 of shape [3, 10] is wrong",
        trainer.step(&x, &y),
    )?;
    Trainer::new(&net()?, fused, Sgd::new(0.1))
        .check_gradients(false)
        .step(&x, &y)?;
    let pooled = |y_hat: &Value, _: &Tensor| {
        let maps = |x: &Tensor| {
            let maps = x.narrow(1, 0, 4)?.reshape(((), 1, 2, 2))?;
            maps.max_pool2d(2)?.flatten_all()?.sqr()
        };
        candle(maps).forward(y_hat, true)
    };
    let step = Trainer::new(&net()?, pooled, Sgd::new(0.1)).step(&x, &y);
    says("(0.25 times)", step)
}

/// What is computed from `eval` has no gradient. It was computed with one half of it before, without an error.
#[test]
fn numbers_of_a_value_train_nothing_unless_it_is_detached() -> Result<()> {
    let layer = |vb: VarBuilder<'_>| Linear::new(3, 2, vb);
    let x = formula_tensor(1, 1.0, &[6, 3])?;
    type Loss = fn(&Linear, &[Value], &[Tensor]) -> candle_core::Result<Value>;
    /// The product with itself, of which one factor is as `second` makes it.
    fn product(
        net: &Linear,
        x: &Value,
        second: fn(&Value) -> candle_core::Result<Value>,
    ) -> candle_core::Result<Value> {
        let h = net.forward(x, true)?;
        let sum = candle(|x: &Tensor| x.sum(1));
        sum.forward(&(&h * &second(&h)?)?, true)
    }
    let step = |loss: Loss, lr: f64, k: usize| -> Result<Tensor> {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, layer)?;
        let begun = net.parameter("weight", 0)?;
        let step = Trainer::with(&net, loss, Sgd::new(lr))?.step(&x, &());
        let weight = net.parameter("weight", k - 1)?;
        if step.is_err() {
            ensure!(largest_difference(&begun, &weight)? == 0.0);
        }
        step?;
        Ok(weight)
    };
    let whole: Loss = |net, x, _| product(net, &x[0], |h| Ok(h.clone()));
    let detached: Loss = |net, x, _| product(net, &x[0], Value::detach);
    let seen: Loss = |net, x, _| product(net, &x[0], |h| Value::new(&h.eval()?.detach()));
    let only_looked_at: Loss = |net, x, _| {
        let numbers = net.forward(&x[0], true)?.eval()?;
        let largest = numbers.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
        assert!((largest as usize) < numbers.elem_count());
        product(net, &x[0], |h| Ok(h.clone()))
    };
    let captured: Loss = |net, x, _| {
        let h = net.forward(&x[0], true)?;
        let numbers = h.eval()?;
        candle(move |x: &Tensor| (x * &numbers)?.sum(1)).forward(&h, true)
    };
    let as_target: Loss = |net, x, _| {
        let h = net.forward(&x[0], true)?;
        squared_error(&h, &(h.eval()? * 0.5)?)
    };
    let silent: Loss = |net, x, _| product(net, &x[0], |h| Value::new(&h.eval()?));
    let expected = step(whole, 0.1, 1)?;
    for k in [1, 2, 3] {
        for half in [detached, seen] {
            let apart = largest_difference(&step(half, 0.2, k)?, &expected)?;
            ensure!(apart < 1e-6, "k = {k}: {apart}");
        }
        let words = "instead of eval, or call detach on what eval returns";
        says(words, step(silent, 0.2, k))?;
        step(only_looked_at, 0.1, k)?;
        for silent in [silent, captured, as_target] {
            let words = "which eval returned, have no gradient";
            says(words, step(silent, 0.2, k))?;
        }
    }
    // what is reached through it alone does not train
    let alone: Loss = |net, x, _| {
        let h = net.forward(&x[0], true)?.detach()?;
        candle(|x: &Tensor| x.sum(1)).forward(&h, true)
    };
    says("the loss does not depend on", step(alone, 0.1, 2))?;
    let gate: Loss = |net, x, _| {
        let h = net.forward(&x[0], true)?;
        let labels = Tensor::zeros(x[0].dims()[0], DType::U32, &Device::Cpu)?;
        masked_cross_entropy(&h, &labels, &h.eval()?.max(1)?)
    };
    says("which eval returned", step(gate, 0.1, 2))
}

/// candle's mean pooling is right for even sizes alone.
#[test]
fn a_wrong_gradient_is_refused_at_a_later_shape() -> Result<()> {
    let build = |vb: VarBuilder<'_>| {
        let config = candle_nn::Conv2dConfig {
            padding: 1,
            ..Default::default()
        };
        let conv = candle_nn::conv2d(1, 3, 3, config, vb.pp("conv"))?;
        let fc = candle_nn::linear(3, 3, vb.pp("fc"))?;
        Ok(candle(move |x: &Tensor| {
            let h = conv.forward(x)?.tanh()?.avg_pool2d(2)?;
            fc.forward(&h.sqr()?.mean((2, 3))?)
        }))
    };
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, build)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let y = Tensor::new(&[0u32, 1, 2, 0], &Device::Cpu)?;
    let images = |size: usize| formula_tensor(1, 1.0, &[4, 1, size, size]);
    trainer.step(&images(8)?, &y)?;
    let before = net.parameter("conv.weight", 0)?;
    let words = "the gradient of input 0 of shape [2, 1, 7, 7] is wrong";
    says(words, trainer.step(&images(7)?, &y))?;
    ensure!(largest_difference(&before, &net.parameter("conv.weight", 0)?)? == 0.0);
    trainer.step(&images(8)?, &y)?; // training goes on
    says(words, trainer.step(&images(7)?, &y))
}

/// The second replica alone has a shard for which candle is wrong: `conv1d` is right for one example.
#[test]
fn each_replica_compares_the_shapes_of_its_shards() -> Result<()> {
    let build = |vb: VarBuilder<'_>| {
        let conv = candle_nn::conv1d(1, 4, 3, Default::default(), vb.pp("conv"))?;
        let fc = candle_nn::linear(4 * 6, 3, vb.pp("fc"))?;
        Ok(candle(move |x: &Tensor| {
            fc.forward(&conv.forward(x)?.tanh()?.flatten_from(1)?)
        }))
    };
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, build)?;
    net.set_split(&[1.0, 3.0])?;
    let x = formula_tensor(1, 1.0, &[4, 1, 8])?;
    let y = Tensor::new(&[0u32, 1, 2, 0], &Device::Cpu)?;
    let step = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y);
    let error = format!("{:#}", step.expect_err("candle's conv1d is right now"));
    has(&error, "replica cpu(1): candle (")?;
    has(&error, "is wrong")
}

/// The statistics after the first step are those of its minibatch, whether gradients are checked or not.
#[test]
fn a_check_moves_no_statistics() -> Result<()> {
    let build = |vb: VarBuilder<'_>| {
        let norm = candle_nn::batch_norm(1, 1e-5, vb.pp("norm"))?;
        let fc = candle_nn::linear(784, 10, vb.pp("fc"))?;
        Ok(Sequential::new()
            .add(candle(norm))
            .add(candle(move |x: &Tensor| fc.forward(&x.flatten_from(1)?))))
    };
    let (x, y) = formula_batch(0, 6)?;
    let after = |checks: bool| {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, build)?;
        let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        trainer.check_gradients(checks).step(&x, &y)?;
        net.state_dict()
    };
    near("checked or not", &after(true)?, &after(false)?, 0.0)
}

/// One dropout, used twice.
fn with_dropout(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let drop = Dropout::new(0.5, vb.pp("1"))?;
    Ok(Sequential::new()
        .add(|x: &Value, _| x.nhwc()?.flatten())
        .add(Linear::new(784, 16, vb.pp("0"))?)
        .add(move |x: &Value, train: bool| drop.forward(&drop.forward(x, train)?, train))
        .add(Linear::new(16, 10, vb.pp("2"))?))
}

/// Of one row, as in one dimension, and of one column.
#[test]
fn a_rectangular_kernel_is_candles() -> Result<()> {
    for kernel @ [rows, columns] in [[1, 4], [3, 1], [2, 3]] {
        let ours = move |vb: VarBuilder<'_>| {
            let conv = Conv2d::rectangular(2, 3, kernel, vb)?;
            Ok(Sequential::new().add(conv))
        };
        let candles = move |vb: VarBuilder<'_>| {
            let bound = 1.0 / ((2 * rows * columns) as f64).sqrt();
            let init = candle_nn::Init::Uniform {
                lo: -bound,
                up: bound,
            };
            let weight = vb.get_with_hints((3, 2, rows, columns), "weight", init)?;
            let bias = vb.get_with_hints(3, "bias", init)?.reshape((1, 3, 1, 1))?;
            let conv = candle(move |x: &Tensor| {
                let y = x.permute((0, 3, 1, 2))?.conv2d(&weight, 0, 1, 1, 1)?;
                y.broadcast_add(&bias)?.permute((0, 2, 3, 1))?.contiguous()
            });
            Ok(Sequential::new().add(conv))
        };
        let x = formula_tensor(1, 1.0, &[5, 3, 6, 2])?;
        let y = formula_tensor(2, 1.0, &[5, 4 - rows, 7 - columns, 3])?;
        let run = |net: DataParallel| -> Result<Tensor> {
            let mut trainer = Trainer::new(&net, squared_error, Sgd::new(0.5));
            for _ in 0..3 {
                trainer.step(&x, &y)?;
            }
            Ok(net.parameter("weight", 0)?)
        };
        let ours = DataParallel::new(&cpus(2), Initializer::Layers, 0, ours)?;
        let begun = ours.parameter("weight", 0)?;
        let candles = DataParallel::new(&cpus(1), Initializer::Layers, 0, candles)?;
        let (ours, candles) = (run(ours)?, run(candles)?);
        ensure!(largest_difference(&ours, &begun)? > 1e-2);
        let apart = largest_difference(&ours, &candles)?;
        ensure!(apart < 1e-5, "{kernel:?}: {apart}");
    }
    Ok(())
}

/// Groups, dilation and transposed convolutions that are made of other layers, as the page has them: the outputs of candle's
/// operation, and its gradients.
#[test]
fn convolutions_of_other_layers_are_candles() -> Result<()> {
    use convolutions::{CHANNELS, SIDE, conv2d, dilated, enlarged, grouped, transposed};

    /// Builds a layer.
    type Layer = fn(VarBuilder<'_>) -> candle_core::Result<Sequential>;
    let cases: [(&str, Layer, Layer); 4] = [
        ("2 groups", |vb| grouped(vb, 2), |vb| conv2d(vb, 2, 1)),
        (
            "a group for each channel",
            |vb| grouped(vb, CHANNELS),
            |vb| conv2d(vb, CHANNELS, 1),
        ),
        (
            "dilation 2",
            |vb| dilated(CHANNELS, CHANNELS, vb),
            |vb| conv2d(vb, 1, 2),
        ),
        ("transposed", enlarged, transposed),
    ];
    for (what, ours, candles) in cases {
        let build = |layer: Layer| DataParallel::new(&cpus(1), Initializer::Layers, 0, layer);
        let (ours, candles) = (build(ours)?, build(candles)?);
        let before = ours.state_dict()?;
        candles.load_state_dict(&before)?;
        let x = formula_tensor(1, 1.0, &[2, SIDE, SIDE, CHANNELS])?;
        let y_hat = [ours.forward(&x)?, candles.forward(&x)?];
        let apart = largest_difference(&y_hat[0], &y_hat[1])?;
        ensure!(apart < 1e-4, "{what}: outputs {apart}");
        let y = formula_tensor(2, 1.0, y_hat[0].dims())?;
        for net in [&ours, &candles] {
            // the mean is over many elements
            Trainer::new(net, squared_error, Sgd::new(1000.0)).step(&x, &y)?;
        }
        for (name, before) in &before {
            let after = ours.parameter(name, 0)?;
            let moved = largest_difference(&after, before)?;
            let apart = largest_difference(&after, &candles.parameter(name, 0)?)?;
            let close = moved > 0.01 && apart < 1e-4 * moved.max(1.0);
            ensure!(close, "{what}, {name}: {apart} of {moved}");
        }
    }
    Ok(())
}

/// Interrupted after two steps, or not.
#[test]
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

#[test]
fn dropout_is_nothing_in_inference() -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, |vb| Dropout::new(0.5, vb))?;
    let x = formula_tensor(1, 1.0, &[4, 3])?;
    ensure!(largest_difference(&x, &net.forward(&x)?)? == 0.0);
    let alone = Dropout::new(0.5, vb())?.forward(&Value::new(&x)?, true);
    says("only a Trainer draws its masks", alone)?;
    let all = Dropout::new(1.0, vb());
    says("p is 1; expected 0 or more, and less than 1", all)
}

/// Which of 10,000 ones are left by `calls` calls of dropouts with p = 1/2 in the first step, and by how many calls of a
/// second layer; the others are 0, and the numbers that are left 2 for each call.
fn left(calls: usize, of_second: usize, steps: usize) -> Result<Vec<bool>> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, move |vb| {
        let [first, second] = ["drop", "other"].map(|name| Dropout::new(0.5, vb.pp(name)));
        let (first, second) = (first?, second?);
        let w = vb.get_with_hints(1, "w", candle_nn::Init::Const(1.0))?;
        let scale = candle(move |x: &Tensor| x.broadcast_mul(&w));
        Ok(move |x: &Value, train: bool| {
            let mut x = scale.forward(x, train)?;
            for _ in 0..calls {
                x = first.forward(&x, train)?;
            }
            for _ in 0..of_second {
                x = second.forward(&x, train)?;
            }
            Ok(x)
        })
    })?;
    let loss = |y_hat: &Value, _: &Tensor| candle(|x: &Tensor| x.sum(1)).forward(y_hat, true);
    let mut trainer = Trainer::new(&net, loss, Sgd::new(0.0));
    let ones = Tensor::ones((2, 5000), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(2, DType::F32, &Device::Cpu)?;
    let mut last = trainer.step(&ones, &y)?;
    for _ in 1..steps {
        last = trainer.step(&ones, &y)?;
    }
    let y_hat = last.shards[0].0.flatten_all()?.to_vec1::<f32>()?;
    let whole = 2f32.powi((calls + of_second) as i32);
    ensure!(y_hat.iter().all(|y| *y == 0.0 || *y == whole));
    Ok(y_hat.into_iter().map(|y| y > 0.0).collect())
}

/// As PyTorch programs use one `self.dropout`.
#[test]
fn no_two_calls_of_dropout_have_the_same_mask() -> Result<()> {
    let count = |mask: &[bool]| mask.iter().filter(|left| **left).count();
    let once = left(1, 0, 1)?;
    // the bits of before calls were counted
    ensure!(count(&once) == 4945, "{} are left", count(&once));
    let places = once.iter().enumerate().filter(|(_, left)| **left);
    let places = places.fold(0u64, |hash, (i, _)| {
        hash.wrapping_mul(31).wrapping_add(i as u64)
    });
    ensure!(places == FIRST_MASK, "other places: {places:#x}");
    let mut whole = once;
    for calls in 2..=6 {
        let next = left(calls, 0, 1)?;
        ensure!(next.iter().zip(&whole).all(|(next, whole)| *whole || !next));
        let share = count(&next) as f64 / count(&whole) as f64;
        let room = 4.0 * (0.25 / count(&whole) as f64).sqrt();
        ensure!((share - 0.5).abs() < room, "call {calls} leaves {share}");
        ensure!(next == left(calls, 0, 1)?, "another run has other masks");
        whole = next;
    }
    // nor do calls of two layers, or of two steps
    for other in [
        left(1, 1, 1)?,
        left(2, 2, 1)?,
        left(2, 0, 2)?,
        left(1, 0, 2)?,
    ] {
        ensure!(other != left(2, 0, 1)?);
    }
    Ok(())
}

const FIRST_MASK: u64 = 0xf675_7dce_89b7_a1d1;

#[test]
fn two_dropouts_have_two_names() -> Result<()> {
    let build = |names: [&'static str; 2]| {
        DataParallel::new(&cpus(2), Initializer::Layers, 0, move |vb| {
            let [first, second] = names.map(|name| Dropout::new(0.5, vb.pp(name)));
            let fc = Linear::new(8, 3, vb.pp("fc"))?;
            Ok(Sequential::new().add(fc).add(first?).add(second?))
        })
    };
    let words = "Dropout: the name \"drop\" is requested twice: give each layer a name of its own with vb.pp";
    says(words, build(["drop", "drop"]).map(drop))?;
    build(["drop", "drop2"])?;
    build(["fc", "drop"])?;
    Ok(())
}

/// Evenly between ±1/√(inputs), biases too; the book's Normal leaves biases at zero.
#[test]
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
        .add(
            ConvTranspose2d::new(8, 12, 3, vb.pp("6"))?
                .stride(2)
                .padding(1)
                .output_padding(1),
        )
        .add(Upsample::nearest(2))
        .add(
            Conv2d::grouped(12, 12, 3, 12, vb.pp("8"))?
                .stride(2)
                .padding(1),
        )
        .add(Upsample::bilinear(3))
        .add(Conv2d::grouped(12, 8, 3, 2, vb.pp("10"))?)
        .add(GlobalAvgPool2d)
        .add(LayerNorm::new(8, vb.pp("13"))?)
        .add(Linear::new(8, 10, vb.pp("14"))?))
}

/// Takes five steps of a network, whose parameters but those of some layers are drawn by the formula, and compares them with
/// PyTorch's.
fn steps_are_pytorchs<N: Network + 'static>(
    theirs: &serde_json::Value,
    as_they_are: &[&str],
    build: fn(VarBuilder<'_>) -> candle_core::Result<N>,
) -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, build)?;
    draw(&net, 0.2, as_they_are)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let losses = steps(&mut trainer, 0..5, 7)?;
    let tolerance = |[_, apart]: [f64; 2]| [1e-4, 1e-6_f64.max(4.0 * apart)];
    are_pytorchs("steps", &net, &losses, theirs, tolerance)
}

#[test]
fn steps_of_every_layer_are_pytorchs() -> Result<()> {
    let of_images = theirs(include_str!("../../../../tests/pytorch/layers.json"));
    steps_are_pytorchs(&of_images, &["2", "13"], every_layer)?;
    let of_sequences = theirs(include_str!("../../../../tests/pytorch/sequences.json"));
    steps_are_pytorchs(&of_sequences, &["group", "rms", "norm"], Rows::new)
}

/// The network of `sequence_steps.py`, with PyTorch's names.
struct Rows {
    conv: Conv2d,
    group: GroupNorm,
    lstm: Lstm,
    rms: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    gru: Gru,
    norm: LayerNorm,
    fc: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Rows {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let positions = Tensor::arange(0f32, 14.0, vb.device())?.unsqueeze(1)?;
        let periods = Tensor::new(&[1f32, 10.0, 100.0], vb.device())?;
        let angles = positions.broadcast_div(&periods)?;
        Ok(Self {
            conv: Conv2d::new(1, 8, 3, vb.pp("conv"))?.stride(2).padding(1),
            group: GroupNorm::new(2, 8, vb.pp("group"))?,
            lstm: Lstm::new(14 * 8, 12, vb.pp("lstm"))?,
            rms: RmsNorm::new(12, vb.pp("rms"))?,
            q: Linear::new(12, 12, vb.pp("q"))?,
            k: Linear::without_bias(12, 6, vb.pp("k"))?,
            v: Linear::new(12, 6, vb.pp("v"))?,
            gru: Gru::new(12, 10, vb.pp("gru"))?,
            norm: LayerNorm::new(10, vb.pp("norm"))?.eps(1e-3),
            fc: Linear::new(10, 10, vb.pp("fc"))?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        })
    }
}

impl Network for Rows {
    fn forward(&self, x: &Value, train: bool) -> candle_core::Result<Value> {
        let examples = x.dims()[0];
        let x = self.conv.forward(&x.nhwc()?, train)?;
        let x = self.group.forward(&x, train)?.silu()?;
        let x = self
            .lstm
            .forward(&x.reshape((examples, 14, 14 * 8))?, train)?;
        let h = self.rms.forward(&x, train)?;
        let rotated = |x: Value, heads: usize| x.rotary(heads, &self.cos, &self.sin);
        let q = rotated(self.q.forward(&h, train)?, 2)?;
        let k = rotated(self.k.forward(&h, train)?, 1)?;
        let how = Attention::new(2).kv_heads(1).causal();
        let h = q.attention(&k, &self.v.forward(&h, train)?, &how)?;
        let x = self.gru.forward(&(&x + &h)?.tanh()?, train)?;
        let last = self.norm.forward(&x, train)?.narrow(1, 13, 1)?;
        let x = last.reshape((examples, 10))?.relu6()?;
        self.fc.forward(&(&x * &x.sigmoid()?)?, train)
    }
}
