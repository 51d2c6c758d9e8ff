//! A number that cannot be used is an error where it comes in, before anything has happened: settings of optimizers,
//! schedules, initializers, targets, states. A network whose parameters have become NaN says so, and is no refused step.

use std::collections::HashMap;
use std::mem::discriminant;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use data_parallel::functional::{
    Network, Slice, Value, binary_cross_entropy, candle, squared_error,
};
use data_parallel::layers::{BatchNorm2d, Flatten, Linear, Relu, Sequential};
use data_parallel::training::DataIter;
use data_parallel::{
    AdamW, Checkpoints, DataParallel, Error, Initializer, Optimizer, Replication, Sgd, Trainer,
    evaluate, predict, schedule,
};

use crate::kit::{cpus, formula_tensor, has, says, sgd};
use crate::own_optimizer::own;
use crate::states::{everything, same};

const INFINITY: f64 = f64::INFINITY;

fn linear(vb: VarBuilder<'_>) -> candle_core::Result<Linear> {
    Linear::new(3, 2, vb.pp("fc"))
}

/// Two linear layers with a ReLU between them.
fn two_layers(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let net = Sequential::new().add(Linear::new(3, 4, vb.pp("0"))?);
    Ok(net.add(Relu).add(Linear::new(4, 2, vb.pp("2"))?))
}

/// Inputs, and targets from 0 to 1.
fn minibatch() -> Result<(Tensor, Tensor)> {
    let x = formula_tensor(1, 1.0, &[6, 3])?;
    let y = formula_tensor(2, 1.0, &[6, 2])?.clamp(0f32, 1f32)?;
    Ok((x, y))
}

/// The error of a result.
fn error_of<T>(result: candle_core::Result<T>) -> Result<Error> {
    let error = result.map(drop).err().context("no error")?;
    Ok(Error::from(error))
}

/// Checks that a result is an error of this kind that has some words.
pub fn is<T>(
    kind: fn(candle_core::Error) -> Error,
    words: &str,
    result: candle_core::Result<T>,
) -> Result<()> {
    let error = error_of(result)?;
    let expected = discriminant(&kind(candle_core::Error::Msg(String::new())));
    ensure!(discriminant(&error) == expected, "{error:?}");
    has(&error.to_string(), words)
}

fn of_sgd(change: impl FnOnce(&mut Sgd)) -> Settings {
    let mut sgd = sgd(0.1, 0.9);
    change(&mut sgd);
    Settings::Sgd(sgd)
}

fn of_adamw(change: impl FnOnce(&mut AdamW)) -> Settings {
    let mut adamw = AdamW::default();
    change(&mut adamw);
    Settings::AdamW(adamw)
}

/// Settings that an optimizer cannot have, and the words of their error.
fn bad_settings() -> Vec<(String, Settings)> {
    let mut all = Vec::new();
    let mut add = |field: &str, values: &[f64], set: fn(f64) -> Settings| {
        for value in values.iter().chain(&[f64::NAN]) {
            all.push((format!("{field} is {value}"), set(*value)));
        }
    };
    add("Sgd: lr", &[-1.0, INFINITY], |x| of_sgd(|sgd| sgd.lr = x));
    add("Sgd: momentum", &[-0.9, INFINITY], |x| {
        of_sgd(|sgd| sgd.momentum = x)
    });
    add("Sgd: weight_decay", &[-1e-4, INFINITY], |x| {
        of_sgd(|sgd| sgd.weight_decay = x)
    });
    add("AdamW: lr", &[-1e-3, INFINITY], |x| {
        of_adamw(|adamw| adamw.lr = x)
    });
    add("AdamW: beta1", &[1.0, 1.5, -0.5], |x| {
        of_adamw(|adamw| adamw.beta1 = x)
    });
    add("AdamW: beta2", &[1.0, 1.2, -0.1], |x| {
        of_adamw(|adamw| adamw.beta2 = x)
    });
    add("AdamW: eps", &[-1.0, INFINITY], |x| {
        of_adamw(|adamw| adamw.eps = x)
    });
    add("AdamW: weight_decay", &[-10.0, INFINITY], |x| {
        of_adamw(|adamw| adamw.weight_decay = x)
    });
    let nesterov = of_sgd(|sgd| (sgd.momentum, sgd.nesterov) = (0.0, true));
    all.push(("Sgd: nesterov needs a momentum".to_owned(), nesterov));
    all
}

#[derive(Debug, Clone, Copy)]
enum Settings {
    Sgd(Sgd),
    AdamW(AdamW),
}

impl Settings {
    fn trainer(self, net: &DataParallel) -> Trainer {
        match self {
            Settings::Sgd(sgd) => Trainer::new(net, squared_error, sgd),
            Settings::AdamW(adamw) => Trainer::new(net, squared_error, adamw),
        }
    }

    fn trainer_of_network(self, net: &DataParallel) -> candle_core::Result<Trainer> {
        let losses = |net: &Linear, x: &[Value], y: &[Tensor]| {
            squared_error(&net.forward(&x[0], true)?, &y[0])
        };
        match self {
            Settings::Sgd(sgd) => Trainer::with(net, losses, sgd),
            Settings::AdamW(adamw) => Trainer::with(net, losses, adamw),
        }
    }
}

/// The first step says it, and a run does not begin. It is no refused step: with the next minibatch it would be the same.
#[test]
fn settings_of_optimizers_are_looked_at_before_anything_happens() -> Result<()> {
    let (x, y) = minibatch()?;
    let mut missed = Vec::new();
    for (i, (words, settings)) in bad_settings().into_iter().enumerate() {
        let k = 1 + i % 3;
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, linear)?;
        let checked = || -> Result<()> {
            let good = Trainer::new(&net, squared_error, sgd(0.1, 0.9));
            let before = everything(&net, &good)?;
            for accumulate in [1, 2] {
                let mut bad = settings.trainer(&net).accumulate(accumulate)?;
                is(Error::Other, &words, bad.step(&x, &y))?;
                ensure!(bad.steps() == 0 && bad.is_between_steps());
                says(&words, bad.backward(&x, &y))?;
            }
            says(&words, settings.trainer_of_network(&net))?;
            let place = tempfile::tempdir()?;
            let folder = place.path().join("run");
            let mut bad = settings.trainer(&net);
            says(&words, Checkpoints::open(&folder, &mut bad))?;
            ensure!(!folder.exists());
            same(&words, &before, &everything(&net, &good)?)?;
            Trainer::new(&net, squared_error, sgd(0.1, 0.9)).step(&x, &y)?;
            Ok(())
        };
        if let Err(error) = checked() {
            missed.push(format!("{words}: {error:#}"));
        }
    }
    ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

/// The ranges are PyTorch's, which are not those of common sense.
#[test]
fn settings_at_the_ends_of_their_ranges_train() -> Result<()> {
    let all = [
        Settings::Sgd(Sgd::new(0.0)),
        Settings::Sgd(sgd(0.1, 1.5)),
        of_sgd(|sgd| (sgd.momentum, sgd.nesterov, sgd.weight_decay) = (1.0, true, 2.0)),
        of_adamw(|adamw| (adamw.beta1, adamw.beta2) = (0.0, 0.0)),
        of_adamw(|adamw| (adamw.eps, adamw.weight_decay) = (0.0, 0.0)),
        of_adamw(|adamw| adamw.lr = 0.0),
        of_adamw(|adamw| (adamw.eps, adamw.weight_decay) = (1.0, 10.0)),
    ];
    let (x, y) = minibatch()?;
    for settings in all {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
        let mut trainer = settings.trainer(&net);
        for _ in 0..3 {
            let loss = trainer.step(&x, &y)?.loss.mean()?;
            ensure!(loss.is_finite(), "{settings:?}: {loss}");
        }
    }
    Ok(())
}

/// By a schedule, and by `set_lr` while gradients wait.
#[test]
fn a_rate_that_is_no_number_names_the_step() -> Result<()> {
    let (x, y) = minibatch()?;
    for (k, rate) in [(1, f64::NAN), (2, INFINITY), (3, -1.0)] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, linear)?;
        let trainer = Trainer::new(&net, squared_error, sgd(1.0, 0.9));
        let mut trainer = trainer.schedule(move |step| if step < 2 { 0.1 } else { rate });
        trainer.step(&x, &y)?;
        trainer.step(&x, &y)?;
        let before = everything(&net, &trainer)?;
        let words = format!("the learning rate of step 3 is {rate}; expected a finite number, 0");
        is(Error::Other, &words, trainer.step(&x, &y))?;
        same(&words, &before, &everything(&net, &trainer)?)?;
        trainer.set_lr(0.0);
        ensure!(rate == -1.0 || trainer.step(&x, &y).is_err()); // 0 · ∞ is none either
        trainer.set_lr(1.0);
        trainer = trainer.schedule(|_| 0.1);
        trainer.step(&x, &y)?;
        trainer.backward(&x, &y)?;
        trainer.set_lr(10.0 * rate);
        let words = format!("the learning rate of step 4 is {rate}");
        is(Error::Other, &words, trainer.flush())?;
        is(Error::Other, &words, trainer.step(&x, &y))?;
        ensure!(!trainer.is_between_steps(), "its gradients wait");
        trainer.set_lr(1.0);
        trainer.flush()?;
        ensure!(trainer.steps() == 4);
        net.check_replicas()?;
    }
    Ok(())
}

/// What is other than in PyTorch: behind their ends.
#[test]
fn schedules_end_as_their_documentation_says() -> Result<()> {
    let near = |ours: f64, theirs: f64| (ours - theirs).abs() < 1e-6;
    ensure!([5, 6, 100].map(schedule::linear(5)) == [0.0; 3]);
    // CosineAnnealingLR rises again
    ensure!(near(schedule::cosine(5)(5), 0.0));
    ensure!([6, 7, 100].map(schedule::cosine(5)) == [0.0; 3]);
    // OneCycleLR raises an error
    let last = schedule::one_cycle(11)(10);
    ensure!([11, 100].map(schedule::one_cycle(11)) == [last; 2] && near(last, 4e-6));
    Ok(())
}

/// As labels of `cross_entropy`: not after the step, and not as a loss below 0.
#[test]
fn targets_of_binary_cross_entropy_are_from_0_to_1() -> Result<()> {
    let (x, good) = minibatch()?;
    for (k, bad, value) in [
        (1, 2.0, "2"),
        (2, -1.0, "-1"),
        (3, 255.0, "255"),
        (2, f32::NAN, "NaN"),
        (1, f32::INFINITY, "inf"),
        (3, 1.001, "1.001"),
    ] {
        for accumulate in [1, 2] {
            let run = |with_bad: bool| -> Result<_> {
                let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, two_layers)?;
                let trainer = Trainer::new(&net, binary_cross_entropy, AdamW::default());
                // the targets themselves are looked at, also where others are not
                let mut trainer = trainer.accumulate(accumulate)?.check_numbers(false);
                for _ in 0..3 {
                    if with_bad {
                        let mut values: Vec<f32> = good.flatten_all()?.to_vec1()?;
                        values[11] = bad; // of the last example, on the last replica
                        let y = Tensor::from_vec(values, (6, 2), &Device::Cpu)?;
                        let example = 6usize.div_ceil(k) - 1;
                        let words = format!(
                            "binary_cross_entropy: y has the value {value} in example {example}, element 1; expected 0 to 1"
                        );
                        is(Error::StepRefused, &words, trainer.step(&x, &y))?;
                    }
                    for _ in 0..accumulate {
                        trainer.step(&x, &good)?;
                    }
                }
                everything(&net, &trainer)
            };
            same(value, &run(false)?, &run(true)?)?;
        }
    }
    Ok(())
}

/// In a metric, and where it is one number for each example. Rounding is not refused.
#[test]
fn targets_are_looked_at_outside_of_steps_too() -> Result<()> {
    let losses = |y: &[f32]| {
        let y_hat = Value::new(&Tensor::zeros(y.len(), DType::F32, &Device::Cpu)?)?;
        binary_cross_entropy(&y_hat, &Tensor::new(y, &Device::Cpu)?)?.eval()
    };
    says(
        "y has the value -3 in example 1; expected 0 to 1",
        losses(&[0.0, -3.0, 5.0]),
    )?;
    let y = Tensor::full(0.5f32, 9000, &Device::Cpu)?;
    let large: Vec<f32> = y.to_vec1()?;
    losses(&large)?;
    let mut late = large;
    late[8999] = 7.0;
    says("y has the value 7 in example 8999;", losses(&late))?;
    losses(&[1.0000001, -1e-7, 1.0, 0.0])?;
    Ok(())
}

/// An optimizer whose step number `at` makes all parameters NaN.
fn breaks(at: u64) -> impl Optimizer {
    own(&[], move |slice| {
        let breaks = slice.step == at;
        slice.each(|p, sum, []| *p = if breaks { f32::NAN } else { *p - 1e-3 * sum })
    })
}

/// A loop that leaves out refused steps ends, evaluations and files name the parameter, and a checkpoint brings the
/// network back.
#[test]
fn a_network_that_an_update_has_broken_is_lost() -> Result<()> {
    type Make = fn(&DataParallel) -> Trainer;
    let kinds: [(&str, Make); 5] = [
        ("an optimizer of one's own", |net| {
            Trainer::new(net, squared_error, breaks(2))
        }),
        ("AdamW with eps 0", |net| {
            of_adamw(|adamw| adamw.eps = 0.0).trainer(net)
        }),
        ("a rate of 3e38", |net| {
            Trainer::new(net, squared_error, Sgd::new(3e38))
        }),
        ("an infinite rate in f32", |net| {
            of_adamw(|adamw| adamw.lr = 1e300).trainer(net)
        }),
        ("a rate by name", |net| {
            let trainer = Trainer::new(net, squared_error, sgd(0.01, 0.9));
            let trainer = trainer.rate("0", 0.0).and_then(|t| t.rate("2", 1e308));
            trainer.expect("rates that are finite")
        }),
    ];
    let mut missed = Vec::new();
    for (what, make) in kinds {
        for (k, accumulate) in [(1, 1), (2, 2), (3, 1)] {
            let checked = is_lost(what, make, k, accumulate);
            if let Err(error) = checked {
                missed.push(format!("{what}, k = {k}: {error:#}"));
            }
        }
    }
    ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}

fn is_lost(
    what: &str,
    make: fn(&DataParallel) -> Trainer,
    k: usize,
    accumulate: usize,
) -> Result<()> {
    let (x, y) = minibatch()?;
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, two_layers)?;
    if what.contains("eps") {
        let mut state = net.state_dict()?;
        let dead = state.iter_mut().find(|(name, _)| name == "0.bias");
        let dead = dead.context("no bias")?;
        dead.1 = Tensor::full(-100f32, 4, &Device::Cpu)?;
        net.load_state_dict(&state)?;
    }
    let mut trainer = make(&net).accumulate(accumulate)?;
    let good = (net.state_dict()?, trainer.state_dict()?);
    let mut lost = None;
    for _ in 0..12 {
        match trainer.step(&x, &y).map_err(Error::from) {
            Ok(_) | Err(Error::StepRefused(_)) => {}
            Err(other) => {
                lost = Some(other);
                break;
            }
        }
    }
    let lost = lost.context("a loop that leaves out refused steps does not end")?;
    ensure!(matches!(lost, Error::Diverged(_)), "{lost:?}");
    let said = lost.to_string();
    has(&said, "the network is lost")?;
    has(&said, "load a checkpoint")?;
    // again and again, and with another trainer
    for again in [
        &mut trainer,
        &mut Trainer::new(&net, squared_error, sgd(0.1, 0.0)),
    ] {
        is(Error::Diverged, "", again.step(&x, &y))?;
    }
    let data = DataIter::of_tensors(&x, &y, 4, None)?;
    if what.contains("3e38") {
        return Ok(()); // its parameters are finite, of which the squares are not
    }
    let evaluated = evaluate(&net, &data, |_, _| Ok([1.0]));
    is(Error::Diverged, "the network is lost", evaluated)?;
    let predicted = predict(&net, &data);
    is(Error::Diverged, "the network is lost", predicted)?;
    let place = tempfile::tempdir()?;
    says("tensor \"", net.save(place.path().join("net.safetensors")))?;
    // back
    net.load_state_dict(&good.0)?;
    trainer.load_state_dict(good.1)?;
    evaluate(&net, &data, |_, _| Ok([1.0]))?;
    Trainer::new(&net, squared_error, sgd(0.01, 0.0)).step(&x, &y)?;
    Ok(())
}

/// Of a trainer, and of its network.
#[test]
fn numbers_of_a_state_are_looked_at() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| {
        let bn = BatchNorm2d::new(3, vb.pp("bn"))?;
        Ok(Sequential::new()
            .add(bn)
            .add(Flatten)
            .add(Linear::new(3, 2, vb.pp("fc"))?))
    })?;
    let x = formula_tensor(1, 1.0, &[6, 1, 1, 3])?;
    let y = formula_tensor(2, 1.0, &[6, 2])?;
    let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
    trainer.step(&x, &y)?;
    trainer.set_lr(0.01);
    let state = trainer.state_dict()?;
    let of_network = net.state_dict()?;
    trainer.step(&x, &y)?;
    let before = everything(&net, &trainer)?;
    fn first(t: &Tensor, value: f64) -> candle_core::Result<Tensor> {
        let flat = t.flatten_all()?;
        let value = Tensor::full(value, 1, &Device::Cpu)?.to_dtype(t.dtype())?;
        let rest = flat.narrow(0, 1, flat.elem_count() - 1)?;
        Tensor::cat(&[value, rest], 0)?.reshape(t.shape())
    }
    type Change<'a> = &'a dyn Fn(&Tensor) -> candle_core::Result<Tensor>;
    let place = tempfile::tempdir()?;
    let file = place.path().join("changed.safetensors");
    // the error names the entry, and goes on with the words
    let refused = |trainer: &mut Trainer, entry: &str, words: &str, change: Change| -> Result<()> {
        let words = &format!("{entry}{words}");
        let is_of_network = of_network.iter().any(|(name, _)| name == entry);
        let mut changed = if is_of_network { &of_network } else { &state }.clone();
        let found = changed.iter_mut().find(|(name, _)| name == entry);
        let (_, tensor) = found.context("no such entry")?;
        *tensor = change(tensor)?;
        if is_of_network {
            let by_name: HashMap<_, _> = changed.iter().cloned().collect();
            candle_core::safetensors::save(&by_name, &file)?;
            says(words, net.load_state_dict(&changed))?;
            says(words, net.load(&file))?;
        } else {
            says(words, trainer.load_state_dict(changed))?;
        }
        same(words, &before, &everything(&net, trainer)?)
    };
    for (entry, value, words) in [
        ("replica 1 bn.running_var", f64::NAN, "\" contains NaN"),
        ("replica 1 bn.running_var", -1.0, "\" contains -1"),
        ("replica 1 bn.running_var", INFINITY, "\" contains NaN or"),
        ("replica 1 bn.running_mean", f64::NAN, "\" contains NaN"),
        ("steps", -5.0, ": -5; expected 0 or more"),
        ("steps", 1e19, ": 9223372036854775807; expected 0 or"),
        ("exp_avg fc.weight", INFINITY, " contains inf"),
        ("exp_avg fc.weight", f64::NAN, " contains NaN"),
        ("exp_avg fc.bias", -INFINITY, " contains -inf"),
        ("exp_avg_sq fc.bias", f64::NAN, " contains NaN"),
        ("exp_avg_sq fc.bias", -0.5, " contains -0.5; expected 0 or"),
        ("lr", f64::NAN, " is NaN"),
        ("lr", -1.0, " is -1"),
        ("lr", INFINITY, " is inf"),
        ("bn.running_var", -0.5, "\" contains -0.5"),
        ("bn.running_var", f64::NAN, "\" contains NaN"),
        ("bn.running_mean", f64::NAN, "\" contains NaN"),
        ("fc.weight", INFINITY, "\" contains NaN or infinity"),
    ] {
        refused(&mut trainer, entry, words, &|t| first(t, value))?;
    }
    let f64_of = |t: &Tensor, value| first(&t.to_dtype(DType::F64)?, value);
    let changes: [(&str, &str, Change); 8] = [
        ("steps", ": unexpected dtype", &|t| f64_of(t, f64::NAN)),
        ("steps", ": unexpected rank", &|t| t.unsqueeze(0)),
        ("steps", ": -1", &|_| {
            Tensor::new(&[1i64, 1, 1, 1, -1], &Device::Cpu)
        }),
        ("steps", ": of 5 parameters, the network has 4", &|t| {
            Tensor::cat(&[t, &t.narrow(0, 0, 1)?], 0)
        }),
        ("exp_avg_sq fc.bias", " contains inf", &|t| f64_of(t, 1e300)),
        (
            "exp_avg fc.bias",
            " has 6 elements, the parameter 2",
            &|t| t.repeat(3),
        ),
        ("lr", ": unexpected dtype", &|t| t.to_dtype(DType::F32)),
        (
            "fc.weight",
            "\" has type F64 and numbers that are too large for F32",
            &|t| f64_of(t, 1e300),
        ),
    ];
    for (entry, words, change) in changes {
        refused(&mut trainer, entry, words, change)?;
    }
    for (named, words) in [
        (None, "the checkpoint has no exp_avg fc.bias"),
        (
            Some("momentum fc.bias"),
            "momentum fc.bias is not this optimizer's or this network's",
        ),
        (
            Some("exp_avg other"),
            "exp_avg other is not this optimizer's or this network's",
        ),
    ] {
        let mut changed = state.clone();
        let at = changed
            .iter()
            .position(|(name, _)| name == "exp_avg fc.bias");
        let (_, tensor) = changed.remove(at.context("no such entry")?);
        changed.extend(named.map(|name| (name.to_owned(), tensor)));
        says(words, trainer.load_state_dict(changed))?;
        same(words, &before, &everything(&net, &trainer)?)?;
    }
    let mut without_state = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
    let words = "is not this optimizer's or this network's";
    says(words, without_state.load_state_dict(state))
}

/// A mean over so little is too large for a number.
#[test]
fn counts_that_are_nearly_0_have_no_mean() -> Result<()> {
    let (x, y) = minibatch()?;
    for count in [1e-320, 1e-40] {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
        let trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.0));
        let mut trainer = trainer.mean_over(move |_, _| Ok(count));
        let words = format!("the counts of mean_over add up to {count:?}, so there is no mean");
        says(&words, trainer.step(&x, &y))?;
        Trainer::new(&net, squared_error, sgd(0.1, 0.0)).step(&x, &y)?;
    }
    Ok(())
}

/// A checkpoint that could not be read again is not written.
#[test]
fn a_state_that_cannot_be_loaded_is_not_given() -> Result<()> {
    let (x, y) = minibatch()?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
    trainer.step(&(x * 1e12)?, &y)?; // squares that are too large for the mean of squares
    says("exp_avg_sq fc.weight contains inf", trainer.state_dict())?;
    let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
    trainer.set_lr(f64::NAN);
    says("lr is NaN", trainer.state_dict())
}

#[test]
fn numbers_of_initializers_are_looked_at() -> Result<()> {
    let mut missed = Vec::new();
    for value in [-1.0, f64::NAN, f64::INFINITY] {
        for (name, initializer) in [
            ("Normal", Initializer::Normal(value)),
            ("Xavier", Initializer::Xavier(value)),
        ] {
            let words =
                format!("Initializer::{name}({value:?}): expected a finite number, 0 or more");
            let net = DataParallel::new(&cpus(2), initializer, 0, linear);
            if let Err(error) = says(&words, net) {
                missed.push(format!("{error:#}"));
            }
        }
    }
    ensure!(missed.is_empty(), "{}", missed.join("\n"));
    for initializer in [Initializer::Normal(0.0), Initializer::Xavier(0.0)] {
        DataParallel::new(&cpus(1), initializer, 0, linear)?;
    }
    Ok(())
}

/// A rate that has to be above 1, and state that an update makes infinite.
#[derive(Debug)]
struct Checked {
    factor: f64,
    remembers: f32,
}

impl Optimizer for Checked {
    fn lr(&self) -> f64 {
        0.1
    }

    fn state(&self) -> &'static [&'static str] {
        &["memory"]
    }

    fn check(&self) -> candle_core::Result<()> {
        if self.factor.is_nan() || self.factor <= 1.0 {
            candle_core::bail!("Checked: factor is {}; expected more than 1", self.factor)
        }
        Ok(())
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> candle_core::Result<()> {
        for slice in slices {
            let scale = (slice.lr / slice.examples / self.factor) as f32;
            slice.each(|p, sum, [memory]| {
                *p -= scale * sum;
                *memory = self.remembers;
            })?;
        }
        Ok(())
    }
}

#[test]
fn an_optimizer_of_ones_own_has_such_a_check_too() -> Result<()> {
    let (x, y) = minibatch()?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let trainer = |factor, remembers| {
        let optimizer = Checked { factor, remembers };
        Trainer::new(&net, squared_error, optimizer)
    };
    let good = trainer(2.0, 0.0);
    let before = everything(&net, &good)?;
    for factor in [1.0, f64::NAN] {
        let words = format!("Checked: factor is {factor}; expected more than 1");
        says(&words, trainer(factor, 0.0).step(&x, &y))?;
        let mut waits = trainer(factor, 0.0);
        says(&words, waits.backward(&x, &y))?;
        waits.flush()?; // nothing waits
        same(&words, &before, &everything(&net, &good)?)?;
    }
    let mut remembers = trainer(2.0, f32::INFINITY);
    remembers.step(&x, &y)?;
    says("memory fc.bias contains inf", remembers.state_dict())
}

/// One trainer of a network breaks a part of it that the other only uses.
#[test]
fn a_trainer_says_that_another_one_has_broken_the_network() -> Result<()> {
    let (x, y) = minibatch()?;
    for k in [1, 2, 3] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, two_layers)?;
        let mut first = Trainer::new(&net, squared_error, breaks(1)).rate("2", 0.0)?;
        let mut second = Trainer::new(&net, squared_error, sgd(0.1, 0.9)).rate("0", 0.0)?;
        second.step(&x, &y)?;
        first.step(&x, &y)?;
        let flushed = second.backward(&x, &y).and_then(|_| second.flush());
        let words = "A step has made the parameter 0.weight NaN, so the network is lost";
        is(Error::Diverged, words, flushed)?;
        // without the check of numbers nothing is looked at
        Trainer::new(&net, squared_error, sgd(0.1, 0.9))
            .check_numbers(false)
            .step(&x, &y)?;
    }
    Ok(())
}

/// It was so when the network was built, and no step has made it so.
#[test]
fn a_mask_of_infinities_is_no_lost_network() -> Result<()> {
    let (x, y) = minibatch()?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| {
        let fc = Linear::new(3, 2, vb.pp("fc"))?;
        let masked = candle_nn::Init::Const(f64::NEG_INFINITY);
        let mask = vb.get_with_hints(2, "mask", masked)?;
        Ok(move |x: &Value, train: bool| {
            let mask = mask.exp()?.detach(); // zeros
            let add = candle(move |h: &Tensor| h.broadcast_add(&mask));
            add.forward(&fc.forward(x, train)?, train)
        })
    })?;
    let trainer = Trainer::new(&net, squared_error, sgd(0.1, 0.9));
    let mut trainer = trainer.rate("mask", 0.0)?;
    trainer.step(&x, &y)?;
    let data = DataIter::of_tensors(&x, &y, 4, None)?;
    evaluate(&net, &data, |_, _| Ok([1.0]))?;
    let nan = (&x * f64::NAN)?;
    is(
        Error::StepRefused,
        "",
        trainer.check_numbers(true).step(&nan, &y),
    )
}

/// A loop with checkpoints that leaves out refused steps ends, and the checkpoint before the update is still there.
#[test]
fn a_run_with_checkpoints_ends_at_the_update_that_broke_it() -> Result<()> {
    let (x, y) = minibatch()?;
    let place = tempfile::tempdir()?;
    let data = DataIter::of_tensors(&x, &y, 3, None)?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, two_layers)?;
    // both minibatches of the second epoch
    let mut trainer = Trainer::new(&net, squared_error, breaks(3));
    let mut checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
    let mut lost = None;
    'run: for epoch in checkpoints.epochs(3) {
        for batch in checkpoints.minibatches(&data, epoch) {
            let (x, y) = batch?;
            match trainer.step(&x, &y).map_err(Error::from) {
                Ok(_) | Err(Error::StepRefused(_)) => {}
                Err(error) => {
                    lost = Some(error);
                    break 'run;
                }
            }
        }
        checkpoints.end_epoch(0.0, &mut trainer)?;
    }
    let lost = lost.context("it ends")?;
    ensure!(matches!(lost, Error::Diverged(_)), "{lost:?}");
    says("NaN or infinity", checkpoints.save(&trainer))?;
    drop(checkpoints);
    let again = DataParallel::new(&cpus(2), Initializer::Layers, 0, two_layers)?;
    let mut trainer = Trainer::new(&again, squared_error, breaks(3));
    let checkpoints = Checkpoints::open(place.path(), &mut trainer)?;
    ensure!(trainer.steps() == 2 && checkpoints.history().len() == 1);
    evaluate(&again, &data, |_, _| Ok([1.0]))?;
    Ok(())
}

/// Its running statistics would be NaN too, and are not the cause. With synchronized norms the replicas wait for each other.
#[test]
fn a_broken_network_with_batch_norms_is_lost() -> Result<()> {
    let x = formula_tensor(1, 1.0, &[6, 1, 1, 3])?;
    let y = formula_tensor(2, 1.0, &[6, 2])?.clamp(0f32, 1f32)?;
    for (k, sync_bn) in [(1, false), (2, false), (2, true), (3, true)] {
        let how = Replication {
            sync_bn,
            ..Replication::default()
        };
        let net = DataParallel::with(how, &cpus(k), Initializer::Layers, 0, |vb| {
            let net = Sequential::new().add(BatchNorm2d::new(3, vb.pp("0"))?);
            let net = net.add(Flatten).add(Linear::new(3, 4, vb.pp("2"))?);
            let net = net.add(candle(|x: &Tensor| x.unsqueeze(1)?.unsqueeze(1)));
            let net = net.add(BatchNorm2d::new(4, vb.pp("4"))?).add(Flatten);
            Ok(net.add(Linear::new(4, 2, vb.pp("6"))?))
        })?;
        let mut trainer = Trainer::new(&net, binary_cross_entropy, breaks(3));
        trainer.step(&x, &y)?;
        let before = everything(&net, &trainer)?;
        is(Error::StepRefused, "", trainer.step(&x, &(&y * -1.0)?))?;
        same("bad targets", &before, &everything(&net, &trainer)?)?;
        trainer.step(&x, &y)?;
        let good = (net.state_dict()?, trainer.state_dict()?);
        trainer.step(&x, &y)?;
        for _ in 0..2 {
            let words = "A step has made the parameter ";
            is(Error::Diverged, words, trainer.step(&x, &y))?;
        }
        net.load_state_dict(&good.0)?;
        trainer.load_state_dict(good.1)?;
        let mut goes_on = Trainer::new(&net, binary_cross_entropy, sgd(0.1, 0.9));
        goes_on.step(&x, &y)?;
        net.check_replicas()?;
    }
    Ok(())
}

/// A mean of squares below 0 has no root: the first step from it breaks the network, and the next one says so.
#[test]
fn a_state_that_breaks_the_network_ends_the_loop() -> Result<()> {
    let (x, y) = minibatch()?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
    trainer.step(&x, &y)?;
    let mut state = trainer.state_dict()?;
    for (name, tensor) in &mut state {
        if name.starts_with("exp_avg ") {
            *tensor = tensor.ones_like()?.affine(1e38, 0.0)?;
        }
    }
    trainer.load_state_dict(state)?;
    trainer.step(&x, &y)?;
    is(Error::Diverged, "", trainer.step(&x, &y))
}

/// Of several targets, in a loss of the network, with more replicas than examples.
#[test]
fn a_target_of_several_is_looked_at() -> Result<()> {
    let (x, y) = minibatch()?;
    let (x, y) = (x.narrow(0, 0, 2)?, y.narrow(0, 0, 2)?);
    let net = DataParallel::new(&cpus(3), Initializer::Layers, 0, linear)?;
    let losses = |net: &Linear, x: &[Value], y: &[Tensor]| {
        let y_hat = net.forward(&x[0], true)?;
        &binary_cross_entropy(&y_hat, &y[0])? + &binary_cross_entropy(&y_hat, &y[1])?
    };
    let mut trainer = Trainer::with(&net, losses, AdamW::default())?.clip_norm(0.5)?;
    let bad = (&y + 3.0)?;
    let before = everything(&net, &trainer)?;
    for targets in [(&y, &bad), (&bad, &y)] {
        let step = trainer.step(&x, &(targets.0.clone(), targets.1.clone()));
        is(
            Error::StepRefused,
            "binary_cross_entropy: y has the value ",
            step,
        )?;
        same("both", &before, &everything(&net, &trainer)?)?;
    }
    trainer.step(&x, &(y.clone(), y))?;
    Ok(())
}
