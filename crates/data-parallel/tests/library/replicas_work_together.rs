//! However the replicas of the second section work together, they take the step of one device: by
//! every all-reduce, in buckets, while they compute, over several minibatches, in shares of any size,
//! and with batch norm over the whole minibatch.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use candle_core::{DType, Module, Tensor};
use candle_nn::VarBuilder;
use data_parallel::functional::{Network, Value, candle, cross_entropy};
use data_parallel::layers::{BatchNorm2d, Conv2d, Flatten, Linear, Nhwc, Relu, Sequential};
use data_parallel::{
    Algorithm, DataParallel, Initializer, Link, ReduceOn, Replication, Sgd, Trainer,
};

use crate::hook::Hook;
use crate::kit::{cpus, formula_batch, largest, says, sgd, steps};
use crate::resnet::{Residual, resnet18};
use crate::states::{State, differences, near, of_replica};

/// Three layers, with parameters of very different sizes.
fn three_layers(vb: VarBuilder<'_>) -> candle_core::Result<Sequential> {
    let net = Sequential::new().add(Nhwc).add(Flatten);
    let net = net.add(Linear::new(784, 50, vb.pp("fc0"))?).add(Relu);
    let net = net.add(Linear::new(50, 30, vb.pp("fc1"))?).add(Relu);
    Ok(net.add(Linear::new(30, 10, vb.pp("fc2"))?))
}

fn with(change: impl FnOnce(&mut Replication)) -> Replication {
    let mut how = Replication::default();
    change(&mut how);
    how
}

/// What `k` replicas hold after three steps on minibatches of `n` examples; all the same.
fn three_steps(how: Replication, k: usize, n: usize) -> Result<State> {
    let net = DataParallel::with(how, &cpus(k), Initializer::Xavier(3.0), 0, three_layers)?;
    after_three_steps(&net, n)
}

fn after_three_steps(net: &DataParallel, n: usize) -> Result<State> {
    let mut trainer = Trainer::new(net, cross_entropy, Sgd::new(0.1));
    steps(&mut trainer, 0..3, n)?;
    everywhere(net)
}

/// What all replicas hold, which has to be the same to the bit; running statistics as well.
fn everywhere(net: &DataParallel) -> Result<State> {
    let state = net.state_dict()?;
    for i in 1..net.devices().len() {
        near(&format!("replica {i}"), &state, &of_replica(net, i)?, 0.0)?;
    }
    Ok(state)
}

/// The largest difference of a tensor, relative to the largest value in it, and its name.
fn apart(a: &State, b: &State) -> Result<(f32, String)> {
    let mut worst = (0.0, String::new());
    for ((name, difference), (_, a)) in differences(a, b)?.into_iter().zip(a) {
        let most = largest(&a.to_dtype(DType::F32)?)?;
        let relative = difference / most.max(f32::MIN_POSITIVE);
        if relative >= worst.0 {
            worst = (relative, name.to_owned());
        }
    }
    Ok(worst)
}

fn same(a: &State, b: &State, limit: f32, what: impl std::fmt::Display) -> Result<()> {
    let (difference, name) = apart(a, b)?;
    ensure!(difference <= limit, "{what}: {name}: {difference}");
    Ok(())
}

#[test]
fn every_way_to_sum_takes_the_step_of_one_device() -> Result<()> {
    let one = three_steps(Replication::default(), 1, 12)?;
    for algorithm in Algorithm::ALL {
        for k in [2, 3, 4] {
            let reduce_on = [ReduceOn::Host, ReduceOn::Device][usize::from(k > 2)];
            let how = with(|how| (how.allreduce, how.reduce_on) = (algorithm, reduce_on));
            let state = three_steps(how.clone(), k, 12)?;
            same(&one, &state, 2e-6, format_args!("{algorithm}, k = {k}"))?;
            same(&state, &three_steps(how, k, 12)?, 0.0, "the same run again")?;
        }
    }
    Ok(())
}

#[test]
fn buckets_and_overlap_change_no_bit() -> Result<()> {
    let whole = with(|how| (how.bucket_bytes, how.overlap) = (usize::MAX, false));
    for k in [2, 3] {
        let expected = three_steps(whole.clone(), k, 7)?;
        for (bytes, overlap) in [(usize::MAX, true), (8000, true), (1, true), (1, false)] {
            let how = with(|how| (how.bucket_bytes, how.overlap) = (bytes, overlap));
            let what = format!("{bytes} bytes, overlap {overlap}");
            same(&expected, &three_steps(how, k, 7)?, 0.0, what)?;
        }
    }
    Ok(())
}

/// What two replicas hold after six steps, in which each of three residual blocks is skipped in every third step,
/// and each replica skips another one where they are `apart`.
fn stochastic_depth(how: Replication, apart: bool) -> Result<State> {
    let made = AtomicU32::new(0);
    let init = Initializer::Xavier(3.0);
    let net = DataParallel::with(how, &cpus(2), init, 0, move |vb| {
        let replica = made.fetch_add(u32::from(apart), SeqCst);
        let step = AtomicU32::new(replica);
        let conv = Conv2d::new(1, 4, 5, vb.pp("conv"))?.stride(4);
        let block = |i| Residual::new(4, 4, false, 1, vb.pp(format!("block{i}")));
        let blocks = (0..3).map(block).collect::<candle_core::Result<Vec<_>>>()?;
        let fc = Linear::new(4, 10, vb.pp("fc"))?;
        Ok(move |x: &Value, train: bool| {
            let skipped = step.fetch_add(1, SeqCst) % 3;
            let mut h = conv.forward(&x.nhwc()?, train)?;
            for (i, block) in (0..).zip(&blocks) {
                if i != skipped {
                    h = block.forward(&h, train)?;
                }
            }
            fc.forward(&h.global_avg_pool2d()?, train)
        })
    })?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    steps(&mut trainer, 0..6, 6)?;
    net.check_replicas()?;
    Ok(net.state_dict()?)
}

/// A network that changes from step to step has gradients that are complete at other times in each.
#[test]
fn stochastic_depth_with_overlap_changes_no_bit() -> Result<()> {
    for apart in [false, true] {
        let after = |overlap, bucket_bytes, allow_unused| {
            let how = with(|how| {
                (how.overlap, how.bucket_bytes) = (overlap, bucket_bytes);
                how.allow_unused = allow_unused;
            });
            stochastic_depth(how, apart)
        };
        let expected = after(false, usize::MAX, true)?;
        for bytes in [1, 1000, usize::MAX] {
            let state = after(true, bytes, true)?;
            same(&expected, &state, 0.0, format_args!("{bytes} bytes"))?;
        }
        let without = after(true, 1, false);
        says("the loss does not depend on the parameter block", without)?;
    }
    Ok(())
}

/// The parameters after minibatches of 4, 3 and 2 examples, `accumulate` to a step.
fn accumulated(k: usize, accumulate: usize) -> Result<State> {
    let net = untrained(k)?;
    let mut trainer = Trainer::new(&net, cross_entropy, sgd(0.1, 0.9)).accumulate(accumulate)?;
    let (x, y) = formula_batch(0, 9)?;
    for (first, n) in [(0, 4), (4, 3), (7, 2)] {
        trainer.step(&x.narrow(0, first, n)?, &y.narrow(0, first, n)?)?;
    }
    trainer.flush()?;
    trainer.flush()?; // there is nothing left
    everywhere(&net)
}

#[test]
fn accumulated_minibatches_are_one() -> Result<()> {
    let net = untrained(1)?;
    let (x, y) = formula_batch(0, 9)?;
    Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    let one = net.state_dict()?;
    for k in [1, 2, 4] {
        for of in [3, 5] {
            let what = format!("3 of {of}, k = {k}");
            same(&one, &accumulated(k, of)?, 2e-6, what)?;
        }
        let two_steps = accumulated(k, 2)?;
        ensure!(apart(&one, &two_steps)?.0 > 1e-4, "2 of 3 are one step");
    }
    Ok(())
}

/// Two minibatches wait for a third and a fourth when a group becomes two: the third is the last.
#[test]
fn a_group_that_is_made_smaller_ends_with_the_next_minibatch() -> Result<()> {
    let (whole, parts) = (untrained(2)?, untrained(2)?);
    let (x, y) = formula_batch(0, 9)?;
    Trainer::new(&whole, cross_entropy, Sgd::new(0.1)).step(&x, &y)?;
    let mut trainer = Trainer::new(&parts, cross_entropy, Sgd::new(0.1)).accumulate(4)?;
    for i in 0..3 {
        if i == 2 {
            trainer = trainer.accumulate(2)?;
        }
        trainer.step(&x.narrow(0, 3 * i, 3)?, &y.narrow(0, 3 * i, 3)?)?;
    }
    let what = "three minibatches are no step";
    same(&everywhere(&whole)?, &everywhere(&parts)?, 2e-6, what)
}

fn untrained(k: usize) -> Result<DataParallel> {
    Ok(DataParallel::new(
        &cpus(k),
        Initializer::Xavier(3.0),
        0,
        three_layers,
    )?)
}

/// A replica has only its own part of them, which is not divided by the right number.
#[test]
fn gradients_that_wait_are_not_shown_as_those_of_a_step() -> Result<()> {
    let (net, (x, y)) = (untrained(2)?, formula_batch(0, 4)?);
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).accumulate(2)?;
    for shown in [0, 6, 0] {
        trainer.step(&x, &y)?;
        let gradients = trainer.gradients()?.len();
        ensure!(gradients == shown, "{gradients} are shown, not {shown}");
    }
    Ok(())
}

#[test]
fn shares_of_any_size_take_the_same_step() -> Result<()> {
    let one = three_steps(Replication::default(), 1, 13)?;
    for weights in [vec![3.0, 1.0], vec![1.0, 100.0], vec![0.2, 0.5, 0.1]] {
        let net = untrained(weights.len())?;
        net.set_split(&weights)?;
        same(&one, &after_three_steps(&net, 13)?, 2e-6, "weights")?;
    }
    Ok(())
}

#[test]
fn a_split_can_change_between_steps() -> Result<()> {
    let net = untrained(2)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let (x, y) = formula_batch(0, 12)?;
    let mut sizes = |weights: [f64; 2]| {
        net.set_split(&weights)?;
        let shards = trainer.step(&x, &y)?.shards;
        anyhow::Ok([shards[0].1.dim(0)?, shards[1].1.dim(0)?])
    };
    ensure!(sizes([1.0, 2.0])? == [4, 8] && sizes([3.0, 1.0])? == [9, 3]);
    let words = "weights [1.0, 0.0]: expected numbers above 0";
    says(words, net.set_split(&[1.0, 0.0]))?;
    let words = "1 weights for 2 replicas; give one for each";
    says(words, net.set_split(&[1.0]))
}

/// ResNet-18 after a step on `n` examples: the loss, and what all replicas hold.
fn resnet18_after_a_step(how: Replication, k: usize, n: usize) -> Result<(f32, State)> {
    let network = |vb: VarBuilder<'_>| resnet18(10, vb);
    let net = DataParallel::with(how.clone(), &cpus(k), Initializer::Xavier(3.0), 0, network)?;
    let (x, y) = formula_batch(0, n)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.01));
    let loss = trainer.step(&x, &y)?.loss.mean()?;
    let state = match how.sync_bn {
        true => everywhere(&net)?,
        false => net.state_dict()?,
    };
    Ok((loss, state))
}

#[test]
fn resnet18_with_synchronized_norms_takes_the_step_of_one_device() -> Result<()> {
    for n in [11, 32] {
        let (loss, one) = resnet18_after_a_step(Replication::default(), 1, n)?;
        for k in [2, 3, 4] {
            let how = with(|how| how.sync_bn = true);
            let (found, state) = resnet18_after_a_step(how, k, n)?;
            let difference = (found - loss).abs() / loss;
            ensure!(difference <= 1e-6, "n = {n}, k = {k}: loss {found}, {loss}");
            same(&one, &state, 1e-5, format_args!("n = {n}, k = {k}"))?;
        }
        let (_, own) = resnet18_after_a_step(Replication::default(), 2, n)?;
        let (difference, _) = apart(&one, &own)?;
        ensure!(difference > 1e-2, "norms of each device's own are the same");
    }
    Ok(())
}

#[test]
fn a_replica_without_an_example_keeps_step_in_synchronized_norms() -> Result<()> {
    let how = with(|how| how.sync_bn = true);
    let (loss, one) = resnet18_after_a_step(Replication::default(), 1, 2)?;
    let (found, state) = resnet18_after_a_step(how, 3, 2)?;
    ensure!((found - loss).abs() <= 1e-5 * loss, "loss {found}, {loss}");
    same(&one, &state, 1e-5, "two examples on three devices")
}

/// Checks the error of a step on `n` examples with three replicas and synchronized norms.
fn synchronized_step_says<N: Network + 'static>(
    words: &str,
    n: usize,
    network: fn(VarBuilder<'_>) -> candle_core::Result<N>,
) -> Result<()> {
    let how = with(|how| how.sync_bn = true);
    let net = DataParallel::with(how, &cpus(3), Initializer::Xavier(3.0), 0, network)?;
    let (x, y) = formula_batch(0, n)?;
    let step = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).step(&x, &y);
    says(words, step)
}

/// candle's operations forget on what a tensor without elements depends.
#[test]
fn a_replica_without_an_example_says_so_where_candle_needs_one() -> Result<()> {
    let words = "replica cpu(2): this replica got no example of the minibatch";
    synchronized_step_says(words, 2, |vb| {
        let norm = BatchNorm2d::new(1, vb.pp("norm"))?;
        let fc = candle_nn::linear(784, 10, vb.pp("fc"))?;
        let fc = candle(move |x: &Tensor| fc.forward(x));
        Ok(move |x: &Value, train: bool| {
            fc.forward(&norm.forward(&x.nhwc()?, train)?.flatten()?, train)
        })
    })
}

/// Those of candle-nn would keep the statistics of each replica's own part.
#[test]
fn norms_that_do_not_synchronize_are_named() -> Result<()> {
    let words = "sync_bn: the network has no synchronized batch norm";
    synchronized_step_says(words, 3, |vb| {
        let norm = candle_nn::batch_norm(1, 1e-5, vb.pp("norm"))?;
        let (norm, fc) = (candle(norm), Linear::new(784, 10, vb.pp("fc"))?);
        Ok(move |x: &Value, train: bool| {
            fc.forward(&norm.forward(x, train)?.nhwc()?.flatten()?, train)
        })
    })
}

/// The usual way to fine-tune: the norm is called with `train` false, so there is nothing to sum. Two examples on three
/// replicas leave one without.
#[test]
fn frozen_norms_train_with_synchronized_ones() -> Result<()> {
    let states = [false, true].map(|sync_bn| {
        let how = with(|how| how.sync_bn = sync_bn);
        let net = DataParallel::with(how, &cpus(3), Initializer::Xavier(3.0), 0, |vb| {
            let norm = BatchNorm2d::new(1, vb.pp("norm"))?;
            let fc = Linear::new(784, 10, vb.pp("fc"))?;
            Ok(move |x: &Value, train: bool| {
                fc.forward(&norm.forward(&x.nhwc()?, false)?.flatten()?, train)
            })
        })?;
        let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
        steps(&mut trainer, 0..2, 2)?;
        Ok(net.state_dict()?)
    });
    let [own, shared]: [Result<State>; 2] = states;
    same(&own?, &shared?, 1e-6, "frozen norms")
}

/// Fails on one of the ways.
#[derive(Clone, Copy, Debug)]
struct Fault {
    panics: bool,
    forward: bool,
}

impl Fault {
    fn on_the_way(self, forward: bool) -> candle_core::Result<()> {
        match (forward == self.forward, self.panics) {
            (false, _) => Ok(()),
            (true, false) => candle_core::bail!("a fault"),
            (true, true) => std::panic::resume_unwind(Box::new("a fault")),
        }
    }
}

/// Batch norm between two layers, and the fault of the second replica before it if `first`, or behind both.
fn error_of(how: Replication, fault: Fault, first: bool) -> Result<String> {
    let made = AtomicU32::new(0);
    let net = DataParallel::with(how, &cpus(3), Initializer::Xavier(3.0), 0, move |vb| {
        let is_faulty = made.fetch_add(1, SeqCst) == 1;
        let conv = Conv2d::new(1, 6, 5, vb.pp("conv"))?;
        let norm = BatchNorm2d::new(6, vb.pp("norm"))?;
        let fc = Linear::new(6 * 24 * 24, 10, vb.pp("fc"))?;
        let faulty_if = move |here: bool, x: Value| match here && is_faulty {
            true => candle(Hook(move |way| fault.on_the_way(way))).forward(&x, true),
            false => Ok(x),
        };
        Ok(move |x: &Value, train: bool| {
            let h = faulty_if(first, conv.forward(&x.nhwc()?, train)?)?;
            let h = norm.forward(&h, train)?;
            faulty_if(!first, fc.forward(&h.flatten()?, train)?)
        })
    })?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1));
    let (x, y) = formula_batch(0, 6)?;
    let start = Instant::now();
    let error = format!("{:#}", trainer.step(&x, &y).unwrap_err());
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(5), "{took:?}");
    let ended = trainer.step(&x, &y).is_err();
    ensure!(ended, "it took a step without a replica");
    Ok(error)
}

/// Whatever the others were waiting for when it failed, it is the one that is named.
#[test]
fn a_replica_that_fails_is_the_cause_wherever_the_others_wait() -> Result<()> {
    for i in 0..16 {
        let [panics, forward, first, sync_bn] = [1, 2, 4, 8].map(|bit| i & bit != 0);
        let fault = Fault { panics, forward };
        let how = with(|how| (how.sync_bn, how.bucket_bytes) = (sync_bn, 1));
        let error = error_of(how, fault, first)?;
        let words = if panics { "panicked" } else { "a fault" };
        let named = error.contains("replica cpu(1)") && error.contains(words);
        ensure!(named, "case {i}, {fault:?}: {error}");
    }
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(20);

/// The gradient takes 20 ms.
fn slow_backward(forward: bool) -> candle_core::Result<()> {
    if !forward {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The fastest of five steps of eight layers, between which the backward pass takes 20 ms each, over links that take
/// 20 ms for the gradients of a layer. The layers are small, so that a busy machine has little to compute.
fn step_over_slow_links(overlap: bool) -> Result<Duration> {
    let link = Link {
        latency: PAUSE / 2,
        bytes_per_second: 1e12,
    };
    let how = with(|how| (how.link, how.bucket_bytes, how.overlap) = (Some(link), 1, overlap));
    let net = DataParallel::with(how, &cpus(2), Initializer::Xavier(3.0), 0, |vb| {
        let layers = (0..8).map(|i| vb.get((16, if i == 0 { 784 } else { 16 }), &format!("{i}")));
        let layers = layers.collect::<candle_core::Result<Vec<_>>>()?;
        Ok(move |x: &Value, train: bool| {
            let mut h = x.nhwc()?.flatten()?;
            for weight in &layers {
                h = candle(Hook(slow_backward)).forward(&h.linear(weight, None)?, train)?;
            }
            Ok(h)
        })
    })?;
    let trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.0)).check_gradients(false);
    let mut trainer = trainer.within_shards();
    let (x, y) = formula_batch(0, 2)?;
    trainer.step(&x, &y)?; // the checks of a first step take time of their own
    let times = (0..5).map(|_| {
        let start = Instant::now();
        trainer.step(&x, &y)?;
        Ok(start.elapsed())
    });
    let times = times.collect::<Result<Vec<_>>>()?;
    Ok(times.into_iter().min().unwrap_or_default())
}

/// 160 ms of either: 320 one after the other, little more than 180 at the same time.
#[test]
fn the_all_reduce_goes_on_while_the_replicas_compute() -> Result<()> {
    let (apart, together) = (step_over_slow_links(false)?, step_over_slow_links(true)?);
    ensure!(apart >= Duration::from_millis(310), "{apart:?}");
    ensure!(together < apart.mul_f64(0.75), "{together:?}, {apart:?}");
    Ok(())
}
