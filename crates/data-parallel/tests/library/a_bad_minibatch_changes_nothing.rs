//! A minibatch that a replica cannot compute, or whose numbers are no numbers, is an error that names the cause. Nothing
//! was changed then: the steps that follow have the bits of a run without it. And what is saved can be loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use data_parallel::functional::{Network, Value, candle, candle_fn, cross_entropy};
use data_parallel::layers::{BatchNorm2d, Dropout, Embedding, Flatten, Linear, Sequential};
use data_parallel::training::DataIter;
use data_parallel::{
    AdamW, DataParallel, Initializer, Replication, Trainer, evaluate, evaluate_accuracy,
};

use crate::hook::Hook;
use crate::kit::{cpus, formula_tensor, has, largest_difference, says, sgd};
use crate::states::{Bits, draw, everything, same};

type Xy = (Tensor, Tensor);

/// Tokens, dropout and batch norms, whose statistics move before the loss is computed. Where the network is written
/// down, token 60 panics.
fn of_tokens(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let of_candle = candle(candle_nn::batch_norm(1, 1e-5, vb.pp("candle"))?);
    let net = Sequential::new().add(|x: &Value, _| {
        if x.eval()?.max_all()?.to_scalar::<u32>()? == 60 {
            std::panic::resume_unwind(Box::new("a fault"));
        }
        Ok(x.clone())
    });
    let net = net.add(Embedding::new(9, 4, vb.pp("e"))?);
    let net = net.add(candle(|x: &Tensor| x.unsqueeze(1))).add(of_candle);
    let net = net.add(BatchNorm2d::new(4, vb.pp("bn"))?).add(Flatten);
    let net = net.add(Dropout::new(0.3, vb.pp("drop"))?);
    Ok(net.add(Linear::new(24, 3, vb.pp("fc"))?))
}

/// `n` examples of six tokens; of the last example one may be `bad`.
fn tokens(n: usize, seed: u32, bad: Option<u32>) -> Result<Xy> {
    let bad_at = 6 * n as u32 - 2;
    let token = |i: u32| {
        let bad = bad.filter(|_| i == bad_at);
        bad.unwrap_or((i * 5 + seed) % 9)
    };
    let x = Tensor::from_iter((0..6 * n as u32).map(token), &Device::Cpu)?.reshape((n, 6))?;
    let y = Tensor::from_iter((0..n as u32).map(|i| (i + seed) % 3), &Device::Cpu)?;
    Ok((x, y))
}

/// Three steps, with `bad` minibatches before each of them if there are some: what is there at the end.
fn three_steps(
    k: usize,
    how: Replication,
    bad: &[(&str, Xy)],
    loss: fn(&Value, &Tensor) -> candle_core::Result<Value>,
) -> Result<Bits> {
    let net = DataParallel::with(how, &cpus(k), Initializer::Layers, 0, of_tokens)?;
    let mut trainer = Trainer::new(&net, loss, AdamW::default());
    for seed in 0..3 {
        for (words, (x, y)) in bad {
            let before = everything(&net, &trainer)?;
            says(words, trainer.step(x, y))?;
            net.forward(&tokens(7, seed, None)?.0)?; // its replicas still answer
            same(words, &before, &everything(&net, &trainer)?)?;
        }
        let (x, y) = tokens(7, seed, None)?;
        trainer.step(&x, &y)?;
    }
    everything(&net, &trainer)
}

/// Looks at the labels only when it computes: where it is written down, it runs on zeros.
fn own_loss(y_hat: &Value, y: &Tensor) -> candle_core::Result<Value> {
    let y = y.unsqueeze(1)?;
    let loss = move |x: &[Tensor]| {
        let log_p = candle_nn::ops::log_softmax(&x[0], 1)?;
        if x[0].sqr()?.sum_all()?.to_scalar::<f32>()? == 0.0 {
            return log_p.sum(1);
        }
        log_p.gather(&y, 1)?.squeeze(1)?.neg()
    };
    candle_fn(loss).forward(y_hat, true)
}

#[test]
fn what_only_the_computation_knows_changes_nothing() -> Result<()> {
    let (x, y) = tokens(7, 1, None)?;
    let labels = Tensor::new(&[0u32, 1, 2, 0, 1, 2, 7], &Device::Cpu)?;
    let bad = [
        (
            "embedding: token 40 is too large, weight has 9 rows",
            tokens(7, 0, Some(40))?,
        ),
        ("gather invalid index 7 with dim size 3", (x, labels)),
        ("it panicked: a fault", tokens(7, 0, Some(60))?),
        ("y has 6", (tokens(7, 0, None)?.0, y.narrow(0, 0, 6)?)),
    ];
    let net = DataParallel::new(&cpus(3), Initializer::Layers, 0, of_tokens)?;
    for bad in [40, 60] {
        says("replica cpu(2)", net.forward(&tokens(7, 0, Some(bad))?.0))?;
    }
    for k in [1, 2, 3] {
        for bucket_bytes in [1, 25 << 20] {
            for (overlap, sync_bn) in [(true, false), (false, false), (true, true)] {
                let how = || Replication {
                    bucket_bytes,
                    overlap,
                    sync_bn,
                    ..Replication::default()
                };
                let undisturbed = three_steps(k, how(), &[], own_loss)?;
                let found = three_steps(k, how(), &bad, own_loss)?;
                same(&format!("k = {k}, {:?}", how()), &undisturbed, &found)?;
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_that_waited_are_said_to_be_lost() -> Result<()> {
    let run = |bad: bool| -> Result<_> {
        let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, of_tokens)?;
        let mut trainer = Trainer::new(&net, own_loss, sgd(0.1, 0.9)).accumulate(2)?;
        if bad {
            let (x, y) = tokens(7, 5, None)?;
            trainer.step(&x, &y)?;
            let (of_other, _) = tokens(7, 5, Some(40))?;
            says("token 40 is too large", trainer.step(&of_other, &y))?; // nothing is lost
            let y = Tensor::new(&[0u32, 1, 2, 0, 1, 2, 7], &Device::Cpu)?;
            let words =
                "gather invalid index 7 with dim size 3; the gradients of 1 minibatch that waited";
            says(words, trainer.step(&x, &y))?;
            let state = net.state_dict()?;
            return Ok((net, trainer, state));
        }
        let state = net.state_dict()?;
        Ok((net, trainer, state))
    };
    let ((net, mut trainer, state), (other, mut fresh, _)) = (run(true)?, run(false)?);
    // the statistics of the minibatch that waited stay, so they are those of the other network too
    other.load_state_dict(&state)?;
    for (name, _) in state.iter().filter(|(name, _)| name.contains("running")) {
        let of_second = net.parameter(name, 1)?;
        let entry = (format!("replica 1 {name}"), of_second);
        fresh.load_state_dict([entry])?;
    }
    for seed in 0..2 {
        let (x, y) = tokens(7, seed, None)?;
        trainer.step(&x, &y)?;
        fresh.step(&x, &y)?;
    }
    same(
        "begun again",
        &everything(&other, &fresh)?,
        &everything(&net, &trainer)?,
    )
}

/// Eight layers, each with a bucket of its own. The gradient of one of them fails on the second replica.
#[test]
fn a_replica_may_fail_at_any_bucket() -> Result<()> {
    let layers = 8;
    for panics in [false, true] {
        for at in 0..layers {
            let backwards = Arc::new(AtomicUsize::new(0));
            let made = AtomicUsize::new(0);
            let how = Replication {
                bucket_bytes: 1,
                ..Replication::default()
            };
            let count = backwards.clone();
            let net = DataParallel::with(how, &cpus(3), Initializer::Layers, 0, move |vb| {
                let is_faulty = made.fetch_add(1, SeqCst) == 1;
                let mut net = Sequential::new();
                for i in 0..layers {
                    net = net.add(Linear::new(4, 4, vb.pp(format!("{i}")))?);
                    let fails = is_faulty && i == at;
                    let backwards = count.clone();
                    net = net.add(candle(Hook(move |forward: bool| {
                        if forward || !fails || backwards.fetch_add(1, SeqCst) > 0 {
                            return Ok(());
                        }
                        if panics {
                            std::panic::resume_unwind(Box::new("a fault"));
                        }
                        candle_core::bail!("a fault")
                    })));
                }
                Ok(net)
            })?;
            let mut trainer =
                Trainer::new(&net, cross_entropy, sgd(0.1, 0.9)).check_gradients(false);
            let x = formula_tensor(1, 1.0, &[6, 4])?;
            let y = Tensor::new(&[0u32, 1, 2, 3, 0, 1], &Device::Cpu)?;
            let before = everything(&net, &trainer)?;
            let words = if panics {
                "replica cpu(1): it panicked: a fault"
            } else {
                "replica cpu(1)"
            };
            let error = format!("{:#}", trainer.step(&x, &y).expect_err("it fails"));
            has(&error, words)?;
            has(&error, "a fault")?;
            same(
                &format!("layer {at}"),
                &before,
                &everything(&net, &trainer)?,
            )?;
            trainer.step(&x, &y)?; // the fault was the first backward's
            net.check_replicas()?;
        }
    }
    Ok(())
}

/// √x at 0 has no gradient, and the loss is finite all the same. Clipping by a norm would make all of them NaN.
#[test]
fn gradients_that_are_no_numbers_change_nothing() -> Result<()> {
    for k in [1, 2, 3] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, |vb| {
            let first = Linear::without_bias(2, 3, vb.pp("first"))?;
            let roots = candle(|x: &Tensor| x.sqr()?.sqrt());
            Ok(Sequential::new()
                .add(first)
                .add(roots)
                .add(Linear::new(3, 3, vb.pp("last"))?))
        })?;
        let good = formula_tensor(3, 1.0, &[6, 2])?;
        let bad = Tensor::cat(
            &[
                good.narrow(0, 0, 5)?,
                Tensor::zeros((1, 2), DType::F32, &Device::Cpu)?,
            ],
            0,
        )?;
        let y = Tensor::new(&[0u32, 1, 2, 0, 1, 2], &Device::Cpu)?;
        for clips in [false, true] {
            let mut trainer = Trainer::new(&net, cross_entropy, AdamW::default());
            if clips {
                trainer = trainer.clip_norm(1.0)?;
            }
            trainer.step(&good, &y)?;
            let before = everything(&net, &trainer)?;
            let words = "step 2, at learning rate 0.001: the gradient of first.weight is NaN. No step was taken; ";
            says(words, trainer.step(&bad, &y))?;
            same("after NaN", &before, &everything(&net, &trainer)?)?;
            says("there are no gradients", trainer.gradients())?;
            // also where it would only wait
            says(words, trainer.backward(&bad, &y))?;
            trainer.flush()?; // nothing waits
            same("after backward", &before, &everything(&net, &trainer)?)?;
            trainer.step(&good, &y)?;
            ensure!(trainer.gradients()?.len() == 3);
            let of_3_features = formula_tensor(3, 1.0, &[6, 3])?;
            let words = "first: linear: x has 3 features";
            says(words, trainer.step(&of_3_features, &y))?;
            // what is there is not what an older step has left
            says("there are no gradients", trainer.gradients())?;
            let mut takes_all = trainer.check_numbers(false);
            takes_all.step(&bad, &y)?;
            let weight = net
                .parameter("first.weight", 0)?
                .flatten_all()?
                .to_vec1::<f32>()?;
            ensure!(weight[0].is_nan(), "{weight:?}");
            draw(&net, 0.5, &[])?; // for the next round
        }
    }
    Ok(())
}

fn with_candles_norm(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let fc = candle_nn::linear(4, 8, vb.pp("fc"))?;
    let norm = candle_nn::batch_norm(8, candle_nn::BatchNormConfig::default(), vb.pp("bn"))?;
    let net = Sequential::new().add(candle(move |x: &Tensor| x.apply(&fc)));
    Ok(net.add(candle(norm)).add(Linear::new(8, 3, vb.pp("last"))?))
}

/// candle's batch norm divides by one less than the values a channel.
#[test]
fn running_statistics_that_are_no_numbers_change_nothing() -> Result<()> {
    for k in [1, 2] {
        let run = |bad: bool| -> Result<_> {
            let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, with_candles_norm)?;
            let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.9));
            for s in 0..3 {
                let x = formula_tensor(s, 1.0, &[9, 4])?;
                let y = Tensor::from_iter((0..9u32).map(|i| i % 3), &Device::Cpu)?;
                trainer.step(&x.narrow(0, 0, 2 * k)?, &y.narrow(0, 0, 2 * k)?)?;
                if bad {
                    let step = trainer.step(&x.narrow(0, 8, 1)?, &y.narrow(0, 8, 1)?);
                    says(
                        "replica cpu(0): bn.running_var has become NaN: a batch norm of candle's needs",
                        step,
                    )?;
                }
            }
            everything(&net, &trainer)
        };
        same(&format!("k = {k}"), &run(false)?, &run(true)?)?;
    }
    Ok(())
}

#[test]
fn what_is_no_number_is_not_saved_or_evaluated() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let best = folder.path().join("best.safetensors");
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, with_candles_norm)?;
    net.save(&best)?;
    let good = std::fs::read(&best)?;
    let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.9)).check_numbers(false);
    let x = formula_tensor(1, 1.0, &[3, 4])?;
    let y = Tensor::new(&[0u32, 1, 2], &Device::Cpu)?;
    trainer.step(&x, &y)?; // two examples, and one
    let words = "replica cpu(1): tensor \"bn.running_var\" contains NaN or infinity";
    says(words, net.save(&best))?;
    ensure!(std::fs::read(&best)? == good, "the good file is gone");
    let words = "tensor \"replica 1 bn.running_var\" contains NaN or infinity";
    says(words, trainer.state_dict())?; // for a checkpoint
    let data = DataIter::of_tensors(&x, &y, 2, None)?;
    let words = "replica cpu(1): tensor \"bn.running_var\" contains NaN or infinity";
    says(words, evaluate_accuracy(&net, &data))?;
    net.load(&best)?;
    evaluate_accuracy(&net, &data)?;
    Ok(())
}

fn linear(vb: VarBuilder<'_>) -> candle_core::Result<Linear> {
    Linear::new(3, 2, vb)
}

/// To before the first step, while gradients wait, and to another learning rate: the bits of a fresh run.
#[test]
fn a_state_is_set_back_whole() -> Result<()> {
    let x = formula_tensor(1, 1.0, &[6, 3])?;
    let y = Tensor::new(&[0u32, 1, 1, 0, 1, 0], &Device::Cpu)?;
    let optimizers: [fn(&DataParallel) -> Trainer; 2] = [
        |net| Trainer::new(net, cross_entropy, sgd(0.5, 0.9)),
        |net| Trainer::new(net, cross_entropy, AdamW::default()),
    ];
    for new in optimizers {
        for steps_before in [0, 2] {
            let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
            let mut trainer = new(&net);
            for _ in 0..steps_before {
                trainer.step(&x, &y)?;
            }
            let (params, state) = (net.state_dict()?, trainer.state_dict()?);
            trainer.step(&x, &y)?;
            let expected = everything(&net, &trainer)?;
            // it went on since: other steps, another rate, gradients that wait
            trainer.step(&(&x * -2.0)?, &y)?;
            trainer.set_lr(3.0);
            trainer.step(&x, &y)?;
            trainer.backward(&x, &y)?;
            net.load_state_dict(&params)?;
            trainer.load_state_dict(state)?;
            says("there are no gradients", trainer.gradients())?;
            trainer.step(&x, &y)?;
            same(
                &format!("after {steps_before}"),
                &expected,
                &everything(&net, &trainer)?,
            )?;
        }
    }
    // the rate of set_lr is a part of the state
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let mut first = Trainer::new(&net, cross_entropy, sgd(0.5, 0.9));
    first.set_lr(0.125);
    first.step(&x, &y)?;
    let mut second =
        Trainer::new(&net, cross_entropy, sgd(0.5, 0.9)).schedule(|step| 1.0 / (step + 1) as f64);
    second.load_state_dict(first.state_dict()?)?;
    ensure!(second.lr() == 0.0625, "{}", second.lr());
    Ok(())
}

/// As in PyTorch, whose optimizers skip a parameter that has no gradient. A part of the examples is enough to use it.
#[test]
fn an_unused_parameter_stays_as_it_is() -> Result<()> {
    for k in [1, 2, 3] {
        let how = Replication {
            allow_unused: true,
            ..Replication::default()
        };
        // the second layer is used where a shard has an example above 0
        let net = DataParallel::with(how, &cpus(k), Initializer::Layers, 0, |vb| {
            let first = Linear::new(3, 3, vb.pp("first"))?;
            let second = Linear::new(3, 3, vb.pp("second"))?;
            Ok(move |x: &Value, train: bool| {
                let h = first.forward(x, train)?;
                let values: Vec<f32> = x.eval()?.flatten_all()?.to_vec1()?;
                if values.iter().any(|value| *value > 0.0) {
                    second.forward(&h, train)
                } else {
                    Ok(h)
                }
            })
        })?;
        let y = Tensor::new(&[0u32, 1, 2, 0, 1, 2], &Device::Cpu)?;
        let below = formula_tensor(1, 1.0, &[6, 3])?.abs()?.neg()?;
        let one_above = Tensor::cat(&[below.narrow(0, 0, 5)?, below.narrow(0, 5, 1)?.neg()?], 0)?;
        let second = |trainer: &Trainer| -> Result<Bits> {
            let all = everything(&net, trainer)?.into_iter();
            Ok(all.filter(|(name, _)| name.contains("second")).collect())
        };
        for decays in [false, true] {
            let mut trainer = if decays {
                Trainer::new(
                    &net,
                    cross_entropy,
                    AdamW {
                        weight_decay: 0.1,
                        ..AdamW::default()
                    },
                )
            } else {
                Trainer::new(&net, cross_entropy, sgd(0.1, 0.9))
            };
            trainer = trainer.within_shards(); // one example chooses the layers of the others
            trainer.step(&one_above, &y)?;
            let before = second(&trainer)?;
            trainer.step(&below, &y)?;
            same(&format!("k = {k}"), &before, &second(&trainer)?)?;
            trainer.backward(&below, &y)?;
            trainer.backward(&one_above, &y)?;
            trainer.flush()?;
            let moved = second(&trainer)?
                .iter()
                .zip(&before)
                .all(|(a, b)| a.1 != b.1);
            ensure!(moved, "k = {k}: one of two minibatches used it");
            net.check_replicas()?;
        }
        let detached = |y_hat: &Value, y: &Tensor| cross_entropy(&y_hat.detach()?, y);
        let mut trainer = Trainer::new(&net, detached, sgd(0.1, 0.9));
        says(
            "the loss depends on no parameter that is trained",
            trainer.step(&below, &y),
        )?;
    }
    Ok(())
}

/// Of f64 targets, which are not looked at before: the gradients are finite. With synchronized norms the others wait.
#[test]
fn a_loss_that_is_no_number_changes_nothing() -> Result<()> {
    let of_targets = |y_hat: &Value, y: &Tensor| {
        let y = y.clone();
        let add = candle(move |x: &Tensor| x.sqr()?.sum(1)? + y.to_dtype(DType::F32)?);
        add.forward(y_hat, true)
    };
    for k in [1, 2, 3] {
        for sync_bn in [false, true] {
            let how = Replication {
                sync_bn,
                ..Replication::default()
            };
            let net = DataParallel::with(how, &cpus(k), Initializer::Layers, 0, |vb| {
                let net = Sequential::new().add(candle(|x: &Tensor| x.unsqueeze(1)?.unsqueeze(1)));
                let net = net.add(BatchNorm2d::new(4, vb.pp("bn"))?).add(Flatten);
                Ok(net.add(Linear::new(4, 3, vb.pp("fc"))?))
            })?;
            let mut trainer = Trainer::new(&net, of_targets, sgd(0.1, 0.9));
            let x = formula_tensor(1, 1.0, &[7, 4])?;
            let good = Tensor::zeros(7, DType::F64, &Device::Cpu)?;
            trainer.step(&x, &good)?;
            for bad in [f64::NAN, f64::INFINITY] {
                let mut y = vec![0.0; 7];
                y[6] = bad;
                let y = Tensor::new(y, &Device::Cpu)?;
                let before = everything(&net, &trainer)?;
                let words = format!(
                    "step 2, at learning rate 0.1: the loss is {bad}. No step was taken; try a smaller rate, or clip_norm"
                );
                says(&words, trainer.step(&x, &y))?;
                same("after a step", &before, &everything(&net, &trainer)?)?;
                says(&words, trainer.backward(&x, &y))?;
                same("after backward", &before, &everything(&net, &trainer)?)?;
            }
            trainer.step(&x, &good)?;
            net.check_replicas()?;
        }
    }
    Ok(())
}

/// All replicas get the jobs of several threads in one order.
#[test]
fn trainers_on_several_threads_do_not_mix() -> Result<()> {
    let net = DataParallel::new(&cpus(3), Initializer::Layers, 0, linear)?;
    let y = Tensor::new(&[0u32, 1, 1, 0, 1, 0], &Device::Cpu)?;
    let worst = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|s| {
                let (net, y) = (&net, &y);
                scope.spawn(move || -> Result<f32> {
                    let x = formula_tensor(s, 1.0, &[6, 3])?;
                    let mut trainer = Trainer::new(net, cross_entropy, sgd(0.0, 0.0));
                    trainer.step(&x, y)?;
                    let expected = trainer.gradients()?;
                    let mut worst = 0f32;
                    for _ in 0..300 {
                        trainer.step(&x, y)?;
                        for ((_, a), (_, b)) in trainer.gradients()?.iter().zip(&expected) {
                            worst = worst.max(largest_difference(a, b)?);
                        }
                    }
                    Ok(worst)
                })
            })
            .collect();
        let of_threads = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        of_threads.collect::<Result<Vec<f32>>>()
    })?;
    ensure!(worst == [0.0; 4], "{worst:?}");
    Ok(())
}

#[test]
fn no_minibatch_has_no_accuracy() -> Result<()> {
    let net = DataParallel::new(&cpus(2), Initializer::Layers, 0, linear)?;
    let none = || Vec::<candle_core::Result<(Tensor, Tensor)>>::new();
    says(
        "the accuracy of no example: no minibatch came",
        evaluate_accuracy(&net, none()),
    )?;
    let [sum] = evaluate(&net, none(), |_, _| Ok([1.0]))?;
    ensure!(sum == 0.0);
    Ok(())
}
