//! Which GPU it is.

use anyhow::{Context, Result, bail};
use devices::{DeviceKind, devices_of_kind};
use run::{Gpu, gpu};

use crate::bench::machine::ask;
use crate::bench::ours::version;

const QUERY: &str =
    "name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,utilization.gpu";

/// The head of the report.
pub fn all() -> Result<String> {
    if let Err(error) = devices_of_kind(DeviceKind::Cuda, Some(1)) {
        let error = error.to_string(); // with a backtrace behind it
        bail!(
            "no GPU can be used: {}",
            error.lines().next().unwrap_or("?")
        );
    }
    let query = format!("--query-gpu={QUERY}");
    let gpu = ask("nvidia-smi", &[&query, "--format=csv,noheader", "--id=0"]);
    let version = version();
    Ok(format!("# On a GPU\n\n- {version}\n- {gpu} ({QUERY})\n"))
}

/// Memory of the GPU that all programs together use, MiB.
pub fn used_mib() -> Result<f64> {
    let devices = devices_of_kind(DeviceKind::Cuda, Some(1))?;
    let Gpu { free, total, .. } = gpu(&devices[0]).context("no GPU")?;
    Ok(((total - free) >> 20) as f64)
}
