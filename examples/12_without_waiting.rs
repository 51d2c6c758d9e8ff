//! Exercise 3 of 13.6.5: two steps overlap. While the replicas compute the gradients of one minibatch,
//! another thread sums those of the minibatch before. Each step is then taken with stale gradients, which
//! were computed from parameters that are one step old.
//!
//! `cargo run --example 12_without_waiting`

use std::{thread, time::Duration};

use candle_core::Tensor;
use d2l::{Param, Timer, backward, evaluate_accuracy_gpu, on_each, sgd};
use dataset::{Data, Dataset};
use scratch::{allreduce, get_params, init_params, lenet, loss, split_batch};

/// Computes the gradients of a replica on its shard of the minibatch.
fn compute(x: &Tensor, y: &Tensor, w: &[Param]) -> candle_core::Result<()> {
    backward(&loss(&lenet(x, w)?, y)?.sum()?, w).map(drop)
}

/// Sums the gradients over the replicas. A pause imitates slow links.
fn communicate(w: &[Vec<Param>]) -> candle_core::Result<()> {
    thread::sleep(Duration::from_millis(10));
    let grads = |i: usize| w.iter().map(|w| w[i].grad().clone()).collect::<Vec<_>>();
    (0..w[0].len()).try_for_each(|i| allreduce(&grads(i)))
}

/// Trains LeNet on two devices for an epoch: milliseconds a step, and test accuracy. `last` is a second set
/// of gradients, those of the minibatch before.
fn an_epoch_on_two(data: &Dataset, overlap: bool, lr: f64) -> anyhow::Result<(f64, f64)> {
    let devices = d2l::devices(2)?;
    let scaled = init_params(0)?.into_iter().map(|p| p * 10.0);
    let params = scaled.collect::<Result<Vec<_>, _>>()?;
    let copy = |device| get_params(&params, device);
    let w = devices.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let last = devices.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    let (train_iter, test_iter) = data.iters(50)?;
    let mut timer = Timer::new();
    for batch in train_iter.epoch(1) {
        let (x, y) = batch?;
        let (x_shards, y_shards) = split_batch(&x, &y, &devices)?;
        let replicas = (x_shards, y_shards, &w);
        if overlap {
            thread::scope(|scope| {
                let sums = scope.spawn(|| communicate(&last));
                on_each(&devices, replicas, |(x, y, w)| compute(&x, &y, w))?;
                sums.join().expect("no panic")
            })?;
            for (now, last) in w.iter().flatten().zip(last.iter().flatten()) {
                let grad = now.grad().copy()?;
                now.grad().set(last.grad())?; // the sums, for this step
                last.grad().set(&grad)?; // to be summed during the next step
            }
        } else {
            on_each(&devices, replicas, |(x, y, w)| compute(&x, &y, w))?;
            communicate(&w)?;
        }
        on_each(&devices, &w, |w| sgd(w, lr, x.dim(0)?))?;
    }
    let ms = 1e3 * timer.stop() / train_iter.num_batches() as f64;
    let test_acc = evaluate_accuracy_gpu(|x: &_| lenet(x, &w[0]), &test_iter, &devices[0])?;
    Ok((ms, test_acc))
}

fn main() -> anyhow::Result<()> {
    let data = dataset::load(&dataset::Options {
        data: Some(Data::Synthetic),
        limit_train: Some(2000),
        limit_test: Some(500),
        ..Default::default()
    })?;
    d2l::share_cores(None, 2);
    for (lr, overlap) in [(0.02, false), (0.02, true), (0.1, false), (0.1, true)] {
        let (ms, test_acc) = an_epoch_on_two(&data, overlap, lr)?;
        println!("lr {lr}, overlap {overlap}: {ms:.1} ms a step, test accuracy {test_acc:.3}");
    }
    Ok(())
}
