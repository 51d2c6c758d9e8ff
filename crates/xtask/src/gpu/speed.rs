//! Milliseconds of a step for each number of replicas, with one minibatch for all and with one for each.

use anyhow::Result;
use functional::Precision;

use super::machine::Machine;
use super::report::Report;
use crate::bench::ours::{minibatch_on, timed, with_step};
use crate::bench::stats::Summary;
use crate::bench::work::Network;

pub fn all(machine: &Machine, batch: usize, report: &mut Report) -> Result<()> {
    let gpus = machine.gpus;
    for (network, precision, what) in [
        (Network::Lenet, Precision::Tf32, "LeNet, TF32"),
        (Network::Resnet18, Precision::Tf32, "ResNet-18, TF32"),
        (Network::Resnet18, Precision::Bf16, "ResNet-18, bf16"),
    ] {
        functional::set_precision(precision);
        let one = step_ms(machine, network, 1, batch)?;
        report.row(
            &format!("{what}, k = 1, {batch} examples"),
            &format!("{one:.3} ms"),
        )?;
        for k in (2..=gpus.max(2)).filter(|k| k.is_power_of_two() || *k == gpus) {
            let shared = step_ms(machine, network, k, batch)?;
            let each = step_ms(machine, network, k, k * batch)?;
            let times = one / shared;
            let share = 100.0 * one / each;
            report.row(
                &format!("{what}, k = {k}"),
                &format!(
                    "{shared:.3} ms with {batch} examples in all, {times:.2} times as fast as k = 1; {each:.3} ms with \
                     {batch} on each, {share:.0}% of k times the speed"
                ),
            )?;
        }
    }
    Ok(())
}

/// The median of three turns of 0.2 s.
fn step_ms(machine: &Machine, network: Network, k: usize, batch: usize) -> Result<f64> {
    let replicas = machine.replicas(k);
    let (x, y) = minibatch_on(&replicas[0], network, batch)?;
    let mut median = 0.0;
    with_step(network, replicas, |step| {
        timed(replicas, 3, || step(&x, &y))?; // libraries and algorithms
        let ms = timed(replicas, 3, || step(&x, &y))?;
        let steps = (200.0 / ms).clamp(1.0, 5000.0) as usize;
        let turns = (0..3)
            .map(|_| timed(replicas, steps, || step(&x, &y)))
            .collect::<Result<Vec<_>>>()?;
        median = Summary::of(&turns).median;
        Ok(())
    })?;
    Ok(median)
}
