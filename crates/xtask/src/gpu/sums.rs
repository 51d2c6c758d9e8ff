//! All-reduce of tensors by each algorithm, and by NCCL, beside the same sum on the CPU.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use candle_core::Device;
use collective::{Algorithm, GroupOptions, Member, group};

use super::machine::Machine;
use super::report::Report;
use crate::bench::train::worst;

const KIB: usize = 256;
/// 1 KiB, 1 MiB, and the size of a bucket of gradients, as floats.
const SIZES: [(usize, &str); 3] = [
    (KIB, "1 KiB"),
    (KIB << 10, "1 MiB"),
    ((25 * KIB) << 10, "25 MiB"),
];

pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let replicas = machine.several();
    for (len, size) in SIZES {
        for algorithm in Algorithm::ALL {
            let of = each(replicas, algorithm, len)?;
            let same = of.iter().all(|of| of.found == of.on_the_cpu);
            row(report, &format!("{algorithm}, {size}"), &of, same)?;
        }
        if let Err(why) = collective::nccl::gpu_ids(machine.gpus()) {
            let what = format!("nccl, {size}");
            if cfg!(feature = "nccl") && machine.gpus > 1 {
                report.check(&what, &why, false)?;
            } else {
                report.row(&what, &why)?;
            }
            continue;
        }
        let of = each(machine.gpus(), Algorithm::Nccl, len)?; // it needs a GPU for each
        // in an order of its own, the same for all
        let same = of.iter().all(|other| other.found == of[0].found);
        let near = apart(&of) < 1e-5;
        row(report, &format!("nccl, {size}"), &of, same && near)?;
    }
    Ok(())
}

fn row(report: &mut Report, what: &str, of: &[Summed], is_right: bool) -> Result<()> {
    let found = format!("at most {:.0e} from the CPU's sum", apart(of));
    report.check(what, &found, is_right)
}

/// The largest difference from the CPU's sum, relative to its largest number.
fn apart(of: &[Summed]) -> f64 {
    worst(of.iter().map(|of| {
        let largest = worst(of.on_the_cpu.iter().map(|x| f64::from(x.abs())));
        let pairs = of.found.iter().zip(&of.on_the_cpu);
        worst(pairs.map(|(a, b)| f64::from((a - b).abs()))) / largest
    }))
}

/// Results of a member.
struct Summed {
    found: Vec<f32>,
    on_the_cpu: Vec<f32>,
}

/// Sums with a member on each device, twice: on the devices, and on the CPU.
fn each(replicas: &[Device], algorithm: Algorithm, len: usize) -> Result<Vec<Summed>> {
    let options = GroupOptions {
        algorithm,
        timeout: Some(Duration::from_secs(30)),
        ..GroupOptions::default()
    };
    let members = group(replicas.len(), options);
    thread::scope(|scope| {
        let run = |(member, device)| scope.spawn(move || sum(member, device, len));
        let threads: Vec<_> = members.into_iter().zip(replicas).map(run).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Summed>>| {
            thread.join().ok().context("a member panicked")?
        };
        threads.into_iter().map(join).collect()
    })
}

fn sum(mut member: Member, device: &Device, len: usize) -> Result<Summed> {
    let rng = &mut d2l::rng(member.rank() as u64);
    let numbers = d2l::normal(rng, 1.0, len)?;
    let on_the_cpu = member.all_reduce(numbers.to_vec1()?)?;
    let data = numbers.to_device(device)?;
    member.all_reduce_tensor(&data)?;
    Ok(Summed {
        found: data.to_vec1()?,
        on_the_cpu,
    })
}
