//! Exercise: what happens if nobody waits for the devices (`npx.waitall()`, `torch.cuda.synchronize()`), and
//! how can two steps overlap? To read a loss is to wait for it. On a CPU that costs nothing, because a tensor
//! is computed before anybody has it; on a GPU the host would fall behind. What costs everywhere is that the
//! devices wait for each other: here over links that are made slow.
//!
//! `cargo run --example 12_without_waiting`

use std::time::Duration;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use concise::layers::{Conv2d, Linear};
use concise::{DataParallel, Initializer, Link, Replication, Sgd, Trainer};
use d2l::Timer;
use functional::{cross_entropy, flatten, max_pool2d, nhwc, relu};

/// A convolution and a linear layer: images (B, 1, 28, 28) to (B, 10).
fn two_layers(vb: VarBuilder<'_>) -> candle_core::Result<impl Module + use<>> {
    let conv = Conv2d::new(1, 16, 5, vb.pp("conv"))?;
    let fc = Linear::new(16 * 12 * 12, 10, vb.pp("fc"))?;
    Ok(move |x: &Tensor| {
        let x = max_pool2d(&relu(&conv.forward(&nhwc(x)?)?)?, 2, 2)?;
        fc.forward(&flatten(&x)?)
    })
}

/// Trains on two devices, and reads each loss when `late` more steps are under way. The milliseconds of a
/// minibatch, and the last loss; a step is taken on so many minibatches as `accumulate` says.
fn train_reading(how: &Replication, accumulate: usize, late: usize) -> Result<(f64, f32)> {
    let (devices, init) = (d2l::devices(2)?, Initializer::Xavier(2.0));
    d2l::share_cores(None, 2);
    let net = DataParallel::with(how.clone(), &devices, init, 0, two_layers)?;
    let mut trainer = Trainer::new(&net, cross_entropy, Sgd::new(0.1)).accumulate(accumulate);
    let x = d2l::uniform(&mut d2l::rng(1), 0.0, 1.0, (128, 1, 28, 28))?;
    let y = (Tensor::arange(0f32, 128.0, &Device::Cpu)? / 12.8)?.to_dtype(DType::U32)?;
    trainer.step(&x, &y)?; // warms up
    let (mut losses, mut timer) = (Vec::new(), Timer::new());
    for i in 0..STEPS {
        losses.push(trainer.step(&x, &y)?.loss);
        if i >= late {
            losses[i - late].mean()?; // waits for it
        }
    }
    d2l::synchronize(&devices)?; // without it the clock knows only when the host was ready
    let ms = 1e3 * timer.stop() / STEPS as f64;
    Ok((ms, losses[STEPS - 1].mean()?))
}

const STEPS: usize = 16;

fn main() -> Result<()> {
    println!("a loss is read  ms a minibatch  last loss");
    for late in [0, 2, STEPS] {
        let (ms, loss) = train_reading(&Replication::default(), 1, late)?;
        println!("{late:>2} steps later  {ms:<14.1}  {loss:.4}");
    }
    let link = Some(Link {
        latency: Duration::from_millis(10),
        bytes_per_second: 1e9,
    });
    println!("gradients are summed over slow links");
    for (overlap, accumulate) in [(false, 1), (true, 1), (true, 4), (true, 2 * STEPS)] {
        let how = Replication {
            overlap,
            bucket_bytes: 16 << 10,
            link,
            ..Replication::default()
        };
        let (ms, _) = train_reading(&how, accumulate, 0)?;
        println!("once in {accumulate:>2} minibatches, overlap {overlap:<5}  {ms:.1} ms each");
    }
    Ok(())
}
