//! Exercise: what happens if nobody waits for the devices (`npx.waitall()`, `torch.cuda.synchronize()`), and
//! how can two steps overlap? To read a loss is to wait for it. On a CPU that costs nothing, because a tensor
//! is computed before anybody has it; on a GPU the host would fall behind. What costs everywhere is that the
//! devices wait for each other: here over links that are made slow.
//!
//! `cargo run --example 12_without_waiting`

use std::collections::VecDeque;
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
    let (mut unread, mut loss, mut timer) = (VecDeque::new(), 0.0, Timer::new());
    for _ in 0..STEPS {
        unread.push_back(trainer.step(&x, &y)?.loss);
        if unread.len() > late {
            loss = unread.pop_front().expect("one at least").mean()?;
        }
    }
    d2l::synchronize(&devices)?; // without it the clock knows only when the host was ready
    let seconds = timer.stop();
    for late in unread {
        loss = late.mean()?;
    }
    Ok((seconds / STEPS as f64 * 1e3, loss))
}

const STEPS: usize = 16;

fn main() -> Result<()> {
    println!("a loss is read     ms a minibatch  last loss");
    let memory = Replication::default();
    for (when, late) in [
        ("in its step", 0),
        ("two steps later", 2),
        ("at the end", STEPS),
    ] {
        let (ms, loss) = train_reading(&memory, 1, late)?;
        println!("{when:<17}  {ms:<14.1}  {loss:.4}");
    }
    let link = Link {
        latency: Duration::from_millis(10),
        bytes_per_second: 1e9,
    };
    println!("gradients are summed over slow links");
    for (when, overlap, accumulate) in [
        ("never", true, usize::MAX),
        ("in each step, after the backward pass", false, 1),
        ("in each step, while it goes on", true, 1),
        ("once in four minibatches", true, 4),
    ] {
        let how = Replication {
            overlap,
            bucket_bytes: 16 << 10,
            link: Some(link),
            ..Replication::default()
        };
        let (ms, _) = train_reading(&how, accumulate, 0)?;
        println!("{when:<37}  {ms:.1} ms a minibatch");
    }
    Ok(())
}
