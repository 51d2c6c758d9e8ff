//! Twenty steps of each optimizer, with clipping, rates by name and schedules, are PyTorch's, on one replica and on
//! three. The numbers are PyTorch's in float64 (tests/pytorch/optimizers.json).

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::Tensor;
use candle_nn::VarBuilder;
use data_parallel::functional::cross_entropy;
use data_parallel::layers::{Flatten, Linear, Nhwc, Relu, Sequential};
use data_parallel::{AdamW, DataParallel, Initializer, Optimizer, Sgd, Trainer, schedule};

use crate::kit::{self, are_pytorchs, close, cpus, largest_difference, theirs};
use crate::own_optimizer::own;
use crate::states::{draw, near, of_replica};

const THEIRS: &str = include_str!("../../../../tests/pytorch/optimizers.json");

/// Linear(784, 16), ReLU, Linear(16, 10), with PyTorch's names.
fn two_layers(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let net = Sequential::new().add(Nhwc).add(Flatten);
    let net = net.add(Linear::new(784, 16, vb.pp("0"))?).add(Relu);
    Ok(net.add(Linear::new(16, 10, vb.pp("2"))?))
}

/// On k devices, with the parameters of `optimizer_steps.py`.
fn network(k: usize) -> Result<DataParallel> {
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, two_layers)?;
    draw(&net, 0.05, &[])?;
    Ok(net)
}

/// The trainer of a run of `optimizer_steps.py`.
fn trainer(name: &str, net: &DataParallel) -> Result<Trainer> {
    let sgd = |momentum, weight_decay, nesterov| Sgd {
        lr: 0.05,
        momentum,
        weight_decay,
        nesterov,
    };
    let adamw = AdamW {
        lr: 0.01,
        ..AdamW::default()
    };
    let other = AdamW {
        beta1: 0.8,
        beta2: 0.9,
        eps: 1e-4,
        weight_decay: 0.3,
        ..adamw
    };
    let with = |sgd: Sgd| Trainer::new(net, cross_entropy, sgd);
    let with_adamw = |adamw: AdamW| Trainer::new(net, cross_entropy, adamw);
    Ok(match name {
        "plain" => with(sgd(0.0, 0.0, false)),
        "decay" => with(sgd(0.0, 0.1, false)),
        "momentum" => with(sgd(0.9, 0.01, false)),
        "nesterov" => with(sgd(0.9, 0.01, true)),
        "adamw" => with_adamw(adamw),
        "other adamw" => with_adamw(other),
        "clipped" => with(sgd(0.9, 0.0, false)).clip_norm(0.5)?,
        "rates" => {
            let trainer = with_adamw(adamw).clip_norm(1.0)?.rate("", 0.1)?;
            trainer.rate("2", 1.0)?.rate("2.bias", 0.0)?
        }
        "warmed up" => with_adamw(adamw).schedule(schedule::warmup(4, schedule::cosine(16))),
        name => anyhow::bail!("no run {name}"),
    })
}

/// On the batches of `optimizer_steps.py`.
fn steps(trainer: &mut Trainer, batches: Range<u32>) -> Result<Vec<f32>> {
    kit::steps(trainer, batches, 7)
}

#[test]
fn twenty_steps_are_pytorchs() -> Result<()> {
    let theirs = theirs(THEIRS);
    let runs = theirs["runs"].as_object().context("no runs")?;
    ensure!(runs.len() == 9, "{} runs", runs.len());
    for (name, theirs) in runs {
        for k in [1, 3] {
            let net = network(k)?;
            let losses = steps(&mut trainer(name, &net)?, 0..20)?;
            let what = format!("{name}, k = {k}");
            // as far as PyTorch's own float32 is from its float64, and a little more
            let tolerance = |[_, apart]: [f64; 2]| [2e-4, 2e-6_f64.max(4.0 * apart)];
            are_pytorchs(&what, &net, &losses, theirs, tolerance)?;
        }
    }
    Ok(())
}

#[test]
fn schedules_are_pytorchs() -> Result<()> {
    let theirs = theirs(THEIRS);
    type Schedule = Box<dyn Fn(usize) -> f64>;
    let ours: [(&str, Schedule); 4] = [
        ("cosine", Box::new(schedule::cosine(10))),
        ("linear", Box::new(schedule::linear(10))),
        ("step", Box::new(schedule::step(3, 0.1))),
        ("one_cycle", Box::new(schedule::one_cycle(11))),
    ];
    for (name, at) in ours {
        let ours: Vec<f32> = (0..10).map(|step| at(step) as f32).collect();
        close(name, &ours, &theirs["schedules"][name], 1e-6)?;
    }
    Ok(())
}

/// What the checkpoint keeps of one parameter.
fn kept(trainer: &Trainer, of: &str) -> Result<Vec<(String, Tensor)>> {
    let all = trainer.state_dict()?.into_iter();
    Ok(all.filter(|(name, _)| name.ends_with(of)).collect())
}

/// Frozen after ten steps, and then free again: what was kept of it is what it was.
#[test]
fn a_frozen_parameter_and_its_state_stay() -> Result<()> {
    let net = network(2)?;
    let mut trainer = trainer("adamw", &net)?;
    steps(&mut trainer, 0..10)?;
    let (param, state) = (net.parameter("2.weight", 1)?, kept(&trainer, "2.weight")?);
    ensure!(state.len() == 2, "{state:?}");
    let mut frozen = trainer.rate("2.weight", 0.0)?;
    let other = net.parameter("0.weight", 1)?;
    steps(&mut frozen, 10..12)?;
    ensure!(largest_difference(&param, &net.parameter("2.weight", 1)?)? == 0.0);
    ensure!(largest_difference(&other, &net.parameter("0.weight", 1)?)? > 0.0);
    near("frozen", &state, &kept(&frozen, "2.weight")?, 0.0)?;
    let steps_of: Vec<i64> = kept(&frozen, "steps")?[0].1.to_vec1()?;
    ensure!(steps_of == [12, 12, 12, 10, 12], "{steps_of:?}");
    Ok(())
}

/// SGD with momentum, written again; for weights alone.
fn momentum_of_weights() -> impl Optimizer {
    own(&["momentum"], |slice| {
        if !slice.name.ends_with("weight") {
            return Ok(());
        }
        let (lr, examples) = (slice.lr as f32, slice.examples as f32);
        slice.each(|p, sum, [v]| {
            *v = 0.9 * *v + (sum / examples + 0.01 * *p);
            *p -= lr * *v;
        })
    })
}

#[test]
fn ones_own_optimizer_takes_the_same_steps() -> Result<()> {
    let (net, own) = (network(2)?, network(2)?);
    let momentum = trainer("momentum", &net)?.rate("0.bias", 0.0)?;
    steps(&mut momentum.rate("2.bias", 0.0)?, 0..5)?;
    let mut by_own = Trainer::new(&own, cross_entropy, momentum_of_weights());
    by_own.set_lr(0.05);
    steps(&mut by_own, 0..5)?;
    let difference = largest_difference(
        &net.parameter("0.weight", 1)?,
        &own.parameter("0.weight", 1)?,
    )?;
    ensure!(difference < 1e-6, "{difference}");
    Ok(())
}

/// From what a checkpoint keeps.
#[test]
fn a_trainer_that_goes_on_takes_the_same_steps() -> Result<()> {
    for name in ["nesterov", "other adamw", "rates", "warmed up"] {
        let (whole, first, second) = (network(3)?, network(3)?, network(3)?);
        steps(&mut trainer(name, &whole)?, 0..8)?;
        let mut stops = trainer(name, &first)?;
        steps(&mut stops, 0..4)?;
        second.load_state_dict(&first.state_dict()?)?;
        let mut goes_on = trainer(name, &second)?;
        goes_on.load_state_dict(stops.state_dict()?)?;
        steps(&mut goes_on, 4..8)?;
        near(name, &whole.state_dict()?, &of_replica(&second, 2)?, 0.0)?;
    }
    Ok(())
}
