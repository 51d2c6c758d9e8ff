//! Training steps of ResNet-18 with one core for each replica, in processes of their own: as many
//! examples in all (strong scaling), and as many for each replica (weak scaling).

use std::env;

use anyhow::{Context, Result};

use super::model::{Compute, Scaling};
use crate::bench::contender::{Contender, Family};
use crate::bench::process::Process;
use crate::bench::stats::Summary;
use crate::bench::work::{Network, Work};

/// The steps of so many replicas.
pub struct Point {
    /// What stays the same.
    pub scaling: Scaling,
    /// The replicas.
    pub k: usize,
    /// ms: the median of each round.
    pub times: Vec<f64>,
    /// The most cores at other work.
    pub other: Option<f64>,
}

impl Point {
    /// ms: the middle, the fastest and the slowest round.
    pub fn ms(&self) -> Summary {
        Summary::of(&self.times)
    }
}

/// Measures all, round after round.
///
/// # Errors
/// If a step fails.
pub fn measure(scalings: [Scaling; 2], ks: &[usize], rounds: usize) -> Result<Vec<Point>> {
    let of = |scaling| {
        ks.iter().map(move |&k| Point {
            scaling,
            k,
            times: Vec::new(),
            other: None,
        })
    };
    let mut points: Vec<Point> = scalings.into_iter().flat_map(of).collect();
    for round in 1..=rounds {
        for point in &mut points {
            let (k, batch) = (point.k, point.scaling.batch(point.k));
            let what = format!("ResNet-18, batch {batch}, k = {k}");
            let ms = point.turn().with_context(|| what.clone())?;
            eprintln!("{what}, round {round} of {rounds}: {ms:.1} ms");
        }
    }
    Ok(points)
}

/// What one replica computes, from its steps on two minibatches.
///
/// # Panics
/// Without them.
pub fn compute(points: &[Point]) -> Compute {
    let alone = points.iter().filter(|point| point.k == 1);
    let mut alone: Vec<_> = alone
        .map(|point| (point.scaling.batch(1), point.ms().median))
        .collect();
    alone.sort_by_key(|(batch, _)| *batch);
    Compute::fit(alone[0], alone[alone.len() - 1])
}

impl Point {
    /// A few steps in a fresh process, because several would need much memory side by side.
    fn turn(&mut self) -> Result<f64> {
        const STEPS: usize = 3;
        let mut process = Process::start(self.command()?)?;
        process.ask(1)?; // slower than the others
        let answer = process.ask(STEPS)?;
        let spent = answer.spent;
        let other = spent.other.map(|other| other / spent.seconds);
        self.other = self.other.into_iter().chain(other).reduce(f64::max);
        let ms = Summary::of(&answer.times).median;
        self.times.push(ms);
        Ok(ms)
    }

    fn command(&self) -> Result<std::process::Command> {
        let (me, k) = (env::current_exe()?, self.k.to_string());
        let ours = Contender::new(Family::Ours, "ours", self.k, &me);
        let ours = ours.args(&["contend", "--replicas", &k, "--threads", &k]);
        Ok(ours.command(&Work {
            network: Network::Resnet18,
            batch: self.scaling.batch(self.k),
        }))
    }
}
