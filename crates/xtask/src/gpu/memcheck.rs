//! A step of each network under compute-sanitizer's memcheck.

use std::env;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::options::{GpuOptions, Report};

/// The end of its last line where it found nothing.
const CLEAN: &str = "ERROR SUMMARY: 0 errors";

/// Checks, and adds what was found to the report.
pub fn all(_: &GpuOptions, report: &mut Report) -> Result<()> {
    report.add("\n## compute-sanitizer memcheck\n\n")?;
    let mut clean = true;
    for network in ["lenet 64", "resnet18 16"] {
        for precision in ["tf32", "bf16"] {
            for replicas in 1..=2 {
                let what = format!("{network} --replicas {replicas} --precision {precision}");
                let said = step(&what)?;
                clean &= said.ends_with(CLEAN);
                report.add(&format!("- {what}: {said}\n"))?;
            }
        }
    }
    ensure!(clean, "memcheck found something");
    Ok(())
}

/// Its summary of a step.
fn step(what: &str) -> Result<String> {
    let mut child = Command::new("compute-sanitizer")
        .args(["--tool", "memcheck", "--error-exitcode", "9"])
        // libraries try calls that fail, and go on
        .args(["--report-api-errors", "no"])
        .arg(env::current_exe()?)
        .args(["contend-gpu", "steps"])
        .args(what.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start compute-sanitizer: put the bin of CUDA into PATH")?;
    let mut asked = child.stdin.take().context("it has no input")?;
    asked.write_all(b"1\n")?; // one, and no more
    drop(asked);
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let mut lines = said.lines().rev();
    let summary = lines.clone().find(|line| line.contains("ERROR SUMMARY"));
    let summary = summary.or(lines.next()).unwrap_or("no output");
    let summary = summary.trim_start_matches('=').trim();
    Ok(match output.status.success() {
        true => summary.to_owned(),
        false => format!("{summary} ({})", output.status),
    })
}
