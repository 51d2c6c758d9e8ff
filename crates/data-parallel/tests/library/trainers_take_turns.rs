//! Several trainers take turns on one network, each with gradients and an optimizer state of its own, as PyTorch's
//! optimizers do. What a trainer does not train has no gradient.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use data_parallel::functional::{
    Network, Value, binary_cross_entropy, candle, cross_entropy, squared_error,
};
use data_parallel::layers::{Dropout, Gelu, Linear, Sequential};
use data_parallel::{AdamW, DataParallel, Initializer, Replication, Trainer};

use crate::hook::Hook;
use crate::kit::{are_pytorchs, theirs};
use crate::kit::{cpus, formula, formula_tensor, largest_difference, says, sgd};
use crate::states::{differences, near};

const THEIRS: &str = include_str!("../../../../tests/pytorch/turns.json");

/// Of each minibatch.
const EXAMPLES: usize = 6;

/// The network of a GAN.
struct Gan {
    generator: Linear,
    critic: Sequential,
}

impl Network for Gan {
    fn forward(&self, noise: &Value, train: bool) -> candle_core::Result<Value> {
        self.generator.forward(noise, train)
    }
}

fn gan(vb: VarBuilder<'_>) -> candle_core::Result<Gan> {
    let critic = Sequential::new().add(Linear::new(3, 8, vb.pp("d.0"))?);
    let critic = critic.add(Gelu).add(Linear::new(8, 3, vb.pp("d.2"))?);
    let generator = Linear::new(2, 3, vb.pp("g"))?;
    Ok(Gan { generator, critic })
}

/// The losses of marks that should be `value`.
fn should_be(y_hat: &Value, value: f64) -> candle_core::Result<Value> {
    let y = Tensor::full(value as f32, y_hat.dims(), y_hat.device())?;
    binary_cross_entropy(y_hat, &y)
}

fn critics_loss(gan: &Gan, noise: &[Value], real: &[Tensor]) -> candle_core::Result<Value> {
    let fake = gan
        .critic
        .forward(&gan.generator.forward(&noise[0], true)?, true)?;
    let real = gan.critic.forward(&Value::new(&real[0])?, true)?;
    &should_be(&real, 1.0)? + &should_be(&fake, 0.0)?
}

fn generators_loss(gan: &Gan, noise: &[Value], _: &[Tensor]) -> candle_core::Result<Value> {
    let fake = gan
        .critic
        .forward(&gan.generator.forward(&noise[0], true)?, true)?;
    should_be(&fake, 1.0)
}

/// A body with two heads, such as an actor's and a critic's.
struct TwoHeads {
    body: Sequential,
    a: Linear,
    b: Linear,
}

impl Network for TwoHeads {
    fn forward(&self, x: &Value, train: bool) -> candle_core::Result<Value> {
        self.a.forward(&self.body.forward(x, train)?, train)
    }
}

fn two_heads(vb: VarBuilder<'_>) -> candle_core::Result<TwoHeads> {
    let body = Sequential::new().add(Linear::new(5, 8, vb.pp("body"))?);
    Ok(TwoHeads {
        body: body.add(Gelu),
        a: Linear::new(8, 3, vb.pp("a"))?,
        b: Linear::new(8, 3, vb.pp("b"))?,
    })
}

fn loss_of_a(net: &TwoHeads, x: &[Value], y: &[Tensor]) -> candle_core::Result<Value> {
    cross_entropy(&net.forward(&x[0], true)?, &y[0])
}

fn loss_of_b(net: &TwoHeads, x: &[Value], y: &[Tensor]) -> candle_core::Result<Value> {
    squared_error(
        &net.b.forward(&net.body.forward(&x[0], true)?, true)?,
        &y[0],
    )
}

/// On `k` devices, with the parameters of `turns_steps.py`, which numbers them in this order.
fn with_formula<N: Network + 'static>(
    k: usize,
    build: fn(VarBuilder<'_>) -> candle_core::Result<N>,
    order: [&str; 3],
) -> Result<DataParallel> {
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, build)?;
    let mut state = net.state_dict()?;
    for (name, tensor) in &mut state {
        let (layer, kind) = name.rsplit_once('.').context("no layer")?;
        let at = order
            .iter()
            .position(|of| *of == layer)
            .context("no such layer")?;
        let s = 2 * at + usize::from(kind == "bias");
        *tensor = formula_tensor(s as u32, 0.5, tensor.dims())?;
    }
    net.load_state_dict(&state)?;
    Ok(net)
}

/// Input number `s`, with so many features.
fn input(s: u32, features: usize) -> Result<Tensor> {
    Ok(formula_tensor(100 + s, 1.0, &[EXAMPLES, features])?)
}

fn classes(s: u32) -> Result<Tensor> {
    let labels = formula(2000 + s, EXAMPLES).map(|u| (u * 10.0) as u32 % 3);
    Ok(Tensor::from_iter(labels, &Device::Cpu)?)
}

/// A trainer with the optimizer of a run.
fn trainer<N: Network + 'static>(
    net: &DataParallel,
    loss: fn(&N, &[Value], &[Tensor]) -> candle_core::Result<Value>,
    optimizer: &str,
) -> candle_core::Result<Trainer> {
    if optimizer == "adamw" {
        let adamw = AdamW {
            lr: 0.01,
            ..AdamW::default()
        };
        Trainer::with(net, loss, adamw)
    } else {
        Trainer::with(net, loss, sgd(0.05, 0.9))
    }
}

/// The losses of a run of `turns_steps.py`.
fn run(name: &str, net: &DataParallel) -> Result<Vec<f32>> {
    let (what, optimizer) = name.split_once(' ').context("no optimizer")?;
    let mut losses = Vec::new();
    if what == "gan" {
        let mut critic = trainer(net, critics_loss, optimizer)?.rate("g", 0.0)?;
        let mut generator = trainer(net, generators_loss, optimizer)?.rate("d", 0.0)?;
        for i in 0..10 {
            let (noise, real) = (input(2 * i, 2)?, input(2 * i + 1, 3)?);
            losses.push(critic.step(&noise, &real)?.loss.mean()?);
            losses.push(generator.step(&noise, &real)?.loss.mean()?);
        }
        return Ok(losses);
    }
    let waits = what == "waiting";
    let minibatches = if waits { 3 } else { 2 };
    let mut of_a = trainer(net, loss_of_a, optimizer)?
        .rate("b", 0.0)?
        .accumulate(minibatches - 1)?;
    let mut of_b = trainer(net, loss_of_b, optimizer)?.rate("a", 0.0)?;
    for s in (0..10 * minibatches as u32).step_by(minibatches) {
        losses.push(of_a.step(&input(s, 5)?, &classes(s)?)?.loss.mean()?);
        let targets = input(s + 51, 3)?;
        losses.push(of_b.step(&input(s + 1, 5)?, &targets)?.loss.mean()?);
        if waits {
            let (x, y) = (input(s + 2, 5)?, classes(s + 2)?);
            losses.push(of_a.step(&x, &y)?.loss.mean()?);
        }
    }
    Ok(losses)
}

#[test]
fn rounds_of_two_trainers_are_pytorchs() -> Result<()> {
    let theirs = theirs(THEIRS);
    let runs = theirs["runs"].as_object().context("no runs")?;
    ensure!(runs.len() == 6, "{} runs", runs.len());
    for (name, theirs) in runs {
        for k in [1, 2, 3] {
            let net = if name.starts_with("gan") {
                with_formula(k, gan, ["g", "d.0", "d.2"])?
            } else {
                with_formula(k, two_heads, ["body", "a", "b"])?
            };
            let what = format!("{name}, k = {k}");
            let losses = run(name, &net).with_context(|| what.clone())?;
            let tolerance = |[_, apart]: [f64; 2]| [1e-4, 1e-5_f64.max(4.0 * apart)];
            are_pytorchs(&what, &net, &losses, theirs, tolerance)?;
        }
    }
    Ok(())
}

/// The same in any order of the calls, and a checkpoint of both has both.
#[test]
fn each_trainer_has_its_own_state() -> Result<()> {
    let net = with_formula(2, two_heads, ["body", "a", "b"])?;
    let (x, y) = (input(0, 5)?, classes(0)?);
    let mut first = Trainer::new(&net, cross_entropy, sgd(0.05, 0.9)).rate("b", 0.0)?;
    let mut second = Trainer::with(&net, loss_of_b, AdamW::default())?.rate("a", 0.0)?;
    first.step(&x, &y)?;
    let before: Vec<_> = first.state_dict()?;
    let gradients = first.gradients()?;
    second.step(&x, &input(51, 3)?)?;
    second.backward(&x, &input(52, 3)?)?; // which waits
    near("its state", &before, &first.state_dict()?, 0.0)?;
    near("its gradients", &gradients, &first.gradients()?, 0.0)?;
    let names: Vec<String> = before.into_iter().map(|(name, _)| name).collect();
    let expected = [
        "momentum a.bias",
        "momentum a.weight",
        "momentum body.bias",
        "momentum body.weight",
    ];
    ensure!(names[..4] == expected, "{names:?}");
    says(
        "state_dict: the gradients of 1 minibatch wait for their step; call flush() first",
        second.state_dict(),
    )?;
    second.flush()?;
    let names: Vec<String> = second
        .state_dict()?
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    ensure!(
        names[0] == "exp_avg b.bias" && names.len() == 10,
        "{names:?}"
    );
    Ok(())
}

#[test]
fn a_loss_of_another_network_is_refused() -> Result<()> {
    let net = with_formula(1, two_heads, ["body", "a", "b"])?;
    let trainer = || Trainer::with(&net, critics_loss, sgd(0.1, 0.0));
    says("the network was built as ", trainer())?;
    says("TwoHeads, the loss takes a ", trainer())?;
    says("Gan", trainer())
}

/// Beside a trainer that trains all: the others get the same gradients to the bit.
#[test]
fn what_is_frozen_keeps_every_bit_and_has_no_gradient() -> Result<()> {
    for k in [1, 2, 3] {
        let build = || with_formula(k, two_heads, ["body", "a", "b"]);
        let (all, net) = (build()?, build()?);
        let (x, y) = (input(0, 5)?, input(51, 3)?);
        let mut trains_all = Trainer::with(&all, loss_of_b, sgd(0.1, 0.9))?.rate("a", 0.0)?;
        trains_all.step(&x, &y)?;
        for frozen in ["body", "body.weight", "b.bias", "b"] {
            let before = net.state_dict()?;
            let trainer = Trainer::with(&net, loss_of_b, sgd(0.1, 0.9))?;
            let mut trainer = trainer.rate("a", 0.0)?.rate(frozen, 0.0)?;
            trainer.step(&x, &y)?;
            let is_part = |of: &str, name: &str| name == of || name.starts_with(&format!("{of}."));
            let is_frozen = |name: &str| is_part(frozen, name) || is_part("a", name);
            for (name, moved) in differences(&before, &net.state_dict()?)? {
                ensure!(
                    (moved == 0.0) == is_frozen(name),
                    "{frozen}: {name} moved by {moved}"
                );
            }
            let gradients = trainer.gradients()?;
            let expected = trains_all
                .gradients()?
                .into_iter()
                .filter(|(name, _)| !is_frozen(name));
            for ((name, found), (of, expected)) in gradients.iter().zip(expected) {
                let apart = largest_difference(found, &expected)?;
                ensure!(
                    *name == of && apart == 0.0,
                    "{frozen}: {name}, {of}: {apart}"
                );
            }
            let state = trainer.state_dict()?;
            let of_frozen = |(name, _): &(String, Tensor)| {
                name.split_once(' ')
                    .is_some_and(|(_, param)| is_frozen(param))
            };
            ensure!(!state.iter().any(of_frozen), "{frozen} has a state");
            net.load_state_dict(&before)?;
        }
    }
    Ok(())
}

#[test]
fn no_backward_is_computed_below_what_is_frozen() -> Result<()> {
    for (frozen, expected) in [(None, 2), (Some("stem.weight"), 2), (Some("stem"), 0)] {
        let count = Arc::new(AtomicUsize::new(0));
        let counts = count.clone();
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, move |vb| {
            let stem = Linear::new(5, 8, vb.pp("stem"))?;
            let counts = counts.clone();
            let counted = candle(Hook(move |forward: bool| {
                counts.fetch_add(usize::from(!forward), Relaxed);
                Ok(())
            }));
            let head = Linear::new(8, 3, vb.pp("head"))?;
            Ok(move |x: &Value, train: bool| {
                head.forward(&counted.forward(&stem.forward(x, train)?, train)?, train)
            })
        })?;
        let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.0)).check_gradients(false);
        if let Some(frozen) = frozen {
            trainer = trainer.rate(frozen, 0.0)?;
        }
        trainer.step(&input(0, 5)?, &classes(0)?)?;
        let found = count.load(Relaxed);
        ensure!(
            found == expected,
            "{frozen:?}: {found} gradients, expected {expected}"
        );
    }
    Ok(())
}

/// With gradients that wait it would lose them, or sum what has no gradient.
#[test]
fn a_parameter_is_frozen_between_steps_alone() -> Result<()> {
    let net = with_formula(2, two_heads, ["body", "a", "b"])?;
    let (x, y) = (input(0, 5)?, classes(0)?);
    let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.9)).rate("b", 0.0)?;
    trainer.backward(&x, &y)?;
    let trainer = trainer.rate("body", 0.5)?; // another rate is no other gradient
    says(
        "rate: the gradients of 1 minibatch wait",
        trainer.rate("body", 0.0).map(drop),
    )
}

#[test]
fn with_nothing_to_train_there_is_no_step() -> Result<()> {
    let how = Replication::default();
    let net = DataParallel::with(how, &cpus(2), Initializer::Layers, 0, two_heads)?;
    let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.9)).rate("", 0.0)?;
    let step = trainer.step(&input(0, 5)?, &classes(0)?);
    says("no parameter is trained: the rate of each is 0", step)
}

/// In steps of the same number. A trainer that goes on from another's state draws that one's masks.
#[test]
fn trainers_draw_masks_of_their_own() -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, |vb| {
        let weight = vb.get_with_hints(1, "weight", candle_nn::Init::Const(1.0))?;
        let scale = candle(move |x: &Tensor| x.broadcast_mul(&weight));
        Ok(Sequential::new()
            .add(scale)
            .add(Dropout::new(0.5, vb.pp("drop"))?))
    })?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let trainer = || {
        let seen = seen.clone();
        let keeps = move |y_hat: &Value, _: &Tensor| {
            let seen = seen.clone();
            let sum = candle(move |x: &Tensor| {
                *seen.lock().expect("no panic") = x.flatten_all()?.to_vec1::<f32>()?;
                x.sum(1)
            });
            sum.forward(y_hat, true)
        };
        Trainer::new(&net, keeps, sgd(0.0, 0.0)).check_gradients(false)
    };
    let (x, y) = (
        Tensor::ones((2, 50), DType::F32, &Device::Cpu)?,
        classes(0)?.narrow(0, 0, 2)?,
    );
    let mask = |trainer: &mut Trainer| -> Result<Vec<f32>> {
        trainer.step(&x, &y)?;
        Ok(seen.lock().expect("no panic").clone())
    };
    let (mut first, mut second, mut third) = (trainer(), trainer(), trainer());
    let masks = [mask(&mut first)?, mask(&mut second)?];
    ensure!(masks[0] != masks[1], "two trainers draw the same mask");
    third.load_state_dict(second.state_dict()?)?;
    ensure!(mask(&mut third)? == mask(&mut second)?, "it does not go on");
    Ok(())
}
