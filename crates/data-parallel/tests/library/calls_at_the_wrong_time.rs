//! A network that is asked by its own loss, while another thread trains it, or by a network that it asks, answers or gives
//! an error. Nothing waits for ever, and nothing is a mixture of two steps.

use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Context, Result, ensure};
use data_parallel::prelude::*;

use crate::kit::{cpus, formula_tensor, has, says, sgd};

fn linear(vb: VarBuilder<'_>) -> candle_core::Result<Linear> {
    Linear::new(4, 4, vb)
}

fn new(k: usize) -> candle_core::Result<DataParallel> {
    DataParallel::new(&cpus(k), Initializer::Layers, 0, linear)
}

fn trainer(
    net: &DataParallel,
    loss: impl Fn(&Linear, &[Value], &[Tensor]) -> candle_core::Result<Value> + Send + Sync + 'static,
) -> candle_core::Result<Trainer> {
    Trainer::with(net, loss, sgd(0.1, 0.0))
}

#[test]
fn a_loss_that_asks_its_own_network_is_an_error() -> Result<()> {
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    for k in [1, 2] {
        let net = new(k)?;
        let own = net.clone();
        let mut asks = trainer(&net, move |net, x, y| {
            squared_error(&net.forward(&x[0], true)?, &own.forward(&y[0])?)
        })?;
        let words = "asks the network that it is computed for";
        says(words, asks.step(&x, &x))?;
        says("Value::detach", asks.step(&x, &x))?;
        // a target from the network itself
        let mut of_itself = trainer(&net, |net, x, y| {
            let target = net.forward(&Value::new(&y[0])?, true)?.detach()?.eval()?;
            squared_error(&net.forward(&x[0], true)?, &target)
        })?;
        of_itself.step(&x, &x)?;
        // a metric
        let own = net.clone();
        let data = DataIter::of_tensors(&x, &x, 3, None)?;
        let asks = evaluate(&net, &data, move |_, y| {
            own.forward(y)?;
            Ok([1.0])
        });
        says("a metric", asks)?;
        // copies of parameters are no question
        let own = net.clone();
        let mut reads = trainer(&net, move |net, x, y| {
            assert_eq!(own.state_dict()?.len(), 2);
            squared_error(&net.forward(&x[0], true)?, &y[0])
        })?;
        reads.step(&x, &x)?;
        // to set them would be no step
        let (own, state) = (net.clone(), net.state_dict()?);
        let mut sets = trainer(&net, move |net, x, y| {
            own.load_state_dict(&state)?;
            squared_error(&net.forward(&x[0], true)?, &y[0])
        })?;
        says("set them between steps", sets.step(&x, &x))?;
    }
    Ok(())
}

/// Another network may be asked, and asks another one; of two that ask each other at the same time one gets an error.
#[test]
fn networks_that_ask_each_other_do_not_wait_for_ever() -> Result<()> {
    let x = formula_tensor(1, 1.0, &[6, 4])?;
    let asking = |net: &DataParallel, other: &DataParallel, meet: Option<Arc<Barrier>>| {
        let other = other.clone();
        trainer(net, move |net, x, y| {
            if let Some(meet) = &meet {
                meet.wait();
            }
            squared_error(&net.forward(&x[0], true)?, &other.forward(&y[0])?)
        })
    };
    let (a, b, c) = (new(2)?, new(2)?, new(1)?);
    asking(&a, &b, None)?.step(&x, &x)?;
    asking(&b, &c, None)?.step(&x, &x)?;
    asking(&a, &c, None)?.step(&x, &x)?;
    for _ in 0..20 {
        let (a, b) = (new(1)?, new(1)?);
        let meet = Arc::new(Barrier::new(2));
        let trainers = [
            asking(&a, &b, Some(meet.clone()))?,
            asking(&b, &a, Some(meet))?,
        ];
        let steps: Vec<_> = thread::scope(|scope| {
            let step = |mut trainer: Trainer| {
                scope.spawn({
                    let x = x.clone();
                    move || trainer.step(&x, &x).map(drop)
                })
            };
            let threads: Vec<_> = trainers.into_iter().map(step).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        for step in steps {
            let step = step.ok().context("a panic")?;
            if let Err(error) = step {
                has(
                    &error.to_string(),
                    "asks the network that it is computed for",
                )?;
            }
        }
    }
    Ok(())
}

/// Each step moves all numbers of many parameters by one: all numbers of a copy are of one step.
#[test]
fn what_is_read_beside_steps_is_of_one_step() -> Result<()> {
    struct Sum(Vec<Tensor>);
    impl Network for Sum {
        fn forward(&self, x: &Value, _: bool) -> candle_core::Result<Value> {
            let parts = self.0.iter().map(|w| x.linear(w, None));
            let parts = parts.collect::<candle_core::Result<Vec<Value>>>()?;
            let (first, others) = parts.split_first().expect("8 parts");
            others
                .iter()
                .try_fold(first.clone(), |sum, part| sum + part.clone())
        }
    }
    let place = tempfile::tempdir()?;
    for k in [1, 2] {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, |vb| {
            let part = |i: i32| vb.get_with_hints((1, 20_000), &format!("w{i}"), Init::Const(0.0));
            Ok(Sum((0..8).map(part).collect::<candle_core::Result<_>>()?))
        })?;
        let x = Tensor::ones((4, 20_000), DType::F32, &Device::Cpu)?;
        let read = |i: usize| -> Result<()> {
            let state = if i == 0 {
                net.state_dict()?
            } else {
                let path = place.path().join("model.safetensors");
                net.save(&path)?;
                let state = candle_core::safetensors::load(&path, &Device::Cpu)?;
                state.into_iter().collect()
            };
            let first = |w: &Tensor| w.flatten_all()?.get(0)?.to_scalar::<f32>();
            let firsts = state.iter().map(|(_, w)| first(w));
            let firsts = firsts.collect::<candle_core::Result<Vec<f32>>>()?;
            ensure!(firsts.iter().all(|w| *w == firsts[0]), "{firsts:?}");
            Ok(net.check_replicas()?)
        };
        let losses = |net: &Sum, x: &[Value], _: &[Tensor]| {
            candle(|y: &Tensor| y.squeeze(1)).forward(&net.forward(&x[0], true)?, true)
        };
        let mut trainer = Trainer::with(&net, losses, sgd(1.0, 0.0))?;
        thread::scope(|scope| -> Result<()> {
            let read = &read;
            let readers = [0, 1].map(|i| scope.spawn(move || (0..40).try_for_each(|_| read(i))));
            while readers.iter().any(|reader| !reader.is_finished()) {
                trainer.step(&x, &())?;
            }
            let read = readers.map(|reader| reader.join().ok().context("a panic")?);
            read.into_iter().collect()
        })?;
        ensure!(trainer.steps() > 20, "{} steps", trainer.steps());
    }
    Ok(())
}
