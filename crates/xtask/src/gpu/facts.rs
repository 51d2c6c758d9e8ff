//! Facts about the program and the machine.

use std::{env, fs};

use anyhow::Result;
use run::gpu;

use super::machine::Machine;
use super::report::Report;
use crate::bench::machine::{ask, lines};
use crate::bench::ours::version;

const OF_EACH: &str = "index,name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,pcie.link.gen.max,pcie.link.width.max";

pub fn all(machine: &Machine, report: &mut Report) -> Result<()> {
    let nccl = if cfg!(feature = "nccl") {
        "with"
    } else {
        "without"
    };
    report.row("program", &format!("{}, {nccl} NCCL", version()))?;
    report.row(
        "commit",
        &ask("git", &["describe", "--always", "--dirty", "--exclude=*"]),
    )?;
    let cores = devices::cores();
    report.row(
        "machine",
        &format!("{cores} cores, {}", ask("uname", &["-sr"])),
    )?;
    for (i, device) in machine.gpus().iter().enumerate() {
        if let Some(gpu) = gpu(device) {
            let [free, total] = [gpu.free, gpu.total].map(|bytes| bytes >> 20);
            report.row(
                &format!("GPU {i}"),
                &format!("{}, {free} of {total} MiB are free", gpu.name),
            )?;
        }
    }
    for line in lines(
        "nvidia-smi",
        &[&format!("--query-gpu={OF_EACH}"), "--format=csv,noheader"],
    ) {
        report.row("nvidia-smi", &line)?;
    }
    for line in lines("nvidia-smi", &["topo", "-m"]) {
        if line.starts_with("GPU") {
            report.row("links (nvidia-smi topo -m)", &line)?;
        }
    }
    for (name, value) in env::vars_os() {
        let name = name.to_string_lossy();
        let of_cuda = ["CUDA", "NCCL", "NVIDIA", "LD_", "DATA_PARALLEL"];
        let is_secret = ["KEY", "TOKEN", "SECRET"]
            .iter()
            .any(|word| name.contains(word));
        if of_cuda.iter().any(|first| name.starts_with(first)) && !is_secret {
            report.row(&name, &value.to_string_lossy())?;
        }
    }
    Ok(())
}

/// CUDA's libraries in this process.
pub fn libraries(report: &mut Report) -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let is_cuda = |file: &&str| {
        let name = file.rsplit('/').next().unwrap_or_default();
        ["libcu", "libnccl", "libnv"]
            .iter()
            .any(|first| name.starts_with(first))
    };
    let mut files: Vec<&str> = files.filter(is_cuda).collect();
    files.dedup();
    report.row("libraries", &files.join(" "))
}
