//! `bench checks`: the cost of the check of gradients: the first step, and a step with nothing new, beside a step without
//! checks. The networks are candle's.

use data_parallel::candle_nn::{Conv2dConfig, conv2d, linear, ops::log_softmax};
use data_parallel::prelude::*;

use super::ours::minibatch;
use super::stats::{Summary, milliseconds};
use super::work;

const ROUNDS: usize = 9;

/// Measures and prints a row for each network on 1 and 2 devices.
///
/// # Errors
/// If a step fails.
pub fn checks() -> anyhow::Result<()> {
    println!("milliseconds of a step without checks, and of one with nothing new;");
    println!("the first step, as a multiple of it; on 1 and 2 devices:");
    for devices in [1, 2] {
        measure("LeNet", devices, lenet)?;
        measure("MLP", devices, |vb| modules(&[784, 256, 10], vb))?;
        measure("deep", devices, |vb| {
            modules(&[&[784], &[32; 50][..]].concat(), vb)
        })?;
    }
    Ok(())
}

fn measure(
    name: &str,
    k: usize,
    network: fn(VarBuilder<'_>) -> Result<Sequential>,
) -> anyhow::Result<()> {
    let (x, y) = minibatch(work::Network::Lenet, 64)?;
    let mut first = Vec::new();
    let mut ordinary = Vec::new();
    let mut without = Vec::new();
    for _ in 0..ROUNDS {
        let net = DataParallel::new(&devices(k)?, Initializer::Layers, 0, network)?;
        let trainer = || Trainer::new(&net, smoothed, Sgd::new(0.01));
        let mut unchecked = trainer().check_gradients(false);
        let mut checked = trainer();
        first.push(milliseconds(|| checked.step(&x, &y))?);
        for _ in 0..10 {
            ordinary.push(milliseconds(|| checked.step(&x, &y))?);
            without.push(milliseconds(|| unchecked.step(&x, &y))?);
        }
    }
    let median = |times: &[f64]| Summary::of(times).median;
    let step = median(&ordinary);
    println!(
        "{name:6} {k} {:9.2} {step:9.2} {:9.1}",
        median(&without),
        median(&first) / step
    );
    Ok(())
}

fn lenet(vb: VarBuilder<'_>) -> Result<Sequential> {
    let padded = Conv2dConfig {
        padding: 2,
        ..Conv2dConfig::default()
    };
    let conv1 = conv2d(1, 6, 5, padded, vb.pp("conv1"))?;
    let conv2 = conv2d(6, 16, 5, Conv2dConfig::default(), vb.pp("conv2"))?;
    let fc1 = linear(400, 120, vb.pp("fc1"))?;
    let fc2 = linear(120, 84, vb.pp("fc2"))?;
    let fc3 = linear(84, 10, vb.pp("fc3"))?;
    Ok(Sequential::new().add(candle(move |x: &Tensor| {
        let first = x.apply(&conv1)?.relu()?.avg_pool2d(2)?;
        let second = first.apply(&conv2)?.relu()?.avg_pool2d(2)?;
        let h = second.flatten_from(1)?;
        h.apply(&fc1)?.relu()?.apply(&fc2)?.relu()?.apply(&fc3)
    })))
}

/// Linear layers of these widths, each a module of its own.
fn modules(widths: &[usize], vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut net = Sequential::new().add(Nhwc).add(Flatten);
    for (i, pair) in widths.windows(2).enumerate() {
        let fc = linear(pair[0], pair[1], vb.pp(i))?;
        net = net.add(candle(move |x: &Tensor| x.apply(&fc)?.tanh()));
    }
    Ok(net)
}

/// Cross-entropy with a tenth of each label smoothed over all classes, in candle's operations.
fn smoothed(y_hat: &Value, y: &Tensor) -> Result<Value> {
    let y = y.unsqueeze(1)?;
    let of_each = candle(move |y_hat: &Tensor| {
        let log_p = log_softmax(y_hat, 1)?;
        let right = log_p.gather(&y, 1)?.squeeze(1)?;
        (right * -0.9)? - (log_p.mean(1)? * 0.1)?
    });
    of_each.forward(y_hat, true)
}
