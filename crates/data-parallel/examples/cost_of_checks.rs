//! What the check of gradients costs: the first step, and a step with a new shape, as multiples of an ordinary step.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Conv2dConfig, VarBuilder};
use data_parallel::prelude::*;

fn lenet(vb: VarBuilder<'_>) -> Result<data_parallel::functional::Candle> {
    let config = Conv2dConfig {
        padding: 2,
        ..Default::default()
    };
    let conv1 = candle_nn::conv2d(1, 6, 5, config, vb.pp("conv1"))?;
    let conv2 = candle_nn::conv2d(6, 16, 5, Default::default(), vb.pp("conv2"))?;
    let fc1 = candle_nn::linear(400, 120, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(120, 84, vb.pp("fc2"))?;
    let fc3 = candle_nn::linear(84, 10, vb.pp("fc3"))?;
    Ok(candle(move |x: &Tensor| {
        let h = x.apply(&conv1)?.relu()?.avg_pool2d(2)?;
        let h = h.apply(&conv2)?.relu()?.avg_pool2d(2)?.flatten_from(1)?;
        h.apply(&fc1)?.relu()?.apply(&fc2)?.relu()?.apply(&fc3)
    }))
}

fn mlp(vb: VarBuilder<'_>) -> Result<data_parallel::functional::Candle> {
    let fc1 = candle_nn::linear(784, 256, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(256, 10, vb.pp("fc2"))?;
    Ok(candle(move |x: &Tensor| {
        x.flatten_from(1)?.apply(&fc1)?.tanh()?.apply(&fc2)
    }))
}

fn small(vb: VarBuilder<'_>) -> Result<data_parallel::functional::Candle> {
    let fc1 = candle_nn::linear(2, 32, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(32, 2, vb.pp("fc2"))?;
    Ok(candle(move |x: &Tensor| x.apply(&fc1)?.tanh()?.apply(&fc2)))
}

/// The middle of three in front of a candle module: 13 modules.
fn many(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new();
    for i in 0..50 {
        let fc = candle_nn::linear(32, 32, vb.pp(i))?;
        net = net.add(candle(move |x: &Tensor| x.apply(&fc)?.tanh()));
    }
    Ok(net)
}

fn smoothed(y_hat: &Value, y: &Tensor) -> Result<Value> {
    let y = y.unsqueeze(1)?;
    let of_each = candle(move |y_hat: &Tensor| {
        let log_p = candle_nn::ops::log_softmax(y_hat, 1)?;
        let right = log_p.gather(&y, 1)?.squeeze(1)?;
        (right * -0.9)? - (log_p.mean(1)? * 0.1)?
    });
    of_each.forward(y_hat, true)
}

fn measured<N: Network + 'static>(
    name: &str,
    k: usize,
    batch: usize,
    dims: &[usize],
    build: fn(VarBuilder<'_>) -> Result<N>,
) -> anyhow::Result<()> {
    let net = DataParallel::new(&devices(k)?, Initializer::Layers, 0, build)?;
    let data = |n: usize| {
        let dims: Vec<usize> = [&[n], dims].concat();
        let x = Tensor::rand(0f32, 1., dims, &Device::Cpu)?;
        Ok::<_, candle_core::Error>((x, Tensor::zeros(n, DType::U32, &Device::Cpu)?))
    };
    let (x, y) = data(batch)?;
    let (x2, y2) = data(batch + 2 * k)?;
    let steps = |trainer: &mut Trainer, n: usize| {
        let mut times = Vec::new();
        for _ in 0..n {
            let since = Instant::now();
            trainer.step(&x, &y)?;
            times.push(since.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        anyhow::Ok(times[n / 2])
    };
    let mut warm = Trainer::new(&net, smoothed, Sgd::new(0.01)).check_gradients(false);
    steps(&mut warm, 50)?;
    let (mut firsts, mut news, mut ordinary, mut without) = (vec![], vec![], vec![], vec![]);
    for _ in 0..9 {
        let mut trainer = Trainer::new(&net, smoothed, Sgd::new(0.01));
        let since = Instant::now();
        trainer.step(&x, &y)?;
        firsts.push(since.elapsed().as_secs_f64());
        ordinary.push(steps(&mut trainer, 51)?);
        without.push(steps(&mut warm, 51)?);
        let since = Instant::now();
        trainer.step(&x2, &y2)?;
        news.push(since.elapsed().as_secs_f64());
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        1e3 * times[times.len() / 2]
    };
    let [first, new, step, without] = [firsts, news, ordinary, without].map(median);
    println!(
        "{name:12} k = {k}: step {step:.3} ms, without checks {without:.3}; first {first:.2} ms = {:.0} steps; new shape {new:.2} ms = {:.0} steps",
        first / step,
        new / step
    );
    Ok(())
}

fn main() -> anyhow::Result<()> {
    for k in [1, 2] {
        measured("LeNet 64", k, 64, &[1, 28, 28], lenet)?;
        measured("MLP 64", k, 64, &[1, 28, 28], mlp)?;
        measured("small 50", k, 50, &[2], small)?;
        measured("50 modules", k, 64, &[32], many)?;
    }
    Ok(())
}
