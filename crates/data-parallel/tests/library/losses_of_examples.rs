//! A loss in which examples depend on each other is refused by several replicas, or it is that of the whole minibatch on
//! any number of them. A loss of each example is never refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use data_parallel::prelude::*;

use crate::kit::{cpus, formula_tensor, says, sgd};
use crate::states::{State, near};
use crate::where_replicas_are::in_processes;

/// CLIP's two networks, with a temperature of shape ().
struct Clip {
    image: Sequential,
    text: Linear,
    scale: Tensor,
}

impl Network for Clip {
    fn forward(&self, x: &Value, train: bool) -> candle_core::Result<Value> {
        self.image.forward(x, train)
    }
}

impl Clip {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let image = Sequential::new().add(Linear::new(4, 6, vb.pp("image.0"))?);
        let image = image.add(Gelu).add(Linear::new(6, 3, vb.pp("image.1"))?);
        Ok(Self {
            image,
            text: Linear::new(5, 3, vb.pp("text"))?,
            scale: vb.get_with_hints((), "scale", Init::Const(1.0))?,
        })
    }

    /// The losses of all pairs, from the rows of some of them.
    fn contrast(&self, image: &Value, text: &Value) -> candle_core::Result<Value> {
        let scale = self.scale.clone();
        let similar = candle_fn(move |x: &[Tensor]| {
            let unit = |x: &Tensor| x.broadcast_div(&(x.sqr()?.sum_keepdim(1)? + 1e-12)?.sqrt()?);
            let cosines = unit(&x[0])?.matmul(&unit(&x[1])?.t()?)?;
            cosines.broadcast_mul(&scale.exp()?)
        });
        let similar = similar.forward_all(&[image.clone(), text.clone()], true)?;
        let transposed = candle(|s: &Tensor| s.t()?.contiguous()).forward(&similar, true)?;
        let own = Tensor::arange(0u32, similar.dims()[0] as u32, &Device::Cpu)?;
        cross_entropy(&similar, &own)? + cross_entropy(&transposed, &own)?
    }
}

fn of_minibatch(net: &Clip, x: &[Value], _: &[Tensor]) -> candle_core::Result<Value> {
    let image = all_examples(&net.image.forward(&x[0], true)?)?;
    net.contrast(&image, &all_examples(&net.text.forward(&x[1], true)?)?)
}

fn of_shard(net: &Clip, x: &[Value], _: &[Tensor]) -> candle_core::Result<Value> {
    net.contrast(
        &net.image.forward(&x[0], true)?,
        &net.text.forward(&x[1], true)?,
    )
}

fn pairs(step: u32, n: usize) -> candle_core::Result<(Tensor, Tensor)> {
    Ok((
        formula_tensor(2 * step, 1.0, &[n, 4])?,
        formula_tensor(2 * step + 1, 1.0, &[n, 5])?,
    ))
}

/// Ten steps on `n` pairs: the first loss, and the network.
fn ten_steps(k: usize, n: usize) -> Result<(f32, State)> {
    let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, Clip::new)?;
    let mut trainer = Trainer::with(&net, of_minibatch, sgd(0.1, 0.9))?.over_minibatch();
    let mut losses = Vec::new();
    for step in 0..10 {
        losses.push(trainer.step(&pairs(step, n)?, &())?.loss.mean()?);
    }
    net.check_replicas()?;
    Ok((losses[0], net.state_dict()?))
}

fn close(one: &(f32, State), other: &(f32, State)) -> Result<()> {
    ensure!((one.0 - other.0).abs() < 1e-5, "{} and {}", one.0, other.0);
    near("the network", &one.1, &other.1, 2e-5)
}

#[test]
fn a_contrastive_loss_is_that_of_one_replica() -> Result<()> {
    let one = ten_steps(1, 8)?;
    for k in [2, 3, 4] {
        close(&one, &ten_steps(k, 8)?).with_context(|| format!("{k} replicas"))?;
    }
    // some replicas have more examples than others, or none
    let few = ten_steps(1, 3)?;
    for k in [2, 4] {
        close(&few, &ten_steps(k, 3)?).with_context(|| format!("{k} replicas, 3 pairs"))?;
    }
    Ok(())
}

#[test]
fn so_it_is_over_processes() -> Result<()> {
    let one = ten_steps(1, 7)?;
    let in_two = in_processes(&[2, 1], |world| {
        let rank = world.processes().rank();
        let net = DataParallel::new(world, Initializer::Layers, 0, Clip::new)?;
        let mut trainer = Trainer::with(&net, of_minibatch, sgd(0.1, 0.9))?.over_minibatch();
        let mut first = None;
        for step in 0..10 {
            let (image, text) = pairs(step, 7)?;
            let (from, n) = [(0, 5), (5, 2)][rank];
            let part = (image.narrow(0, from, n)?, text.narrow(0, from, n)?);
            let loss = trainer.step(&part, &())?.loss.mean()?;
            first.get_or_insert(loss);
        }
        Ok((first.unwrap_or_default(), net.state_dict()?))
    })?;
    for found in in_two {
        close(&one, &found)?;
    }
    Ok(())
}

/// The loss of `Trainer::new` gets all outputs and all labels.
#[test]
fn a_loss_of_outputs_gets_those_of_all() -> Result<()> {
    /// Pulls examples of one class together: the mean of each class is that of the minibatch.
    fn to_the_center(y_hat: &Value, y: &Tensor) -> candle_core::Result<Value> {
        let y = y.to_dtype(DType::F32)?.unsqueeze(1)?;
        let losses = candle(move |h: &Tensor| {
            let same = y.broadcast_eq(&y.t()?)?.to_dtype(DType::F32)?; // (B, B)
            let centers = same.broadcast_div(&same.sum_keepdim(1)?)?.matmul(h)?;
            (h - centers)?.sqr()?.sum(1)
        });
        losses.forward(y_hat, true)
    }
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    let y = Tensor::new(&[0u32, 1, 0, 1, 0, 0], &Device::Cpu)?;
    let step = |k: usize, over_minibatch: bool| -> Result<(f32, State)> {
        let linear = |vb: VarBuilder<'_>| Linear::new(4, 3, vb);
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, linear)?;
        let mut trainer = Trainer::new(&net, to_the_center, sgd(0.1, 0.0));
        if over_minibatch {
            trainer = trainer.over_minibatch();
        }
        let loss = trainer.step(&x, &y)?.loss.mean()?;
        Ok((loss, net.state_dict()?))
    };
    let one = step(1, false)?;
    for k in 1..=3 {
        close(&one, &step(k, true)?)?;
    }
    let words = "the loss of an example depends on the other examples";
    says(words, step(2, false))
}

/// Two examples, one on each replica, are as if they were alone; and a loss may mix examples from its second step on.
#[test]
fn a_loss_that_mixes_examples_later_is_refused_soon() -> Result<()> {
    let words = "depends on the other examples";
    let y = |n: u32| Tensor::from_iter((0..n).map(|i| i % 3), &Device::Cpu);
    let to_the_center = |y_hat: &Value, _: &Tensor| {
        let losses = candle(|h: &Tensor| h.broadcast_sub(&h.mean_keepdim(0)?)?.sqr()?.sum(1));
        losses.forward(y_hat, true)
    };
    let linear = |vb: VarBuilder<'_>| Linear::new(4, 3, vb);
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let mut trainer = Trainer::new(&net, to_the_center, sgd(0.1, 0.0));
    for _ in 0..4 {
        trainer.step(&formula_tensor(1, 1.0, &[2, 4])?, &y(2)?)?;
    }
    for _ in 0..2 {
        let fifth = trainer.step(&formula_tensor(1, 1.0, &[8, 4])?, &y(8)?);
        says(words, fifth)?;
    }

    let mixes = Arc::new(AtomicBool::new(false));
    let from_now_on = mixes.clone();
    let later = move |y_hat: &Value, y: &Tensor| {
        if from_now_on.load(Relaxed) {
            to_the_center(y_hat, y)
        } else {
            cross_entropy(y_hat, y)
        }
    };
    let mut trainer = Trainer::new(&net, later, sgd(0.1, 0.0));
    let x = formula_tensor(1, 1.0, &[8, 4])?;
    trainer.step(&x, &y(8)?)?;
    mixes.store(true, Relaxed);
    says(words, trainer.step(&x, &y(8)?))
}

#[test]
fn without_a_word_it_is_refused_and_nothing_has_changed() -> Result<()> {
    for (k, n) in [(2, 8), (4, 8), (4, 4), (2, 3)] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, Clip::new)?;
        let before = net.state_dict()?;
        let mut trainer = Trainer::with(&net, of_shard, sgd(0.1, 0.9))?;
        for words in [
            "depends on the other examples",
            "over_minibatch",
            "within_shards",
            "mean_over",
        ] {
            says(words, trainer.step(&pairs(0, n)?, &()))?;
        }
        ensure!(trainer.steps() == 0);
        near("refused", &before, &net.state_dict()?, 0.0)?;
        // on purpose
        let mut trainer = Trainer::with(&net, of_shard, sgd(0.1, 0.9))?.within_shards();
        trainer.step(&pairs(0, n)?, &())?;
    }
    // one replica has the whole minibatch
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, Clip::new)?;
    Trainer::with(&net, of_shard, sgd(0.1, 0.9))?.step(&pairs(0, 8)?, &())?;
    Ok(())
}

/// A loss that is divided by a number of the minibatch.
#[test]
fn a_share_of_the_minibatch_is_seen() -> Result<()> {
    let (x, y) = (
        formula_tensor(1, 1.0, &[8, 4])?,
        Tensor::new(&[1f32, 0., 1., 1., 0., 0., 1., 0.], &Device::Cpu)?,
    );
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| Linear::new(4, 1, vb))?;
    let balanced = |y_hat: &Value, y: &Tensor| {
        let share = y.mean_all()?.to_scalar::<f32>()? + 0.1;
        let losses = binary_cross_entropy(y_hat, &y.unsqueeze(1)?)?;
        candle(move |l: &Tensor| l / f64::from(share)).forward(&losses, true)
    };
    let step = Trainer::new(&net, balanced, sgd(0.1, 0.0)).step(&x, &y);
    says("mean_over", step)?;
    // by the number of examples
    let mean = |y_hat: &Value, y: &Tensor| {
        let losses = binary_cross_entropy(y_hat, &y.unsqueeze(1)?)?;
        candle(|l: &Tensor| l / l.dim(0)? as f64).forward(&losses, true)
    };
    let step = Trainer::new(&net, mean, sgd(0.1, 0.0)).step(&x, &y);
    says("alone", step)
}

/// Weights of the classes, which have no numbers where all examples are of one class.
#[test]
fn weights_by_the_classes_of_a_shard_are_seen() -> Result<()> {
    fn balanced(y_hat: &Value, y: &Tensor) -> candle_core::Result<Value> {
        let y = y.to_dtype(DType::F32)?;
        let ones = y.sum_all()?;
        let zeros = (ones.neg()? + y.dim(0)? as f64)?;
        let weights = (y.broadcast_div(&ones)? + (1.0 - &y)?.broadcast_div(&zeros)?)?;
        let losses = binary_cross_entropy(y_hat, &y.unsqueeze(1)?)?;
        candle(move |l: &Tensor| l * &weights).forward(&losses, true)
    }
    let x = formula_tensor(1, 1.0, &[8, 4])?;
    for y in [[1u32, 0, 0, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 1, 0, 0]] {
        let y = Tensor::new(&y, &Device::Cpu)?;
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, |vb| Linear::new(4, 1, vb))?;
        let step = Trainer::new(&net, balanced, sgd(0.1, 0.0)).step(&x, &y);
        says("depends on the other examples", step)?;
    }
    Ok(())
}

/// Batch norm, dropout and candle's batch norm mix examples or draw numbers in training; their losses do not.
#[test]
fn networks_whose_norms_mix_examples_train() -> Result<()> {
    struct Normed(candle_nn::BatchNorm);
    impl ModuleT for Normed {
        fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
            self.0.forward_t(x, train)
        }
    }
    let x = formula_tensor(1, 1.0, &[8, 1, 6, 6])?;
    let y = Tensor::new(&[0u32, 1, 2, 3, 0, 1, 2, 3], &Device::Cpu)?;
    for sync_bn in [false, true] {
        let how = Replication {
            sync_bn,
            ..Replication::default()
        };
        let net = DataParallel::with(how, &cpus(2), Initializer::Layers, 0, |vb| {
            let images = Sequential::new()
                .add(Nhwc)
                .add(Conv2d::new(1, 4, 3, vb.pp("conv"))?);
            let normed = images
                .add(BatchNorm2d::new(4, vb.pp("bn"))?)
                .add(Relu)
                .add(Flatten);
            let hidden = normed
                .add(Dropout::new(0.5, vb.pp("dropout"))?)
                .add(Linear::new(64, 5, vb.pp("fc1"))?);
            let candles = candle_nn::batch_norm(5, 1e-5, vb.pp("candle"))?;
            Ok(hidden
                .add(candle(Normed(candles)))
                .add(Linear::new(5, 4, vb.pp("fc2"))?))
        })?;
        let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.0));
        trainer.step(&x, &y)?;
        trainer.step(&x, &y)?;
    }
    Ok(())
}

/// Two replicas that wait for each other: the error is that of this step, and of no earlier one.
#[test]
fn a_replica_that_does_not_gather_is_an_error() -> Result<()> {
    let how = Replication {
        timeout: Some(std::time::Duration::from_secs(1)),
        ..Replication::default()
    };
    let network = |vb: VarBuilder<'_>| Linear::new(4, 1, vb);
    let net = DataParallel::with(how, &cpus(2), Initializer::Layers, 0, network)?;
    let loss = |net: &Linear, x: &[Value], y: &[Tensor]| {
        let own = net.forward(&x[0], true)?;
        let gathers = x[0].eval()?.flatten_all()?.get(0)?.to_scalar::<f32>()? > 0.0;
        let all = if gathers {
            all_examples(&own)?
        } else {
            Value::cat(&[&own, &own], 0)?
        };
        squared_error(&all, &y[0])
    };
    let x = Tensor::ones((4, 4), DType::F32, &Device::Cpu)?;
    let x = Tensor::cat(&[&x, &x.neg()?], 0)?;
    let y = formula_tensor(2, 1.0, &[8, 1])?;
    let mut trainer = Trainer::with(&net, loss, sgd(0.1, 0.0))?.over_minibatch();
    let said = trainer.step(&x, &y).err().context("late")?.to_string();
    let causes = ["did not arrive within 1s", "has left the group"];
    let is_said = causes.iter().any(|cause| said.contains(cause));
    ensure!(is_said, "{said}");
    Ok(())
}

#[test]
fn examples_are_gathered_nowhere_else() -> Result<()> {
    let x = Value::new(&formula_tensor(1, 1.0, &[8, 4])?)?;
    says("over_minibatch", all_examples(&x))?;
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, Clip::new)?;
    let step = Trainer::with(&net, of_minibatch, sgd(0.1, 0.9))?.step(&pairs(0, 8)?, &());
    says("over_minibatch", step)
}
