//! A number that cannot be used is an error where it comes in, before anything has happened: settings of optimizers,
//! schedules, initializers, targets, states. A network whose parameters have become NaN says so, and is no refused step.

use std::fmt::Debug;

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

use crate::a_bad_minibatch_changes_nothing::{everything, same};
use crate::kit::{cpus, formula_tensor, has, says, sgd};

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

/// Settings that an optimizer cannot have, and the words of their error.
fn bad_settings() -> Vec<(String, Settings)> {
    let mut all = Vec::new();
    let good = sgd(0.1, 0.9);
    for lr in [-1.0, f64::NAN, f64::INFINITY] {
        all.push((
            format!("Sgd: lr is {lr}"),
            Settings::Sgd(Sgd { lr, ..good }),
        ));
    }
    for momentum in [-0.9, f64::NAN, f64::INFINITY] {
        let words = format!("Sgd: momentum is {momentum}");
        all.push((words, Settings::Sgd(Sgd { momentum, ..good })));
    }
    for weight_decay in [-1e-4, f64::NAN, f64::INFINITY] {
        let words = format!("Sgd: weight_decay is {weight_decay}");
        let sgd = Sgd {
            weight_decay,
            ..good
        };
        all.push((words, Settings::Sgd(sgd)));
    }
    let nesterov = Sgd {
        nesterov: true,
        ..Sgd::new(0.1)
    };
    let words = "Sgd: nesterov needs a momentum";
    all.push((words.to_owned(), Settings::Sgd(nesterov)));
    type Set = fn(f64) -> AdamW;
    let fields: [(&str, &[f64], Set); 5] = [
        ("lr", &[-1e-3, f64::NAN, f64::INFINITY], |lr| AdamW {
            lr,
            ..AdamW::default()
        }),
        ("beta1", &[1.0, 1.5, -0.5, f64::NAN], |beta1| AdamW {
            beta1,
            ..AdamW::default()
        }),
        ("beta2", &[1.0, 1.2, -0.1, f64::NAN], |beta2| AdamW {
            beta2,
            ..AdamW::default()
        }),
        ("eps", &[-1.0, f64::NAN, f64::INFINITY], |eps| AdamW {
            eps,
            ..AdamW::default()
        }),
        (
            "weight_decay",
            &[-10.0, f64::NAN, f64::INFINITY],
            |weight_decay| AdamW {
                weight_decay,
                ..AdamW::default()
            },
        ),
    ];
    for (field, values, set) in fields {
        for value in values {
            let words = format!("AdamW: {field} is {value}");
            all.push((words, Settings::AdamW(set(*value))));
        }
    }
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
                let error = error_of(bad.step(&x, &y))?;
                ensure!(matches!(error, Error::Other(_)), "{error:?}");
                says(&words, Err::<(), _>(error))?;
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
    let adamw = AdamW::default();
    let all = [
        Settings::Sgd(Sgd::new(0.0)),
        Settings::Sgd(sgd(0.1, 1.5)),
        Settings::Sgd(Sgd {
            nesterov: true,
            weight_decay: 2.0,
            ..sgd(0.1, 1.0)
        }),
        Settings::AdamW(AdamW {
            beta1: 0.0,
            beta2: 0.0,
            ..adamw
        }),
        Settings::AdamW(AdamW {
            eps: 0.0,
            weight_decay: 0.0,
            ..adamw
        }),
        Settings::AdamW(AdamW { lr: 0.0, ..adamw }),
        Settings::AdamW(AdamW {
            eps: 1.0,
            weight_decay: 10.0,
            ..adamw
        }),
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

#[test]
fn a_schedule_that_gives_no_rate_names_the_step() -> Result<()> {
    let (x, y) = minibatch()?;
    for (k, rate) in [(1, f64::NAN), (2, f64::INFINITY), (3, -1.0)] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, linear)?;
        let trainer = Trainer::new(&net, squared_error, sgd(1.0, 0.9));
        let mut trainer = trainer.schedule(move |step| if step < 2 { 0.1 } else { rate });
        trainer.step(&x, &y)?;
        trainer.step(&x, &y)?;
        let before = everything(&net, &trainer)?;
        let error = error_of(trainer.step(&x, &y))?;
        ensure!(matches!(error, Error::Other(_)), "{error:?}");
        let words = format!("the learning rate of step 3 is {rate}");
        says(&words, Err::<(), _>(error))?;
        same(&words, &before, &everything(&net, &trainer)?)?;
        trainer.schedule(|_| 0.1).step(&x, &y)?;
        net.check_replicas()?;
    }
    Ok(())
}

/// The numbers of PyTorch's schedules of the same name, and what is other: behind their ends.
#[test]
fn schedules_end_as_their_documentation_says() -> Result<()> {
    let near = |ours: f64, theirs: f64| (ours - theirs).abs() < 1e-6;
    // LinearLR(optimizer, start_factor=1, end_factor=0, total_iters=5)
    for (step, theirs) in [1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0].into_iter().enumerate() {
        let ours = schedule::linear(5)(step);
        ensure!(near(ours, theirs), "linear, step {step}: {ours}");
    }
    // CosineAnnealingLR(optimizer, T_max=5), which rises again: 0.095492, 0.345492, …
    let theirs = [1.0, 0.904508, 0.654508, 0.345492, 0.095492, 0.0];
    for (step, theirs) in theirs.into_iter().enumerate() {
        let ours = schedule::cosine(5)(step);
        ensure!(near(ours, theirs), "cosine, step {step}: {ours}");
    }
    ensure!([6, 7, 100].map(schedule::cosine(5)) == [0.0; 3]);
    // OneCycleLR raises an error behind its last step
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
                        let error = error_of(trainer.step(&x, &y))?;
                        ensure!(matches!(error, Error::StepRefused(_)), "{error:?}");
                        let example = 6usize.div_ceil(k) - 1;
                        let words = format!(
                            "binary_cross_entropy: y has the value {value} in example {example}, element 1; expected 0 to 1"
                        );
                        says(&words, Err::<(), _>(error))?;
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

/// Steps that make all parameters NaN.
#[derive(Debug)]
struct Breaks {
    at: u64,
}

impl Optimizer for Breaks {
    fn lr(&self) -> f64 {
        0.1
    }

    fn state(&self) -> &'static [&'static str] {
        &[]
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> candle_core::Result<()> {
        for slice in slices {
            let breaks = slice.step == self.at;
            slice.each(|p, sum, []| *p = if breaks { f32::NAN } else { *p - 1e-3 * sum })?;
        }
        Ok(())
    }
}

/// A loop that leaves out refused steps ends, evaluations and files name the parameter, and a checkpoint brings the
/// network back.
#[test]
fn a_network_that_an_update_has_broken_is_lost() -> Result<()> {
    type Make = fn(&DataParallel) -> Trainer;
    let kinds: [(&str, Make); 5] = [
        ("an optimizer of one's own", |net| {
            Trainer::new(net, squared_error, Breaks { at: 2 })
        }),
        ("AdamW with eps 0", |net| {
            let adamw = AdamW {
                eps: 0.0,
                ..AdamW::default()
            };
            Trainer::new(net, squared_error, adamw)
        }),
        ("a rate of 3e38", |net| {
            Trainer::new(net, squared_error, Sgd::new(3e38))
        }),
        ("an infinite rate in f32", |net| {
            Trainer::new(
                net,
                squared_error,
                AdamW {
                    lr: 1e300,
                    ..AdamW::default()
                },
            )
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
        let error = error_of(again.step(&x, &y))?;
        ensure!(matches!(error, Error::Diverged(_)), "{error:?}");
    }
    let data = DataIter::of_tensors(&x, &y, 4, None)?;
    if what.contains("3e38") {
        return Ok(()); // its parameters are finite, of which the squares are not
    }
    for error in [
        error_of(evaluate(&net, &data, |_, _| Ok([1.0])))?,
        error_of(predict(&net, &data))?,
    ] {
        ensure!(matches!(error, Error::Diverged(_)), "{error:?}");
        has(&error.to_string(), "the network is lost")?;
    }
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
    type Change = fn(&Tensor) -> candle_core::Result<Tensor>;
    fn first(t: &Tensor, value: f64) -> candle_core::Result<Tensor> {
        let flat = t.flatten_all()?;
        let value = Tensor::full(value, 1, &Device::Cpu)?.to_dtype(t.dtype())?;
        let rest = flat.narrow(0, 1, flat.elem_count() - 1)?;
        Tensor::cat(&[value, rest], 0)?.reshape(t.shape())
    }
    let of_trainer: [(&str, &str, Change); 17] = [
        (
            "replica 1 bn.running_var",
            "\"replica 1 bn.running_var\" contains NaN",
            |t| first(t, f64::NAN),
        ),
        (
            "replica 1 bn.running_var",
            "\"replica 1 bn.running_var\" contains -1",
            |t| first(t, -1.0),
        ),
        (
            "replica 1 bn.running_var",
            "\"replica 1 bn.running_var\" contains NaN or infinity",
            |t| first(t, f64::INFINITY),
        ),
        (
            "replica 1 bn.running_mean",
            "\"replica 1 bn.running_mean\" contains NaN",
            |t| first(t, f64::NAN),
        ),
        ("steps", "steps: -5", |t| first(t, -5.0)),
        (
            "steps",
            "steps: 9223372036854775807; expected 0 or more, and less than 9007199254740992",
            |t| first(t, 1e19),
        ),
        ("steps", "steps: unexpected dtype", |t| {
            first(&t.to_dtype(DType::F64)?, f64::NAN)
        }),
        ("steps", "steps: unexpected rank", |t| t.unsqueeze(0)),
        ("exp_avg fc.weight", "exp_avg fc.weight contains inf", |t| {
            first(t, f64::INFINITY)
        }),
        ("exp_avg fc.bias", "exp_avg fc.bias contains -inf", |t| {
            first(t, f64::NEG_INFINITY)
        }),
        (
            "exp_avg_sq fc.bias",
            "exp_avg_sq fc.bias contains NaN",
            |t| first(t, f64::NAN),
        ),
        (
            "exp_avg_sq fc.bias",
            "exp_avg_sq fc.bias contains inf",
            |t| first(&t.to_dtype(DType::F64)?, 1e300),
        ),
        (
            "exp_avg_sq fc.bias",
            "exp_avg_sq fc.bias contains -0.5; expected 0 or more",
            |t| first(t, -0.5),
        ),
        ("lr", "lr is NaN", |t| first(t, f64::NAN)),
        ("lr", "lr is -1", |t| first(t, -1.0)),
        ("lr", "lr is inf", |t| first(t, f64::INFINITY)),
        ("lr", "lr: unexpected dtype", |t| t.to_dtype(DType::F32)),
    ];
    let mut missed = Vec::new();
    for (name, words, change) in of_trainer {
        let mut changed = state.clone();
        let entry = changed.iter_mut().find(|(entry, _)| entry == name);
        let entry = entry.with_context(|| name.to_owned())?;
        entry.1 = change(&entry.1)?;
        let checked = says(words, trainer.load_state_dict(changed));
        let checked = checked.and_then(|()| same(words, &before, &everything(&net, &trainer)?));
        if let Err(error) = checked {
            missed.push(format!("{name}, {words}: {error:#}"));
            net.load_state_dict(&of_network)?;
            trainer.load_state_dict(state.clone())?;
            trainer.step(&x, &y)?;
        }
    }
    let of_net: [(&str, &str, Change); 5] = [
        ("bn.running_var", "\"bn.running_var\" contains -0.5", |t| {
            first(t, -0.5)
        }),
        ("bn.running_var", "\"bn.running_var\" contains NaN", |t| {
            first(t, f64::NAN)
        }),
        ("bn.running_mean", "\"bn.running_mean\" contains NaN", |t| {
            first(t, f64::NAN)
        }),
        ("fc.weight", "\"fc.weight\" contains NaN or infinity", |t| {
            first(t, f64::INFINITY)
        }),
        ("fc.weight", "numbers that are too large for F32", |t| {
            first(&t.to_dtype(DType::F64)?, 1e300)
        }),
    ];
    let place = tempfile::tempdir()?;
    let file = place.path().join("changed.safetensors");
    for (name, words, change) in of_net {
        let mut changed = of_network.clone();
        let entry = changed.iter_mut().find(|(entry, _)| entry == name);
        let entry = entry.with_context(|| name.to_owned())?;
        entry.1 = change(&entry.1)?;
        let by_name: std::collections::HashMap<_, _> = changed.iter().cloned().collect();
        candle_core::safetensors::save(&by_name, &file)?;
        let checked = says(words, net.load_state_dict(&changed));
        let checked = checked.and_then(|()| says(words, net.load(&file)));
        let checked = checked.and_then(|()| same(words, &before, &everything(&net, &trainer)?));
        if let Err(error) = checked {
            missed.push(format!("{name}, {words}: {error:#}"));
            net.load_state_dict(&of_network)?;
            trainer.load_state_dict(state.clone())?;
            trainer.step(&x, &y)?;
        }
    }
    ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
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

/// By `set_lr`, while gradients wait, and with a factor of another schedule.
#[test]
fn a_rate_that_was_set_is_looked_at_before_the_step() -> Result<()> {
    let (x, y) = minibatch()?;
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        let net = DataParallel::new(&cpus(3), Initializer::Layers, 0, linear)?;
        let mut trainer = Trainer::new(&net, squared_error, AdamW::default());
        trainer.step(&x, &y)?;
        trainer.backward(&x, &y)?;
        let lr = trainer.lr();
        trainer.set_lr(rate);
        let words = format!("the learning rate of step 2 is {rate}");
        for error in [error_of(trainer.flush())?, error_of(trainer.step(&x, &y))?] {
            ensure!(matches!(error, Error::Other(_)), "{error:?}");
            says(&words, Err::<(), _>(error))?;
        }
        ensure!(!trainer.is_between_steps(), "its gradients wait");
        trainer.set_lr(lr);
        trainer.flush()?;
        ensure!(trainer.steps() == 2);
        net.check_replicas()?;
    }
    Ok(())
}

/// One trainer of a network breaks a part of it that the other only uses.
#[test]
fn a_trainer_says_that_another_one_has_broken_the_network() -> Result<()> {
    let (x, y) = minibatch()?;
    for k in [1, 2, 3] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, two_layers)?;
        let mut first = Trainer::new(&net, squared_error, Breaks { at: 1 }).rate("2", 0.0)?;
        let mut second = Trainer::new(&net, squared_error, sgd(0.1, 0.9)).rate("0", 0.0)?;
        second.step(&x, &y)?;
        first.step(&x, &y)?;
        let error = error_of(second.backward(&x, &y).and_then(|_| second.flush()))?;
        ensure!(matches!(error, Error::Diverged(_)), "k = {k}: {error:?}");
        let words = "A step has made the parameter 0.weight NaN, so the network is lost";
        says(words, Err::<(), _>(error))?;
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
    let error = error_of(trainer.check_numbers(true).step(&nan, &y))?;
    ensure!(matches!(error, Error::StepRefused(_)), "{error:?}");
    Ok(())
}

/// A loop with checkpoints that leaves out refused steps ends, and the checkpoint before the update is still there.
#[test]
fn a_run_with_checkpoints_ends_at_the_update_that_broke_it() -> Result<()> {
    let (x, y) = minibatch()?;
    let place = tempfile::tempdir()?;
    let data = DataIter::of_tensors(&x, &y, 3, None)?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, two_layers)?;
    // both minibatches of the second epoch
    let mut trainer = Trainer::new(&net, squared_error, Breaks { at: 3 });
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
    let mut trainer = Trainer::new(&again, squared_error, Breaks { at: 3 });
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
        let mut trainer = Trainer::new(&net, binary_cross_entropy, Breaks { at: 3 });
        trainer.step(&x, &y)?;
        let before = everything(&net, &trainer)?;
        let error = error_of(trainer.step(&x, &(&y * -1.0)?))?;
        ensure!(matches!(error, Error::StepRefused(_)), "{error:?}");
        same("bad targets", &before, &everything(&net, &trainer)?)?;
        trainer.step(&x, &y)?;
        let good = (net.state_dict()?, trainer.state_dict()?);
        trainer.step(&x, &y)?;
        for _ in 0..2 {
            let error = error_of(trainer.step(&x, &y))?;
            ensure!(matches!(error, Error::Diverged(_)), "k = {k}: {error:?}");
            has(&error.to_string(), "A step has made the parameter ")?;
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
    let error = error_of(trainer.step(&x, &y))?;
    ensure!(matches!(error, Error::Diverged(_)), "{error:?}");
    Ok(())
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
        let error = error_of(trainer.step(&x, &(targets.0.clone(), targets.1.clone())))?;
        ensure!(matches!(error, Error::StepRefused(_)), "{error:?}");
        has(&error.to_string(), "binary_cross_entropy: y has the value ")?;
        same("both", &before, &everything(&net, &trainer)?)?;
    }
    trainer.step(&x, &(y.clone(), y))?;
    Ok(())
}
