//! Processes that train together have the same settings, the same data and the same parameters, or all of them get an
//! error that names what differs. Processes are threads here.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use data_parallel::Error;
use data_parallel::prelude::*;

use crate::kit::{formula_batch, sgd};
use crate::own_optimizer::own;
use crate::where_replicas_are::{in_processes, to_the_end};

fn network(vb: VarBuilder<'_>) -> Result<Linear, candle_core::Error> {
    Linear::new(784, 10, vb)
}

fn flat((x, y): (Tensor, Tensor)) -> candle_core::Result<(Tensor, Tensor)> {
    Ok((x.flatten_from(1)?, y))
}

/// Takes three steps in each of two processes. `change` may change the trainer of a process before a step.
fn steps(
    make: impl Fn(usize, &DataParallel) -> candle_core::Result<Trainer> + Sync,
    change: impl Fn(usize, usize, &mut Trainer) + Sync,
) -> Result<Vec<std::result::Result<(), Error>>> {
    in_processes(&[1, 2], |world| {
        let rank = world.processes().rank();
        let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
        let mut trainer = make(rank, &net)?;
        let mut train = || -> candle_core::Result<()> {
            for step in 0..3u32 {
                change(rank, step as usize, &mut trainer);
                let (x, y) = flat(formula_batch(10 * step + rank as u32, 4)?)?;
                trainer.step(&x, &y)?;
            }
            trainer.flush()
        };
        Ok(train().map_err(Error::from))
    })
}

/// What each of two processes ends with; `job` gets its number and its network.
fn in_both(
    job: impl Fn(usize, &DataParallel) -> candle_core::Result<()> + Sync,
) -> Result<Vec<std::result::Result<(), Error>>> {
    in_processes(&[1, 1], |world| {
        let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
        Ok(job(world.processes().rank(), &net).map_err(Error::from))
    })
}

/// Checks that both processes have the error, and that it has the words.
fn both_say(ended: Vec<std::result::Result<(), Error>>, words: &[&str]) -> Result<()> {
    ensure!(ended.len() == 2);
    for ended in ended {
        let Err(Error::Disagreement(error)) = ended else {
            anyhow::bail!("expected a disagreement on {words:?}, not {ended:?}");
        };
        let said = error.to_string();
        let missing = words.iter().find(|word| !said.contains(**word));
        ensure!(missing.is_none(), "{missing:?} is not in: {said}");
    }
    Ok(())
}

fn plain(_: usize, net: &DataParallel) -> candle_core::Result<Trainer> {
    Ok(Trainer::new(net, cross_entropy, sgd(0.01, 0.9)))
}

#[test]
fn processes_with_the_same_settings_train() -> Result<()> {
    let accumulated = |_, net: &DataParallel| plain(0, net)?.accumulate(2);
    let falls = |_, step: usize, trainer: &mut Trainer| trainer.set_lr(0.1 / (step + 1) as f64);
    let all = [steps(plain, falls)?, steps(accumulated, |_, _, _| ())?];
    for ended in all.into_iter().flatten() {
        ended?;
    }
    Ok(())
}

#[test]
fn another_learning_rate_in_one_process_is_an_error_in_all() -> Result<()> {
    let late = |rank, step, trainer: &mut Trainer| {
        if rank == 1 && step == 1 {
            trainer.set_lr(0.1);
        }
    };
    let words = [
        "different settings",
        "process 0 has \"learning-rate 0.01 of step 2\"",
        "process 1 has \"learning-rate 0.1 of step 2\"",
    ];
    both_say(steps(plain, late)?, &words)
}

type Make = fn(usize, &DataParallel) -> candle_core::Result<Trainer>;

#[test]
fn each_setting_of_a_trainer_is_compared() -> Result<()> {
    let cases: [(Make, &str); 8] = [
        (
            |rank, net| {
                let lr = 0.01 * (1.0 + rank as f64);
                Ok(Trainer::new(net, cross_entropy, sgd(lr, 0.9)))
            },
            "learning-rate 0.02",
        ),
        (
            |rank, net| {
                let momentum = 0.5 + 0.1 * rank as f64;
                Ok(Trainer::new(net, cross_entropy, sgd(0.01, momentum)))
            },
            "momentum: 0.6",
        ),
        (
            |rank, net| plain(rank, net)?.clip_norm(1.0 + rank as f64),
            "clip-norm Some(2.0)",
        ),
        (
            |rank, net| plain(rank, net)?.rate("weight", 1.0 + rank as f64),
            "rates [\\\"weight 2\\\"]",
        ),
        (
            |rank, net| plain(rank, net)?.accumulate(1 + rank),
            "accumulate 2",
        ),
        (
            |rank, net| Ok(plain(rank, net)?.schedule(move |_| 1.0 / (1.0 + rank as f64))),
            "learning-rate 0.005 of step 1",
        ),
        (
            |rank, net| Ok(plain(rank, net)?.depends_on(&format!("data {rank}"))),
            "process 1 has \"data 1\"",
        ),
        (
            |rank, net| {
                let plain = plain(rank, net)?;
                Ok(if rank == 1 {
                    plain.within_shards()
                } else {
                    plain
                })
            },
            "process 0 has \"\", process 1 has \"loss-sees shards\"",
        ),
    ];
    for (make, words) in cases {
        both_say(steps(make, |_, _, _| ())?, &[words])?;
    }
    Ok(())
}

#[test]
fn another_network_in_one_process_is_an_error_in_all() -> Result<()> {
    for [classes, other_classes] in [[10, 3], [3, 10]] {
        let ended = in_processes(&[1, 1], |world| {
            let rank = world.processes().rank();
            let classes = [classes, other_classes][rank];
            let network = move |vb: VarBuilder<'_>| Linear::new(784, classes, vb);
            let net = DataParallel::new(world, Initializer::Layers, 0, network);
            Ok(net.map(drop).map_err(Error::from))
        })?;
        let process_0 = format!("process 0 has \"weight [{classes}, 784]\"");
        let process_1 = format!("process 1 has \"weight [{other_classes}, 784]\"");
        both_say(ended, &["different networks", &process_0, &process_1])?;
    }
    Ok(())
}

/// Where one takes sums that the other does not, both would wait.
#[test]
fn each_setting_of_a_replication_is_compared() -> Result<()> {
    type Change = fn(&mut Replication);
    let cases: [(Change, &str); 5] = [
        (|how| how.allow_unused = true, "allow-unused true"),
        (|how| how.sync_bn = true, "sync-bn true"),
        (|how| how.bucket_bytes = 64, "bucket-bytes 64"),
        (|how| how.overlap = false, "overlap false"),
        (
            |how| how.allreduce = data_parallel::Algorithm::Owner,
            "allreduce owner",
        ),
    ];
    for (change, words) in cases {
        let ended = in_processes(&[1, 1], |world| {
            let mut how = Replication::default();
            if world.processes().rank() == 1 {
                change(&mut how);
            }
            let net = DataParallel::with(how, world, Initializer::Layers, 0, network);
            Ok(net.map(drop).map_err(Error::from))
        })?;
        both_say(ended, &["different networks", words])?;
    }
    Ok(())
}

/// As where the first process alone asks for the state of a trainer, or for outputs.
#[test]
fn a_call_in_one_process_alone_is_an_error_in_all() -> Result<()> {
    let ended = in_processes(&[1, 1], |world| {
        let first = world.processes().rank() == 0;
        let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
        let trainer = plain(0, &net)?;
        let called = if first {
            trainer.state_dict().map(drop)
        } else {
            world.processes().agree("scores", "0.5")
        };
        Ok(called.map_err(Error::from))
    })?;
    let words = [
        "the processes make different calls",
        "process 0 gathers the buffers of a network",
        "process 1 gathers scores",
    ];
    both_say(ended, &words)
}

#[test]
fn data_in_another_order_is_an_error_in_all() -> Result<()> {
    let ended = in_both(|rank, net| {
        let mut trainer = plain(rank, net)?;
        let (x, y) = flat(formula_batch(0, 16)?)?;
        let data = net.part(DataIter::of_tensors(&x, &y, 4, Some(7 * rank as u64))?);
        data.epoch(1).try_for_each(|batch| {
            let (x, y) = batch?;
            trainer.step(&x, &y).map(drop)
        })
    })?;
    both_say(ended, &["order of seed 0", "order of seed 7"])
}

#[test]
fn an_evaluation_of_other_data_is_an_error_in_all() -> Result<()> {
    let ended = in_both(|rank, net| {
        let (x, y) = flat(formula_batch(0, [16, 8][rank])?)?;
        evaluate_accuracy(net, &DataIter::of_tensors(&x, &y, 4, None)?).map(drop)
    })?;
    both_say(ended, &["data examples 16", "data examples 8"])
}

/// The first process would wait for sums.
#[test]
fn a_step_beside_half_a_step_is_an_error_in_all() -> Result<()> {
    let ended = in_both(|rank, net| {
        let mut trainer = plain(rank, net)?;
        let (x, y) = flat(formula_batch(rank as u32, 4)?)?;
        let step = if rank == 0 {
            trainer.step(&x, &y)
        } else {
            trainer.backward(&x, &y)
        };
        step.map(drop)
    })?;
    both_say(ended, &["takes-step true", "takes-step false"])
}

/// Its rates are shown in another order in each process.
#[derive(Debug)]
struct WithRates(HashMap<String, f64>);

impl Optimizer for WithRates {
    fn lr(&self) -> f64 {
        0.01
    }

    fn state(&self) -> &'static [&'static str] {
        &[]
    }

    fn step(&self, slices: &mut [Slice<'_>]) -> candle_core::Result<()> {
        for slice in slices {
            let rate = (slice.lr * self.0[slice.name]) as f32;
            slice.each(|p, sum, []| *p -= rate * sum)?;
        }
        Ok(())
    }
}

#[test]
fn the_order_of_a_map_is_no_setting() -> Result<()> {
    let with = |rate: f64, net: &DataParallel| {
        let names = ["weight", "bias", "a", "b", "c", "d", "e", "f", "g"];
        let rates = names.map(|name| (name.to_owned(), rate));
        Ok(Trainer::new(net, cross_entropy, WithRates(rates.into())))
    };
    for ended in steps(|_, net| with(2.0, net), |_, _, _| ())? {
        ended?;
    }
    let apart = steps(|rank, net| with(2.0 + rank as f64, net), |_, _, _| ())?;
    both_say(apart, &["different settings", "optimizer WithRates"])
}

/// Takes a step with an optimizer whose `Debug` does not show how large its steps are: other ones in the second process if
/// `differs`.
fn sloppy_step(rank: usize, net: &DataParallel, differs: bool) -> candle_core::Result<()> {
    let factor = if differs && rank == 1 { 0.02 } else { 0.01 };
    let sloppy = own(&[], move |slice| {
        slice.each(|p, sum, []| *p -= factor * sum)
    });
    let (x, y) = flat(formula_batch(rank as u32, 4)?)?;
    let mut trainer = Trainer::new(net, cross_entropy, sloppy);
    trainer.step(&x, &y).map(drop)
}

#[test]
fn other_parameters_are_found_by_an_evaluation() -> Result<()> {
    let ended = in_both(|rank, net| {
        sloppy_step(rank, net, true)?;
        let (x, y) = flat(formula_batch(2, 16)?)?;
        evaluate_accuracy(net, &DataIter::of_tensors(&x, &y, 4, None)?).map(drop)
    })?;
    both_say(ended, &["weight", "process 0", "process 1"])
}

#[test]
fn other_parameters_are_found_at_the_end() -> Result<()> {
    for differs in [false, true] {
        let ended = to_the_end(&[1, 1], |world| {
            let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
            Ok(sloppy_step(world.processes().rank(), &net, differs)?)
        })?;
        let mut ended = ended.into_iter().map(|ended| ended.map_err(Error::from));
        if differs {
            both_say(ended.collect(), &["different parameters at the end"])?;
        } else {
            ensure!(ended.all(|ended| ended.is_ok()));
        }
    }
    Ok(())
}

/// The other process waits in that step, as under MPI. Here it has ended, and waits for nothing.
#[test]
fn after_a_step_that_failed_each_call_is_an_error() -> Result<()> {
    in_processes(&[1, 1], |world| {
        let rank = world.processes().rank();
        let net = DataParallel::new(world, Initializer::Layers, 0, network)?;
        let falls = move |step| {
            if rank == 1 && step == 1 {
                f64::NAN
            } else {
                1.0
            }
        };
        let mut trainer = plain(rank, &net)?.schedule(falls);
        let (x, y) = flat(formula_batch(rank as u32, 4)?)?;
        trainer.step(&x, &y)?;
        if rank == 0 {
            return Ok(());
        }
        let data = DataIter::of_tensors(&x, &y, 4, None)?;
        let words = "the learning rate of step 2 is NaN";
        let failed = |result: candle_core::Result<()>| {
            let error = result.map_err(Error::from);
            ensure!(matches!(error, Err(Error::NetworkFailed(_))), "{error:?}");
            crate::kit::says(words, error)
        };
        for _ in 0..3 {
            failed(trainer.step(&x, &y).map(drop))?; // a loop that ignores it
        }
        failed(evaluate_accuracy(&net, &data).map(drop))?;
        let mut trainer = plain(rank, &net)?;
        failed(trainer.step(&x, &y).map(drop))?;
        failed(Checkpoints::open("runs/none", &mut trainer).map(drop))?;
        failed(world.processes().sum(&mut [1.0]))?;
        failed(DataParallel::new(world, Initializer::Layers, 0, network).map(drop))
    })
    .map(drop)
}
