//! How much communication overlap hides: steps of ResNet-18 that sum their gradients over artificially slow
//! links, during the backward pass or after it.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Result;
use collective::{Algorithm, cost::Link};
use concise::{DataParallel, Initializer, Replication, Sgd, Trainer, resnet18};
use functional::cross_entropy;

use super::measure::RESNET18;
use super::report::spread;
use crate::bench::ours::minibatch;
use crate::bench::stats::{Summary, short};

/// Two replicas: each has half of the cores.
const K: usize = 2;

/// How long communication is made, beside what is computed in a step.
const SHARES: [f64; 3] = [0.5, 0.65, 1.0];

/// A step, and how its gradients are summed.
struct Way {
    name: &'static str,
    overlap: bool,
    bucket_mib: usize,
}

const WAYS: [Way; 3] = [
    Way {
        name: "afterwards",
        overlap: false,
        bucket_mib: 25,
    },
    Way {
        name: "buckets of 25 MiB",
        overlap: true,
        bucket_mib: 25,
    },
    Way {
        name: "buckets of 4 MiB",
        overlap: true,
        bucket_mib: 4,
    },
];

/// The steps of two replicas, ms.
pub struct Overlap {
    batch: usize,
    shares: Vec<Share>,
}

/// Steps that took turns.
struct Share {
    /// How long communication was made to take.
    ms: f64,
    /// Without anything made slow, and without overlap.
    compute: Summary,
    /// Of each way.
    steps: [Summary; 3],
}

/// Measures the steps in turns, for each share so many rounds.
///
/// # Errors
/// If a step fails.
pub fn measure(batch: usize, rounds: usize) -> Result<Overlap> {
    d2l::share_cores(None, K);
    let alone = steps(batch, rounds, &[(None, &WAYS[0])])?;
    let compute = Summary::of(&alone[0]).median;
    let shares = SHARES.map(|share| measure_share(batch, rounds, compute * share));
    let shares = shares.into_iter().collect::<Result<_>>()?;
    Ok(Overlap { batch, shares })
}

/// Measures where all sums of a step are made to take `ms` together.
fn measure_share(batch: usize, rounds: usize, ms: f64) -> Result<Share> {
    // the owner's: 2(k − 1)/k of the bytes come in
    let bytes = 2.0 * (K - 1) as f64 / K as f64 * (RESNET18 * size_of::<f32>()) as f64;
    let link = Some(Link {
        latency: Duration::ZERO,
        bytes_per_second: bytes / (ms / 1e3),
    });
    let [a, b, c] = &WAYS;
    let times = steps(batch, rounds, &[(None, a), (link, a), (link, b), (link, c)])?;
    let [compute, steps @ ..] = [0, 1, 2, 3].map(|i| Summary::of(&times[i]));
    eprintln!("communication {ms:.0} ms, compute {compute:?}, steps {steps:?}");
    Ok(Share { ms, compute, steps })
}

/// ms of the steps of each way, in turns; the first steps warm up and do not count.
fn steps(batch: usize, rounds: usize, ways: &[(Option<Link>, &Way)]) -> Result<Vec<Vec<f64>>> {
    let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(K))?;
    let net = |(link, way): &(Option<Link>, &Way)| {
        let how = Replication {
            allreduce: Algorithm::Owner,
            bucket_bytes: way.bucket_mib << 20,
            overlap: way.overlap,
            link: *link,
            ..Replication::default()
        };
        let init = Initializer::Normal(0.01);
        DataParallel::with(how, &devices, init, 0, |vb| resnet18(10, vb))
    };
    let nets = ways.iter().map(net).collect::<Result<Vec<_>>>()?;
    let trainer = |net| Trainer::new(net, cross_entropy, Sgd::new(0.01));
    let mut trainers: Vec<Trainer<'_>> = nets.iter().map(trainer).collect();
    let (x, y) = minibatch(batch)?;
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..rounds + 2 {
        for (trainer, times) in trainers.iter_mut().zip(&mut times) {
            let start = Instant::now();
            trainer.step(&x, &y)?.loss.mean()?;
            if round >= 2 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(times)
}

impl Overlap {
    /// The section of the report.
    pub fn markdown(&self) -> String {
        let names = WAYS.map(|way| way.name).join(", ms | ");
        let mut text = format!(
            "\n## Overlap\n\nResNet-18, batch {} on {K} replicas. The sum of each bucket is delayed, as by a \
             slow link; all sums of a step together take the time in the first column. Compute: a step without this \
             delay and without overlap. Afterwards: the sums follow the backward pass. Buckets: the sums run during \
             the backward pass. The steps of a row are timed alternately.\n\n\
             | communication, ms | compute, ms | {names}, ms | the best / max(compute, communication) |\n\
             |--:|--:|--:|--:|--:|--:|\n",
            self.batch
        );
        for Share { ms, compute, steps } in &self.shares {
            let medians = steps.iter().map(|step| step.median);
            let best = medians.fold(f64::INFINITY, f64::min);
            let ratio = best / ms.max(compute.median);
            let [ms, ratio, compute] = [short(*ms), short(ratio), spread(*compute)];
            let cells = steps.map(spread).join(" | ");
            let _ = writeln!(text, "| {ms} | {compute} | {cells} | {ratio} |");
        }
        text + "\nNo gradient is complete before the forward pass ends, so a step cannot hide communication that \
                takes as long as the step.\n"
    }
}
