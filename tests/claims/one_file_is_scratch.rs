//! The example `ddp_in_one_file` takes the steps of the page's `train_batch`, without a line of this project.

use std::fs;

use anyhow::{Result, ensure};
use candle_core::{Device, Tensor};
use run::BatchLoss;

use crate::kit::{copies, cpus, formula_batch, largest_difference, root, says};

#[path = "../../examples/ddp_in_one_file.rs"]
#[expect(dead_code, reason = "it is a program")]
mod example;

trials![
    its_steps_are_those_of_scratch,
    a_device_that_fails_ends_the_others,
    it_is_short_and_has_nothing_of_ours,
];

const LR: f64 = 0.05;

/// How far losses may be apart, in proportion: ten times what was measured.
const LOSSES: f32 = 1e-6;
/// The same for parameters, in proportion to how far they have moved.
const PARAMS: f32 = 4e-5;

/// With the weights of `init_params` the gradients would be tiny.
fn params() -> candle_core::Result<Vec<Tensor>> {
    let params = scratch::init_params(0)?.into_iter();
    params.map(|w| w * 10.0).collect()
}

/// Neither two devices nor three divide all of them.
fn batches() -> candle_core::Result<Vec<(Tensor, Tensor)>> {
    let sizes = (0..).zip([7, 8, 7, 8, 7]);
    sizes.map(|(s, n)| formula_batch(s, n)).collect()
}

fn its_steps_are_those_of_scratch() -> Result<()> {
    let (params, batches) = (params()?, batches()?);
    for k in [1, 2, 3] {
        let device_params = copies(&params, k)?;
        let step = |(x, y): &(Tensor, Tensor)| {
            let ls = scratch::train_batch(x, y, &device_params, &cpus(k), LR)?;
            BatchLoss::new(ls, x.dim(0)?).mean()
        };
        let expected = batches.iter().map(step);
        let expected: Vec<f32> = expected.collect::<Result<_, _>>()?;
        let devices = example::train(&params, &batches, k, LR)?;
        ensure!(devices.len() == k, "{} devices", devices.len());
        for (rank, (w, losses)) in devices.iter().enumerate() {
            let place = format!("device {rank} of {k}");
            ensure!(losses.len() == expected.len(), "{place}: {losses:?}");
            for (a, b) in losses.iter().zip(&expected) {
                let apart = (a - b).abs() / b;
                ensure!(apart <= LOSSES, "{place}: a loss of {a} is not {b}");
            }
            ensure!(w.len() == params.len(), "{place}: {} parameters", w.len());
            for (i, (a, b)) in w.iter().zip(&device_params[0]).enumerate() {
                let apart = largest_difference(a, b)? / largest_difference(b, &params[i])?;
                ensure!(apart <= PARAMS, "{place}: parameter {i} is {apart:e} apart");
                let apart = largest_difference(a, &devices[0].0[i])?;
                ensure!(apart == 0.0, "{place}: parameter {i} has other bits");
            }
        }
    }
    Ok(())
}

/// It does not wait for what will not come.
fn a_device_that_fails_ends_the_others() -> Result<()> {
    let (x, _) = formula_batch(0, 7)?;
    let no_class = Tensor::new(&[0u32, 0, 0, 0, 0, 0, 10], &Device::Cpu)?; // for the last device
    says(
        "closed channel",
        example::train(&params()?, &[(x, no_class)], 3, LR),
    )
}

fn it_is_short_and_has_nothing_of_ours() -> Result<()> {
    let text = fs::read_to_string(root().join("examples/ddp_in_one_file.rs"))?;
    let lines = text.lines().count();
    ensure!(lines <= 150, "it has {lines} lines, 150 at most");
    let crates = ["std", "anyhow", "candle_core", "candle_nn"];
    for path in text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("use "))
    {
        let name = path.split("::").next().unwrap_or_default();
        ensure!(crates.contains(&name), "it uses {path}");
    }
    // without `use` as well
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let ours = manifest.lines().filter(|line| line.contains("{ path = \""));
    let ours: Vec<_> = ours.filter_map(|line| line.split(' ').next()).collect();
    ensure!(ours.contains(&"scratch"), "{ours:?}");
    for name in ours {
        let path = format!("{}::", name.replace('-', "_"));
        ensure!(!text.contains(&path), "it has {path}");
    }
    Ok(())
}
