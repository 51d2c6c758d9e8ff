//! Networks of 10,000 layers or steps train: no stack overflows. Without room for them the process is aborted, and all
//! tests with it.

use anyhow::{Result, ensure};
use candle_core::Tensor;
use data_parallel::functional::squared_error;
use data_parallel::prelude::*;

use crate::kit::{cpus, formula_tensor, largest_difference};

const DEPTH: usize = 10_000;

fn layer(vb: VarBuilder<'_>) -> candle_core::Result<Linear> {
    Linear::new(16, 16, vb)
}

/// Two steps and an evaluation on one and on two replicas, on 8 examples of 16 numbers. They are the same, but for
/// rounding.
fn trains<N: Network + 'static>(
    network: impl Fn(VarBuilder<'_>) -> candle_core::Result<N> + Send + Sync + Copy + 'static,
) -> Result<()> {
    let x = formula_tensor(1, 1.0, &[8, 16])?;
    let y = formula_tensor(2, 1.0, &[8, 16])?;
    let outputs = |k: usize| -> Result<Tensor> {
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, network)?;
        let mut trainer = Trainer::new(&net, squared_error, Sgd::new(1e-3));
        for _ in 0..2 {
            let loss = trainer.step(&x, &y)?.loss.mean()?;
            ensure!(loss.is_finite(), "the loss is {loss}");
        }
        Ok(net.forward(&x)?)
    };
    let apart = largest_difference(&outputs(1)?, &outputs(2)?)?;
    ensure!(apart < 1e-4, "{apart}");
    Ok(())
}

/// 3,000 layers with parameters of their own: 10,000 take 5 seconds to build without optimization.
#[test]
fn layers_one_behind_the_other() -> Result<()> {
    trains(|vb| {
        let mut layers = Sequential::new();
        for i in 0..3_000 {
            layers = layers.add(layer(vb.pp(i))?).add(Relu);
        }
        Ok(layers)
    })
}

#[test]
fn one_layer_many_times() -> Result<()> {
    trains(|vb| {
        let layer = layer(vb)?;
        Ok(move |x: &Value, train: bool| {
            let mut h = x.clone();
            for _ in 0..DEPTH {
                h = (&layer.forward(&h, train)?.gelu()? + x)?;
            }
            Ok(h)
        })
    })
}

#[test]
fn a_recurrent_network_of_layers() -> Result<()> {
    trains(|vb| {
        let input = layer(vb.pp("input"))?;
        let hidden = layer(vb.pp("hidden"))?;
        Ok(move |x: &Value, train: bool| {
            let mut h = x.clone();
            for _ in 0..DEPTH {
                h = (&input.forward(x, train)? + &hidden.forward(&h, train)?)?.relu()?;
            }
            Ok(h)
        })
    })
}

/// candle calls itself for each operation: in the backward pass, in the check of gradients, and when all is dropped. 3,000
/// steps, because the check takes some 30 passes.
#[test]
fn a_recurrent_network_in_candle() -> Result<()> {
    trains(|vb| {
        let weight = vb.get(16, "weight")?;
        Ok(candle(move |x: &Tensor| {
            let mut h = x.clone();
            for _ in 0..3_000 {
                h = (h.broadcast_mul(&weight)? + x)?.tanh()?;
            }
            Ok(h)
        }))
    })
}

/// The stacks are no memory until they are used, but a limit of addresses counts them.
#[cfg(target_os = "linux")]
#[test]
fn under_a_limit_of_addresses() -> Result<()> {
    let tests = std::env::current_exe()?;
    let script = "ulimit -v 4194304; exec \"$0\" --exact \"$@\" --test-threads 1";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script]).arg(tests);
    let output = shell
        .arg("networks_are_deep::a_recurrent_network_in_candle")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
