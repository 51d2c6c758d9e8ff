//! What the check of gradients costs: the first step, a step with a new shape, and a step with nothing new, beside a step
//! without checks.
//!
//! `cargo run --release -p data-parallel --example cost_of_checks`

use std::time::Instant;

use candle_nn::Conv2dConfig;
use data_parallel::prelude::*;

fn lenet(vb: VarBuilder<'_>) -> Result<Sequential> {
    let config = Conv2dConfig {
        padding: 2,
        ..Default::default()
    };
    let conv1 = candle_nn::conv2d(1, 6, 5, config, vb.pp("conv1"))?;
    let conv2 = candle_nn::conv2d(6, 16, 5, Default::default(), vb.pp("conv2"))?;
    let fc1 = candle_nn::linear(400, 120, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(120, 84, vb.pp("fc2"))?;
    let fc3 = candle_nn::linear(84, 10, vb.pp("fc3"))?;
    Ok(Sequential::new().add(candle(move |x: &Tensor| {
        let first = x.apply(&conv1)?.relu()?.avg_pool2d(2)?;
        let second = first.apply(&conv2)?.relu()?.avg_pool2d(2)?;
        let h = second.flatten_from(1)?;
        h.apply(&fc1)?.relu()?.apply(&fc2)?.relu()?.apply(&fc3)
    })))
}

fn mlp(vb: VarBuilder<'_>) -> Result<Sequential> {
    let fc1 = candle_nn::linear(784, 256, vb.pp("fc1"))?;
    let fc2 = candle_nn::linear(256, 10, vb.pp("fc2"))?;
    Ok(Sequential::new().add(candle(move |x: &Tensor| {
        x.flatten_from(1)?.apply(&fc1)?.tanh()?.apply(&fc2)
    })))
}

/// Fifty modules of candle's, one after the other.
fn deep(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new().add(Nhwc).add(Flatten);
    let mut inputs = 784;
    for i in 0..50 {
        let fc = candle_nn::linear(inputs, 32, vb.pp(i))?;
        net = net.add(candle(move |x: &Tensor| x.apply(&fc)?.tanh()));
        inputs = 32;
    }
    Ok(net)
}

/// Cross-entropy with a tenth of each label smoothed over all classes, in candle's operations.
fn smoothed(y_hat: &Value, y: &Tensor) -> Result<Value> {
    let y = y.unsqueeze(1)?;
    let of_each = candle(move |y_hat: &Tensor| {
        let log_p = candle_nn::ops::log_softmax(y_hat, 1)?;
        let right = log_p.gather(&y, 1)?.squeeze(1)?;
        (right * -0.9)? - (log_p.mean(1)? * 0.1)?
    });
    of_each.forward(y_hat, true)
}

/// Random images, and labels of class 0.
fn batch(examples: usize) -> Result<(Tensor, Tensor)> {
    let x = uniform(&mut rng(0), 0.0, 1.0, (examples, 1, 28, 28))?;
    Ok((x, Tensor::zeros(examples, DType::U32, &Device::Cpu)?))
}

/// The milliseconds of a step.
fn time(trainer: &mut Trainer, examples: usize) -> Result<f64> {
    let (x, y) = batch(examples)?;
    let since = Instant::now();
    trainer.step(&x, &y)?;
    Ok(1e3 * since.elapsed().as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

type Build = fn(VarBuilder<'_>) -> Result<Sequential>;

fn measure(name: &str, network: Build, gpus: usize) -> Result<()> {
    let net = DataParallel::new(&devices(gpus)?, Initializer::Layers, 0, network)?;
    let trainer = || Trainer::new(&net, smoothed, Sgd::new(0.01));
    let mut unchecked = trainer().check_gradients(false);
    let (mut first, mut new) = (Vec::new(), Vec::new());
    let (mut ordinary, mut without) = (Vec::new(), Vec::new());
    for _ in 0..9 {
        let mut checked = trainer();
        first.push(time(&mut checked, 64)?);
        for _ in 0..10 {
            ordinary.push(time(&mut checked, 64)?);
            without.push(time(&mut unchecked, 64)?);
        }
        new.push(time(&mut checked, 62)?);
    }
    let step = median(ordinary);
    let [first, new] = [first, new].map(|times| median(times) / step);
    println!(
        "{name:6} {gpus} {:9.2} {step:9.2} {first:9.1} {new:9.1}",
        median(without)
    );
    Ok(())
}

fn main() -> Result<()> {
    println!("milliseconds of a step without checks, and of one with nothing new;");
    println!("the first step, and one with a new shape, as multiples of it; on 1 and 2 devices:");
    let networks: [(&str, Build); 3] = [("LeNet", lenet), ("MLP", mlp), ("deep", deep)];
    for (name, network) in networks {
        measure(name, network, 1)?;
        measure(name, network, 2)?;
    }
    Ok(())
}
