//! Exercise 2 of 13.6.5: uses a GPU and the CPU at the same time, and compares ways to divide the work. On a
//! machine without a GPU it uses two replicas of one core each, and one of them computes more than it must.
//!
//! `cargo run --example 11_devices_of_different_speed`

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use concise::layers::{Conv2d, Linear};
use concise::{DataParallel, Initializer, Sgd, Trainer};
use data_parallel_functional::{Network, Value, cross_entropy};

/// A small network, images (B, 1, 28, 28) to (B, 10). It applies ReLU `extra` times more. That changes no value, and
/// takes time.
fn slow_network(extra: usize, vb: VarBuilder<'_>) -> candle_core::Result<impl Network + use<>> {
    let conv = Conv2d::new(1, 16, 5, vb.pp("conv"))?;
    let fc = Linear::new(16 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Value, train: bool| {
        let mut h = conv.forward(&x.nhwc()?, train)?.relu()?;
        for _ in 0..extra {
            h = h.relu()?;
        }
        fc.forward(&h.max_pool2d(2, 2)?.flatten()?, train)
    })
}

/// The speed of each replica: that of the fastest of eight steps in which it has nearly all examples.
fn speeds(net: &DataParallel, mut step: impl FnMut() -> Result<f32>) -> Result<Vec<f64>> {
    let speed = |i: usize| {
        let mut weights = vec![1.0; net.devices().len()];
        weights[i] = 1e6;
        net.set_split(&weights)?;
        let mut fastest = f64::INFINITY;
        for _ in 0..8 {
            let mut timer = d2l::Timer::new();
            step()?;
            fastest = fastest.min(timer.stop());
        }
        Ok(1.0 / fastest)
    };
    (0..net.devices().len()).map(speed).collect()
}

/// Trains on `devices` with these weights, or in proportion to the measured speeds: milliseconds a step, the share of
/// the last replica, and the last loss. If there is no GPU, the second replica is slow.
fn train_split(devices: &[Device], weights: Option<&[f64]>) -> Result<(f64, f64, f32)> {
    let extra = if devices[0].is_cpu() { 24 } else { 0 };
    let built = AtomicUsize::new(0); // replicas, one after the other; a check builds one more
    let network = move |vb: VarBuilder<'_>| slow_network(extra * built.fetch_add(1, Relaxed), vb);
    let net = DataParallel::new(devices, Initializer::Xavier(2.0), 0, network)?;
    // within_shards: the times are those of steps in which no losses are compared
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).within_shards();
    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (128, 1, 28, 28))?;
    let y = (Tensor::arange(0f32, 128.0, &Device::Cpu)? / 12.8)?.to_dtype(DType::U32)?;
    let mut step = || Ok(trainer.step(&x, &y)?.loss.mean()?);
    let weights = match weights {
        Some(weights) => {
            (0..16).try_for_each(|_| step().map(drop))?; // as many steps as the measurement takes
            weights.to_vec()
        }
        None => speeds(&net, &mut step)?,
    };
    net.set_split(&weights)?;
    step()?; // the first one with a split takes longer
    let (mut timer, mut loss) = (d2l::Timer::new(), 0.0);
    for _ in 0..8 {
        loss = step()?;
    }
    let share = weights[weights.len() - 1] / weights.iter().sum::<f64>();
    Ok((1e3 * timer.stop() / 8.0, share, loss))
}

fn main() -> Result<()> {
    let devices = [d2l::try_gpu(0), Device::Cpu];
    println!("split of 128 images on {}:", d2l::device_names(&devices));
    d2l::share_cores(Some(1), 1); // on the CPU: one core for each device
    let (alone, _, loss) = train_split(&devices[..1], Some(&[1.0]))?;
    println!("the fast one alone  {alone:.1} ms a step, loss {loss:.3}");
    d2l::share_cores(Some(2), 2);
    let ways = [
        ("even", Some([1.0, 1.0])),
        ("4,1", Some([4.0, 1.0])),
        ("measured", None),
    ];
    for (name, weights) in ways {
        let (ms, share, loss) = train_split(&devices, weights.as_ref().map(|w| &w[..]))?;
        println!("{name}: {share:.2} for the slow one, {ms:.1} ms a step, loss {loss:.3}");
    }
    for times in [2.0, 5.0, 50.0] {
        let most = 100.0 / (times + 1.0);
        println!("a device {times} times slower takes at most {most:.0} % off a step");
    }
    Ok(())
}
