//! The trainer knows no network: whatever is built from a candle `VarBuilder` trains on k
//! replicas as it does on one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Module, ModuleT, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use data_parallel::functional::{
    Gradients, Network, Value, binary_cross_entropy, candle, cross_entropy, squared_error,
};
use data_parallel::layers::{BatchNorm2d, Conv2d, Flatten, Linear, Nhwc, Relu, Sequential};
use data_parallel::training::{DataIter, accuracy, weights};
use data_parallel::{DataParallel, Initializer, Replication, Sgd, Trainer, evaluate_accuracy};
use data_parallel_training::generator;

use rand::Rng as _;

use crate::kit::{cpus, formula_batch, formula_tensor, largest};
use crate::kit::{largest_difference, says, sgd};
use crate::states::{State, near, of_replica};

/// A small convolutional network without batch norm.
fn small_net(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = Conv2d::new(1, 6, 5, vb.pp("conv"))?;
    let fc = Linear::new(6 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| {
        let h = conv.forward(&x.nhwc()?, train)?.relu()?.max_pool2d(2, 2)?;
        fc.forward(&h.flatten()?, train)
    })
}

/// candle-nn's layers.
fn candle_net(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = candle_nn::conv2d(1, 4, 5, Default::default(), vb.pp("conv"))?;
    let fc = candle_nn::linear(4 * 24 * 24, 10, vb.pp("fc"))?;
    Ok(candle(move |x: &Tensor| {
        let h = conv.forward(x)?.relu()?;
        fc.forward(&h.flatten_from(1)?)
    }))
}

/// Layers of both, one after the other.
fn mixed_net(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = Conv2d::new(1, 4, 5, vb.pp("conv"))?;
    let hidden = candle_nn::linear(4 * 12 * 12, 20, vb.pp("hidden"))?;
    let hidden = candle(move |x: &Tensor| hidden.forward(x)?.silu());
    let fc = Linear::new(20, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| {
        let h = conv.forward(&x.nhwc()?, train)?.relu()?.max_pool2d(2, 2)?;
        let h = hidden.forward(&h.flatten()?, train)?;
        fc.forward(&h, train)
    })
}

type Build<N> = fn(VarBuilder<'_>) -> candle_core::Result<N>;

/// Everything that replica `k - 1` holds after a step on `n` examples.
fn after_a_step<N: Network + 'static>(build: Build<N>, k: usize, n: usize) -> Result<State> {
    let net = DataParallel::new(&cpus(k), Initializer::Xavier(3.0), 0, build)?;
    let (x, y) = formula_batch(0, n)?;
    let step = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    let dealt: usize = step.shards.iter().map(|(_, y)| y.dims()[0]).sum();
    ensure!(dealt == n, "the shards hold {dealt} of {n} examples");
    of_replica(&net, k - 1)
}

fn same_step<N: Network + 'static>(build: Build<N>) -> Result<()> {
    for n in [3, 8, 13] {
        let one = after_a_step(build, 1, n)?;
        for k in [2, 3, 4] {
            let found = after_a_step(build, k, n)?;
            near(&format!("k = {k}, n = {n}"), &one, &found, 1e-6)?;
        }
    }
    Ok(())
}

#[test]
fn k_replicas_take_the_step_of_one() -> Result<()> {
    same_step(small_net)?;
    same_step(candle_net).context("layers of candle-nn")?;
    same_step(mixed_net).context("layers of both")
}

fn with_batch_norm(vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let bn = BatchNorm2d::new(1, vb.pp("bn"))?;
    let fc = Linear::new(784, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| fc.forward(&bn.forward(&x.nhwc()?, train)?.flatten()?, train))
}

#[test]
fn replicas_keep_their_own_batch_norm_statistics() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Normal(0.01), 0, with_batch_norm)?;
    let dark = Tensor::zeros((2, 1, 28, 28), DType::F32, &Device::Cpu)?;
    let x = Tensor::cat(&[&dark, &formula_batch(0, 2)?.0], 0)?;
    let y = formula_batch(0, 4)?.1;
    Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    let mean = |i| net.parameter("bn.running_mean", i);
    ensure!(largest(&mean(0)?)? == 0.0, "replica 0 saw only dark images");
    ensure!(largest(&mean(1)?)? > 0.01, "replica 1 saw others");
    let weight = |i| net.parameter("bn.weight", i);
    ensure!(largest_difference(&weight(0)?, &weight(1)?)? == 0.0);
    Ok(())
}

/// The network's state has the statistics of the first replica, the trainer's those of the others: it comes second.
#[test]
fn statistics_that_a_load_has_lost_are_named() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Normal(0.01), 0, with_batch_norm)?;
    let (x, y) = formula_batch(0, 4)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    trainer.step(&x, &y)?;
    let (network, state) = (net.state_dict()?, trainer.state_dict()?);
    let mean = net.parameter("bn.running_mean", 1)?;
    // a trainer of a new network has no state
    net.load_state_dict(&network)?;
    trainer.step(&x, &y)?;
    trainer.load_state_dict(state.clone())?;
    net.load_state_dict(&network)?;
    let error = trainer.step(&x, &y).unwrap_err().to_string();
    let words = "load the network's state first, then the trainer's";
    ensure!(error.contains(words), "{error}");
    trainer.load_state_dict(state.clone())?;
    ensure!(largest_difference(&net.parameter("bn.running_mean", 1)?, &mean)? == 0.0);
    trainer.step(&x, &y)?;
    // a trainer that begins has none to lose
    trainer.load_state_dict(state.clone())?;
    net.load_state_dict(&network)?;
    Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    // without statistics, the trainer's state leaves those of the network to all replicas
    trainer.load_state_dict(state.clone())?;
    net.load_state_dict(&network)?;
    let without = state
        .into_iter()
        .filter(|(name, _)| !name.starts_with("replica "));
    trainer.load_state_dict(without)?;
    trainer.step(&x, &y)?;
    Ok(())
}

#[test]
fn evaluation_counts_every_example_once() -> Result<()> {
    let (x, y) = formula_batch(0, 21)?;
    let test_iter = DataIter::of_tensors(&x, &y, 8, None)?; // 8, 8, 5: uneven for k = 2, 3, 4
    let accuracy_of = |k| -> Result<f64> {
        let net = DataParallel::new(&cpus(k), Initializer::Xavier(3.0), 5, small_net)?;
        Ok(evaluate_accuracy(&net, &test_iter)?)
    };
    let one = accuracy_of(1)?;
    let net = DataParallel::new(&cpus(1), Initializer::Xavier(3.0), 5, small_net)?;
    let mut right = 0;
    for batch in test_iter.in_order() {
        let (x, y) = batch?;
        let step = Trainer::new(&net, cross_entropy, Sgd::new(0.0)).step(&x, &y)?;
        right += accuracy(&step.shards[0].0, &y)?;
    }
    ensure!(one == right as f64 / 21.0, "{one}, counted {right} of 21");
    for k in [2, 3, 4] {
        ensure!(accuracy_of(k)? == one, "k = {k}");
    }
    Ok(())
}

/// The gradients of k = 1 and 3 are the same, in the shapes of the parameters.
#[test]
fn a_loss_is_any_closure() -> Result<()> {
    let (x, labels) = formula_batch(0, 8)?;
    let targets = formula_tensor(3, 0.5, &[8, 10])?.abs()?.clamp(0f32, 1f32)?;
    // weights of the classes, captured by the closure
    let weights = Tensor::arange(1f32, 11.0, &Device::Cpu)?;
    let weighted = move |y_hat: &Value, y: &Tensor| {
        let weights = weights.index_select(y, 0)?;
        let weigh = candle(move |l: &Tensor| l * &weights);
        weigh.forward(&cross_entropy(y_hat, y)?, true)
    };
    same_gradients(&x, &labels, weighted)?;
    same_gradients(&x, &labels, |y_hat, y| smoothed(y_hat, y.clone()))?;
    same_gradients(&x, &targets, squared_error)?;
    same_gradients(&x, &targets, binary_cross_entropy)
}

/// Cross-entropy with a tenth of each label smoothed over all classes.
fn smoothed(y_hat: &Value, y: Tensor) -> candle_core::Result<Value> {
    let of_each = candle(move |y_hat: &Tensor| {
        let log_p = candle_nn::ops::log_softmax(y_hat, 1)?;
        let right = log_p.gather(&y.unsqueeze(1)?, 1)?.squeeze(1)?;
        (right * -0.9)? - (log_p.mean(1)? * 0.1)?
    });
    of_each.forward(y_hat, true)
}

fn same_gradients(
    x: &Tensor,
    y: &Tensor,
    loss: impl Fn(&Value, &Tensor) -> candle_core::Result<Value> + Clone + Send + Sync + 'static,
) -> Result<()> {
    let gradients = |k| {
        let net = DataParallel::new(&cpus(k), Initializer::Xavier(3.0), 0, small_net)?;
        let mut trainer = Trainer::new(&net, loss.clone(), Sgd::new(0.1));
        drop(net); // the trainer has what it needs
        trainer.step(x, y)?;
        trainer.gradients()
    };
    let (one, three) = (gradients(1)?, gradients(3)?);
    ensure!(one[2].1.dims() == [10, 6 * 12 * 12], "{:?}", one[2].1);
    for ((name, a), (_, b)) in one.iter().zip(&three) {
        let (apart, most) = (largest_difference(a, b)?, largest(a)?);
        let same = most > 1e-4 && apart <= 1e-6 * most.max(1.0);
        ensure!(same, "{name}: {apart} of {most}");
    }
    Ok(())
}

#[test]
fn parameters_are_loaded_by_name() -> Result<()> {
    let net = |seed| DataParallel::new(&cpus(2), Initializer::Xavier(3.0), seed, small_net);
    let (one, other) = (net(0)?, net(1)?);
    let mut state = one.state_dict()?;
    state.reverse();
    other.load_state_dict(&state)?;
    let before = one.state_dict()?;
    for i in [0, 1] {
        near("loaded", &before, &of_replica(&other, i)?, 0.0)?;
    }
    let mut misnamed = before.clone();
    misnamed[3].0 = "fc.bais".into();
    let words = "there is no tensor \"fc.bias\"";
    says(words, other.load_state_dict(&misnamed))?;
    near("nothing is changed", &before, &other.state_dict()?, 0.0)
}

/// PyTorch's files have what batch norms count, older ones and candle's do not: ours and candle's norm take both.
#[test]
fn files_of_batch_norms_fit_with_and_without_counts() -> Result<()> {
    let ours = |vb: VarBuilder<'_>| BatchNorm2d::new(2, vb.pp("bn"));
    let candles = |vb: VarBuilder<'_>| Ok(candle(candle_nn::batch_norm(2, 1e-5, vb.pp("bn"))?));
    let folder = tempfile::tempdir()?;
    let (with, without) = (folder.path().join("with"), folder.path().join("without"));
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for (name, value) in [
        ("weight", 2f32),
        ("bias", 3.0),
        ("running_mean", 4.0),
        ("running_var", 5.0),
    ] {
        tensors.push((format!("bn.{name}"), Tensor::full(value, 2, &Device::Cpu)?));
    }
    weights::save(&without, &tensors)?;
    let count = Tensor::new(7i64, &Device::Cpu)?;
    tensors.push(("bn.num_batches_tracked".to_owned(), count));
    weights::save(&with, &tensors)?;
    let counted = |net: &DataParallel| {
        let count = net.parameter("bn.num_batches_tracked", 1)?;
        count.to_scalar::<i64>()
    };
    for (file, count) in [(&with, 7), (&without, 0)] {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, ours)?;
        net.load(file)?;
        ensure!(counted(&net)? == count);
        let theirs = DataParallel::new(&cpus(2), Initializer::Layers, 0, candles)?;
        theirs.load(file)?;
        for net in [net, theirs] {
            let mean: Vec<f32> = net.parameter("bn.running_mean", 1)?.to_vec1()?;
            ensure!(mean == [4.0, 4.0], "{mean:?}");
        }
    }
    // of no norm
    tensors.push((
        "fc.num_batches_tracked".to_owned(),
        Tensor::new(7i64, &Device::Cpu)?,
    ));
    weights::save(&with, &tensors)?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, ours)?;
    says(
        "there is a tensor \"fc.num_batches_tracked\"",
        net.load(&with),
    )
}

/// Of floats, what can be done is said; integers are frozen.
#[test]
fn another_type_of_parameters_is_named() -> Result<()> {
    let (x, y) = (
        Tensor::ones((4, 3), DType::F32, &Device::Cpu)?,
        Tensor::zeros(4, DType::U32, &Device::Cpu)?,
    );
    for dtype in [DType::F64, DType::F16, DType::BF16] {
        let net = DataParallel::new(&cpus(2), Initializer::Normal(0.1), 0, move |vb| {
            let linear = candle_nn::linear(3, 2, vb.to_dtype(dtype).pp("fc"))?;
            let network =
                move |x: &Tensor| linear.forward(&x.to_dtype(dtype)?)?.to_dtype(DType::F32);
            Ok(candle(network))
        })?;
        let words = format!(
            "the parameter fc.weight has type {dtype:?}, and only F32 is trained; build the network"
        );
        says(
            &words,
            Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y),
        )?;
        // what it says to do
        let net = DataParallel::new(&cpus(2), Initializer::Normal(0.1), 0, move |vb| {
            let linear = candle_nn::linear(3, 2, vb.pp("fc"))?;
            let (weight, bias) = (linear.weight().clone(), linear.bias().unwrap().clone());
            let network = move |x: &Tensor| {
                let y = x.to_dtype(dtype)?.matmul(&weight.to_dtype(dtype)?.t()?)?;
                y.to_dtype(DType::F32)?.broadcast_add(&bias)
            };
            Ok(candle(network))
        })?;
        Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    }
    Ok(())
}

/// With v = 0.5 · v + g and w −= lr · v, where the gradient of the loss w is 1 on each example.
#[test]
fn a_new_learning_rate_keeps_the_momentum() -> Result<()> {
    let network = |vb: VarBuilder<'_>| {
        let weight = vb.get_with_hints(1, "weight", candle_nn::Init::Const(0.0))?;
        Ok(candle(move |x: &Tensor| x.broadcast_mul(&weight)))
    };
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, network)?;
    let loss = |y_hat: &Value, _: &Tensor| Ok(y_hat.clone());
    let mut trainer = Trainer::new(&net, loss, sgd(1.0, 0.5));
    let ones = Tensor::ones(4, DType::F32, &Device::Cpu)?;
    for (lr, expected) in [(1.0, -1.0), (0.5, -1.75), (0.0, -1.75), (2.0, -5.5)] {
        trainer.set_lr(lr);
        trainer.step(&ones, &ones)?;
        let weight = net.parameter("weight", 1)?.to_vec1::<f32>()?;
        ensure!(weight == [expected], "lr {lr}: {weight:?}, not {expected}");
    }
    Ok(())
}

/// It is told from a rate that is too high, and batch norm's running statistics stay too.
#[test]
fn nan_in_the_input_changes_nothing() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Xavier(3.0), 0, with_batch_norm)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let (x, y) = formula_batch(0, 8)?;
    for value in [f32::NAN, f32::INFINITY] {
        let before = net.state_dict()?;
        let bad = Tensor::full(value, (1, 1, 28, 28), &Device::Cpu)?;
        let bad = Tensor::cat(&[&x.narrow(0, 0, 6)?, &bad, &x.narrow(0, 7, 1)?], 0)?;
        let words = format!("x has the value {value} in example 6 of the minibatch; no step was");
        says(&words, trainer.step(&bad, &y))?;
        near("nothing is changed", &before, &net.state_dict()?, 0.0)?;
        trainer.step(&x, &y)?; // and training goes on
    }
    let largest = Tensor::full(f32::MAX, (8, 1, 28, 28), &Device::Cpu)?;
    says("the loss is ", trainer.step(&largest, &y)) // the variance overflows
}

/// The first step of a network on two devices.
fn first_step(how: Replication, network: Build<Sequential>, x: &Tensor, y: &Tensor) -> Result<()> {
    let net = DataParallel::with(how, &cpus(2), Initializer::Layers, 0, network)?;
    let step = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(x, y);
    Ok(step.map(drop)?)
}

#[test]
fn mistakes_in_a_network_are_named() -> Result<()> {
    let (x, y) = formula_batch(0, 4)?;
    let refused = |words: &str, network: Build<Sequential>| {
        says(words, first_step(Replication::default(), network, &x, &y))
    };
    let words = "weight is requested twice: give each layer a name of its own with vb.pp";
    refused(words, |vb| {
        let first = Linear::new(10, 10, vb.clone())?;
        Ok(Sequential::new().add(first).add(Linear::new(10, 10, vb)?))
    })?;
    let words = "layer stem.conv: conv2d: x has 1 channels, weight has 3";
    refused(words, |vb| {
        let conv = Conv2d::new(3, 6, 5, vb.pp("stem.conv"))?;
        Ok(Sequential::new().add(Nhwc).add(conv))
    })?;
    let words = "layer fc: linear: x has 784 features, weight (O, I) has 700";
    refused(words, |vb| {
        let fc = Linear::new(700, 10, vb.pp("fc"))?;
        Ok(Sequential::new().add(Nhwc).add(Flatten).add(fc))
    })?;
    let words = "the loss does not depend on the parameter spare.weight; if that is meant, freeze it with \
                 Trainer::rate(\"spare.weight\", 0.0), or set allow_unused";
    refused(words, |vb| {
        Linear::without_bias(3, 3, vb.pp("spare"))?;
        let fc = Linear::new(784, 10, vb.pp("fc"))?;
        Ok(Sequential::new().add(Nhwc).add(Flatten).add(fc))
    })?;
    let net = DataParallel::new(&cpus(1), Initializer::Xavier(3.0), 0, small_net)?;
    let trainer = || Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let rate = |of, rate| trainer().rate(of, rate).map(drop);
    let names = "it has conv.weight, conv.bias, fc.weight, fc.bias";
    says(names, rate("con", 0.0))?;
    says(names, rate("fc.weights", 0.0))?;
    says("the rate of fc is -1", rate("fc", -1.0))?;
    rate("fc.", 0.0)?;
    rate("fc.weight", 0.0)?;
    Ok(())
}

/// Where a network finds variables that are not its own.
fn elsewhere() -> VarBuilder<'static> {
    static ELSEWHERE: LazyLock<VarMap> = LazyLock::new(VarMap::new);
    VarBuilder::from_varmap(&ELSEWHERE, DType::F32, &Device::Cpu)
}

/// Networks that would take every step without an error, and not train.
#[test]
fn what_would_not_train_is_named() -> Result<()> {
    let x = formula_tensor(0, 1.0, &[12, 8])?;
    let y = Tensor::from_iter((0..12u32).map(|i| i % 3), &Device::Cpu)?;
    let norm: Build<Sequential> = |vb| {
        let norm = candle_nn::layer_norm(8, 1e-5, vb.pp("norm"))?;
        let fc = Linear::new(8, 3, vb.pp("fc"))?;
        Ok(Sequential::new().add(candle(norm)).add(fc))
    };
    for allow_unused in [false, true] {
        let how = Replication {
            allow_unused,
            ..Replication::default()
        };
        let words = "the gradients of norm.weight and norm.bias are missing";
        says(words, first_step(how, norm, &x, &y))?;
    }
    let refused = |words: &str, network: Build<Sequential>| {
        says(words, first_step(Replication::default(), network, &x, &y))
    };
    let words =
        "cannot be checked: on numbers between 0.1 and 1.1 it gives another result each time";
    refused(words, |vb| {
        let fc = candle_nn::linear(8, 3, vb)?;
        let dropout = move |x: &Tensor| candle_nn::ops::dropout(&x.apply(&fc)?, 0.5);
        Ok(Sequential::new().add(candle(dropout)))
    })?;
    let words = "layer other: a variable of shape [3, 8] is no parameter of this network";
    refused(words, |vb| {
        let fc = Linear::new(8, 8, vb.pp("fc"))?;
        let other = Linear::new(8, 3, elsewhere().pp("other"))?;
        Ok(Sequential::new().add(fc).add(other))
    })?;
    let words = "a variable of shape [3] is no parameter of this network";
    refused(words, |vb| {
        let fc = Linear::new(8, 8, vb.pp("fc"))?;
        let other = candle(candle_nn::linear(8, 3, elsewhere())?);
        Ok(Sequential::new().add(fc).add(other))
    })?;
    let empty: Build<Sequential> = |_| Ok(Sequential::new().add(Relu));
    refused("the network has no parameters", empty)?;

    // one output for each example is no class
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| Linear::new(8, 1, vb))?;
    let data = || [Ok((x.clone(), y.clone()))];
    let accuracy = evaluate_accuracy(&net, data()).map(drop);
    says("accuracy: y_hat has shape [6, 1], one class", accuracy)
}

/// A weight that its function computes, or draws, stays as it was in the first moment: where a file is loaded, where the
/// layer is frozen, and in training.
#[test]
fn a_network_follows_its_parameters() -> Result<()> {
    fn linear(weight: Tensor) -> impl Network {
        candle(move |x: &Tensor| x.matmul(&weight))
    }
    fn weight(vb: &VarBuilder<'_>) -> candle_core::Result<Tensor> {
        let drawn = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        vb.get_with_hints((4, 4), "weight", drawn)
    }
    type Weight = fn(VarBuilder<'_>) -> candle_core::Result<Tensor>;
    let doubled: Weight = |vb| weight(&vb)? * 2.0;
    let copied: Weight = |vb| weight(&vb)?.t()?.contiguous();
    let of_ones: Weight = |vb| {
        vb.get_with_hints((4, 4), "weight", candle_nn::init::ONE)?
            .sqr()
    };
    let drawn: Weight = |vb| weight(&vb)?.randn_like(0.0, 1.0);
    let view: Weight = |vb| weight(&vb)?.t();
    let constant: Weight = |vb| weight(&vb)?.zeros_like();
    let says_so = "built a second time with the same parameters, the network has other outputs";
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    let y = formula_tensor(2, 1.0, &[6, 4])?;
    for (name, of, follows) in [
        ("doubled", doubled, false),
        ("copied", copied, false),
        ("of ones", of_ones, false),
        ("drawn", drawn, false),
        ("view", view, true),
        ("constant", constant, true),
    ] {
        for k in [1, 2] {
            let net =
                || {
                    DataParallel::new(&cpus(k), Initializer::Layers, 0, move |vb| {
                        let layer = linear(of(vb.pp("first"))?);
                        let head = Linear::new(4, 4, vb.pp("head"))?;
                        Ok(move |x: &Value, train: bool| {
                            head.forward(&layer.forward(x, train)?, train)
                        })
                    })
                };
            let forward = net()?.forward(&x);
            let frozen = net()?;
            let mut trainer = Trainer::new(&frozen, squared_error, Sgd::new(0.1))
                .rate("first", 0.0)?
                .check_gradients(false);
            let step = trainer.step(&x, &y);
            let of_network = net()?;
            ensure!(
                follows == forward.is_ok() && follows == step.is_ok(),
                "{name} on {k}: {forward:?}, {step:?}"
            );
            if !follows {
                says(says_so, forward)?;
                says(says_so, step)?;
                let by_metric = evaluate_accuracy(&of_network, [Ok((x.clone(), y.clone()))]);
                says(says_so, by_metric)?;
            }
        }
    }
    Ok(())
}

/// A closure does not know whether it trains, a `ModuleT` does.
#[test]
fn inference_moves_no_statistics() -> Result<()> {
    struct Norm(candle_nn::BatchNorm, candle_nn::Linear);
    impl ModuleT for Norm {
        fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
            x.apply_t(&self.0, train)?.apply(&self.1)
        }
    }
    fn parts(vb: VarBuilder<'_>) -> candle_core::Result<Norm> {
        let norm = candle_nn::batch_norm(4, 1e-5, vb.pp("norm"))?;
        Ok(Norm(norm, candle_nn::linear(4, 3, vb.pp("fc"))?))
    }
    let closure = |vb: VarBuilder<'_>| {
        let parts = parts(vb)?;
        Ok(candle(move |x: &Tensor| parts.forward_t(x, true)))
    };
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    let y = Tensor::from_iter((0..6u32).map(|i| i % 3), &Device::Cpu)?;
    let words = "the network moves norm.running_mean in inference: a closure does not know";
    for k in [1, 2] {
        let net = || DataParallel::new(&cpus(k), Initializer::Layers, 0, closure);
        let net = net()?;
        says(words, net.forward(&x))?;
        says(words, evaluate_accuracy(&net, [Ok((x.clone(), y.clone()))]))?;
        let module = |vb: VarBuilder<'_>| Ok(candle(parts(vb)?));
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, module)?;
        net.forward(&x)?;
    }
    Ok(())
}

/// A network that leaves a layer out in some of its calls, seldom or in half of them, is none that keeps a tensor; nor is a
/// panic where it is built again, or where an own layer is called once.
#[test]
fn what_cannot_be_compared_is_not_refused() -> Result<()> {
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    let y = Tensor::from_iter((0..6u32).map(|i| i % 3), &Device::Cpu)?;
    for (seed, share) in (0..400).zip([0.02, 0.1, 0.5, 0.9].into_iter().cycle()) {
        let built = AtomicU32::new(0);
        let draws = move |vb: VarBuilder<'_>| {
            let head = candle_nn::linear(4, 4, vb)?;
            let coin = generator(seed, b"coin", built.fetch_add(1, Relaxed));
            let coin = Mutex::new(coin);
            Ok(candle(move |x: &Tensor| {
                let is_left_out = coin.lock().unwrap().random_bool(share);
                let y = head.forward(x)?;
                if is_left_out { y * 0.5 } else { Ok(y) }
            }))
        };
        let of = || format!("seed {seed}, {share}");
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, draws)?;
        net.forward(&x).with_context(of)?;
        let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        let stepped = trainer.check_gradients(false).step(&x, &y);
        stepped.with_context(of)?;
        // the check of gradients says that it draws, if it says anything
        let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        if let Err(error) = trainer.within_shards().step(&x, &y) {
            let words = "draws random numbers only with `train`";
            ensure!(error.to_string().contains(words), "{}: {error}", of());
        }
    }
    let built = AtomicBool::new(false);
    let once = move |vb: VarBuilder<'_>| {
        assert!(!built.swap(true, Relaxed), "it was built");
        Linear::new(4, 4, vb)
    };
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, once)?;
    net.forward(&x)?;
    Ok(())
}

/// The loss moves each example by the sign of its gradient. With the check of gradients this is an error, which says how
/// it can be trained.
#[test]
fn adversarial_training_is_possible() -> Result<()> {
    let x = formula_tensor(0, 1.0, &[12, 8])?;
    let y = Tensor::from_iter((0..12u32).map(|i| i % 3), &Device::Cpu)?;
    let train = |k: usize, checks: bool| -> Result<Vec<Tensor>> {
        let adversarial = |net: &Linear, x: &[Value], y: &[Tensor]| {
            let moved = Var::from_tensor(&x[0].eval()?)?;
            let loss = cross_entropy(&net.forward(&Value::new(&moved)?, true)?, &y[0])?;
            let mut gradients = Gradients::new([("x", &moved)], usize::MAX)?;
            gradients.backward(&loss.sum()?)?;
            let gradient = gradients.values()?[0].reshape(moved.shape())?;
            let x = (moved.as_detached_tensor() + (gradient.sign()? * 0.1)?)?;
            cross_entropy(&net.forward(&Value::new(&x)?, true)?, &y[0])
        };
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, |vb| Linear::new(8, 3, vb))?;
        let mut trainer = Trainer::with(&net, adversarial, Sgd::new(0.5))?.check_gradients(checks);
        let losses = (0..20).map(|_| Ok(trainer.step(&x, &y)?.loss.mean()?));
        let losses = losses.collect::<Result<Vec<f32>>>()?;
        ensure!(losses[19] < losses[0], "{losses:?}");
        Ok(vec![net.parameter("weight", 0)?, net.parameter("bias", 0)?])
    };
    let words = "an input in adversarial training, needs Trainer::check_gradients(false)";
    says(words, train(2, true))?;
    for (one, two) in train(1, false)?.iter().zip(&train(2, false)?) {
        ensure!(largest_difference(one, two)? < 1e-6);
    }
    Ok(())
}

/// Each replica would move it at the same time, and set it back to what another one had made of it. And a network may
/// begin with a part that is not trained.
#[test]
fn a_check_leaves_shared_and_frozen_parts_alone() -> Result<()> {
    let frozen = Var::from_tensor(&formula_tensor(1, 0.3, &[784, 32])?)?;
    let before = frozen.as_tensor().copy()?;
    let shared = frozen.as_tensor().clone();
    let network = |cut: bool| {
        let shared = shared.clone();
        move |vb: VarBuilder<'_>| {
            let (shared, fc) = (shared.clone(), candle_nn::linear(32, 10, vb.pp("fc"))?);
            Ok(candle(move |x: &Tensor| {
                let h = x.flatten_from(1)?.matmul(&shared)?.tanh()?;
                fc.forward(&if cut { h.detach() } else { h })
            }))
        }
    };
    let (x, y) = formula_batch(0, 8)?;
    for i in 0..20 {
        let is_cut = i % 2 == 0;
        let net = DataParallel::new(&cpus(4), Initializer::Layers, 0, network(is_cut))?;
        let step = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y);
        if is_cut {
            step?;
        } else {
            let words = "variable of shape [784, 32] is no parameter of this network";
            says(words, step)?;
        }
        let changed = largest_difference(&before, &frozen)? != 0.0;
        ensure!(!changed, "it was changed");
    }
    Ok(())
}

/// A part that is cut off, a table, and integers: whatever is frozen keeps its bits, and the rest trains.
#[test]
fn a_frozen_part_needs_no_gradient() -> Result<()> {
    let build = |vb: VarBuilder<'_>| {
        let ids =
            vb.get_with_hints_dtype(8, "frozen.ids", candle_nn::Init::Const(3.0), DType::I64)?;
        let table = vb.get_with_hints(8, "frozen.table", candle_nn::Init::Const(2.0))?;
        let below = candle_nn::linear(8, 6, vb.pp("frozen.below"))?;
        let head = candle_nn::linear(6, 3, vb.pp("head"))?;
        Ok(candle(move |x: &Tensor| {
            let places = ids.to_dtype(DType::F32)?.sin()?;
            let x = x.broadcast_mul(&table.detach())?.broadcast_add(&places)?;
            head.forward(&below.forward(&x)?.tanh()?.detach())
        }))
    };
    let net = || DataParallel::new(&cpus(2), Initializer::Layers, 0, build);
    let x = formula_tensor(0, 1.0, &[6, 8])?;
    let y = Tensor::from_iter((0..6u32).map(|i| i % 3), &Device::Cpu)?;
    let whole = net()?;
    whole.check_replicas()?; // integers too
    let words = "the parameter frozen.ids has type I64, and only F32 is trained; Trainer::rate(\"frozen.ids\", 0.0)";
    says(
        words,
        Trainer::new(&whole, cross_entropy, Sgd::new(0.1)).step(&x, &y),
    )?;
    let trainer = Trainer::new(&whole, cross_entropy, Sgd::new(0.1)).rate("frozen.ids", 0.0)?;
    let mut trainer = trainer.rate("frozen.table", 0.0)?;
    let words = "the gradients of frozen.below.weight and frozen.below.bias are missing";
    says(words, trainer.step(&x, &y))?;
    let way_out = "as by detach, has to be frozen: Trainer::rate(\"frozen.below\", 0.0)";
    says(way_out, trainer.step(&x, &y))?;
    let before = whole.state_dict()?;
    let mut trainer = trainer.rate("frozen", 0.0)?;
    for _ in 0..3 {
        trainer.step(&x, &y)?;
    }
    for ((name, before), (_, after)) in before.iter().zip(whole.state_dict()?) {
        let apart = before.ne(&after)?.to_dtype(DType::F32)?.sum_all()?;
        let is_same = apart.to_scalar::<f32>()? == 0.0;
        ensure!(is_same == name.starts_with("frozen"), "{name}");
    }
    // what is trained again is checked again
    let mut trainer = trainer.rate("frozen.below", 1.0)?;
    says(words, trainer.step(&x, &y))
}

/// An embedding of tokens, and candle's layer norm beside a shortcut: it has no gradient.
#[test]
fn tokens_train_beside_a_shortcut() -> Result<()> {
    let build = |fused: bool| {
        move |vb: VarBuilder<'_>| {
            let embedding = candle_nn::embedding(7, 8, vb.pp("embedding"))?;
            let norm = candle_nn::layer_norm(8, 1e-5, vb.pp("norm"))?;
            let fc = candle_nn::linear(8, 10, vb.pp("fc"))?;
            Ok(candle(move |x: &Tensor| {
                let x = embedding.forward(x)?;
                let bias = norm.bias().unwrap();
                let y = match fused {
                    true => norm.forward(&x)?,
                    false => candle_nn::ops::layer_norm_slow(&x, norm.weight(), bias, 1e-5)?,
                };
                fc.forward(&(x + y)?.mean(1)?)
            }))
        }
    };
    let x = Tensor::new(&[[0u32, 6, 3], [1, 1, 2], [5, 4, 0]], &Device::Cpu)?;
    let y = Tensor::new(&[3u32, 0, 9], &Device::Cpu)?;
    let step = |fused, k| {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, build(fused))?;
        let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        trainer.step(&x, &y)?;
        anyhow::Ok(net.state_dict()?)
    };
    says("the gradient of the variables is wrong", step(true, 1))?;
    near("two replicas", &step(false, 1)?, &step(false, 2)?, 1e-6)
}
