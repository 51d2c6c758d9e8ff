//! Copies between each pair of replicas: first as they are without access to each other's memory, then directly.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Result;
use candle_core::{Device, Tensor};
use devices::{synchronize, to_device};

use super::machine::Machine;
use super::report::Report;

const LARGE: usize = 1 << 24;
const SMALL: usize = 256;

pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let replicas = machine.several();
    each_pair(replicas, "", report)?;
    if machine.gpus > 1 {
        let note = devices::connect(replicas);
        report.row(
            "direct copies",
            note.as_deref()
                .unwrap_or("allowed by the driver, and tried"),
        )?;
        each_pair(replicas, ", direct copies tried", report)?;
    }
    Ok(())
}

fn each_pair(replicas: &[Device], how: &str, report: &mut Report) -> Result<()> {
    for (i, from) in replicas.iter().enumerate() {
        for (j, to) in replicas.iter().enumerate().filter(|(j, _)| *j != i) {
            let there_and_back = there_and_back(from, to)?;
            let seconds = seconds(from, to, LARGE)?;
            let rate = (4 * LARGE) as f64 / seconds / 1e9;
            let small = 1e6 * self::seconds(from, to, SMALL)?;
            let found = format!("{rate:.1} GB/s; 1 KiB takes {small:.1} µs");
            let found = if there_and_back {
                found
            } else {
                format!("numbers are lost; {found}")
            };
            report.check(&format!("replica {i} to {j}{how}"), &found, there_and_back)?;
        }
    }
    Ok(())
}

/// True if numbers arrive, and come back.
fn there_and_back(from: &Device, to: &Device) -> Result<bool> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // numbers that no memory has from an earlier copy
    let first = NEXT.fetch_add(1, Ordering::SeqCst) as f32;
    let numbers: Vec<f32> = (0..1 << 20).map(|i| first + i as f32).collect();
    let here = Tensor::new(&numbers[..], from)?;
    let there = to_device(&here, to)?;
    let back = to_device(&there, from)?;
    Ok(there.to_vec1::<f32>()? == numbers && back.to_vec1::<f32>()? == numbers)
}

/// The time of one of several copies in a row.
fn seconds(from: &Device, to: &Device, len: usize) -> Result<f64> {
    const COPIES: usize = 8;
    let both = [from.clone(), to.clone()];
    let numbers = Tensor::zeros(len, candle_core::DType::F32, from)?;
    let _first = to_device(&numbers, to)?; // memory comes from the driver in it, and stays while it is here
    synchronize(&both)?;
    let start = Instant::now();
    for _ in 0..COPIES {
        to_device(&numbers, to)?;
    }
    synchronize(&both)?;
    Ok(start.elapsed().as_secs_f64() / COPIES as f64)
}
