//! Copies between each pair of replicas: first as they are without access to each other's memory, then directly.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use candle_core::{Device, Tensor};
use devices::to_device;

use super::machine::Machine;
use super::report::Report;

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
            let arrive = there_and_back(from, to)?;
            let found = if arrive {
                "numbers arrive"
            } else {
                "numbers are lost"
            };
            report.check(&format!("replica {i} to {j}{how}"), found, arrive)?;
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
