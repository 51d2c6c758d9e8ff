//! How much communication overlap hides: steps of ResNet-18 that sum their gradients over artificially slow
//! links, during the backward pass or after it.

use std::time::{Duration, Instant};

use anyhow::Result;
use collective::{Algorithm, cost::Link};
use concise::{DataParallel, Initializer, Replication, Sgd, Trainer, resnet18};
use functional::cross_entropy;

use super::measure::RESNET18;
use crate::bench::ours::minibatch;
use crate::bench::stats::{Summary, short};

/// Two replicas: each has half of the cores.
const K: usize = 2;

/// How long communication is made, beside what is computed in a step.
const SHARES: [f64; 3] = [0.5, 0.65, 1.0];

/// A step: how its gradients are summed, whether during the backward pass, and in buckets of how many MiB.
type Way = (&'static str, bool, usize);

const WAYS: [Way; 3] = [
    ("afterwards", false, 25),
    ("buckets of 25 MiB", true, 25),
    ("buckets of 4 MiB", true, 4),
];

/// Measures the steps in turns, for each share so many rounds: the section of the report.
///
/// # Errors
/// If a step fails.
pub fn measure(batch: usize, rounds: usize) -> Result<String> {
    d2l::share_cores(None, K);
    let compute = steps(batch, rounds, &[(None, WAYS[0])])?[0].median;
    let names = WAYS.map(|(name, ..)| name).join(", ms | ");
    let mut text = format!(
        "\n## Overlap\n\nResNet-18, batch {batch} on {K} replicas. The sum of each bucket is delayed, as by a \
         slow link; all sums of a step together take the time in the first column. Compute: a step without this \
         delay and without overlap. Afterwards: the sums follow the backward pass. Buckets: the sums run during \
         the backward pass. The steps of a row are timed alternately.\n\n\
         | communication, ms | compute, ms | {names}, ms | the best / max(compute, communication) |\n\
         |--:|--:|--:|--:|--:|--:|\n"
    );
    for share in SHARES {
        text += &row(batch, rounds, compute * share)?;
    }
    Ok(text
        + "\nNo gradient is complete before the forward pass ends, so a step cannot hide communication that \
           takes as long as the step.\n")
}

/// The row for sums that are made to take `ms` together in each step.
fn row(batch: usize, rounds: usize, ms: f64) -> Result<String> {
    // the owner's: 2(k − 1)/k of the bytes come in
    let bytes = 2.0 * (K - 1) as f64 / K as f64 * (RESNET18 * size_of::<f32>()) as f64;
    let link = Some(Link {
        latency: Duration::ZERO,
        bytes_per_second: bytes / (ms / 1e3),
    });
    let [a, b, c] = WAYS;
    let times = steps(batch, rounds, &[(None, a), (link, a), (link, b), (link, c)])?;
    let best = times[1..].iter().map(|step| step.median);
    let best = best.fold(f64::INFINITY, f64::min);
    let ratio = short(best / ms.max(times[0].median));
    let times: Vec<String> = times.iter().map(Summary::to_string).collect();
    let row = format!("| {} | {} | {ratio} |\n", short(ms), times.join(" | "));
    eprint!("overlap: {row}");
    Ok(row)
}

/// ms of the steps of each way, in turns; the first steps warm up and do not count.
fn steps(batch: usize, rounds: usize, ways: &[(Option<Link>, Way)]) -> Result<Vec<Summary>> {
    let devices = d2l::devices_of_kind(d2l::DeviceKind::Cpu, Some(K))?;
    let net = |&(link, (_, overlap, bucket_mib)): &(Option<Link>, Way)| {
        let how = Replication {
            allreduce: Algorithm::Owner,
            bucket_bytes: bucket_mib << 20,
            overlap,
            link,
            ..Replication::default()
        };
        let init = Initializer::Normal(0.01);
        DataParallel::with(how, &devices, init, 0, |vb| resnet18(10, vb))
    };
    let nets = ways.iter().map(net).collect::<Result<Vec<_>>>()?;
    let trainer = |net| Trainer::new(net, cross_entropy, Sgd::new(0.01));
    let mut trainers: Vec<Trainer> = nets.iter().map(trainer).collect();
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
    Ok(times.iter().map(|times| Summary::of(times)).collect())
}
