//! Which GPU it is.

use std::process::Command;

use anyhow::{Result, bail};
use d2l::{DeviceKind, devices_of_kind};

const QUERY: &str = "--query-gpu=name,driver_version,memory.total,clocks.sm,clocks.max.sm,power.limit,\
    utilization.gpu";

/// The head of the report.
pub fn all() -> Result<String> {
    if let Err(error) = devices_of_kind(DeviceKind::Cuda, Some(1)) {
        bail!("no GPU can be used: {error}");
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
