//! Which GPU it is.

use std::process::Command;

use anyhow::{Context, Result, bail};
use d2l::{DeviceKind, devices_of_kind};

const QUERY: &str = "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,\
    utilization.gpu";

/// The head of the report.
pub fn all() -> Result<String> {
    if let Err(error) = devices_of_kind(DeviceKind::Cuda, Some(1)) {
        let error = error.to_string(); // with a backtrace behind it
        bail!(
            "no GPU can be used: {}",
            error.lines().next().unwrap_or("?")
        );
    }
    let asked = Command::new("nvidia-smi")
        .args([QUERY, "--format=csv"])
        .output();
    let answer = match asked {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("nvidia-smi: {error}"),
    };
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!(
        "# On a GPU\n\nours {version}\n\n```\n{}\n```\n",
        answer.trim()
    ))
}

/// How many MiB of the GPU's memory all programs together use.
pub fn used_mib() -> Result<f64> {
    let devices = devices_of_kind(DeviceKind::Cuda, Some(1))?;
    let [free, total] = d2l::gpu_memory(&devices[0]).context("no GPU")?;
    Ok(((total - free) >> 20) as f64)
}
