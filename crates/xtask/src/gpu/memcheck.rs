//! A step of each network under compute-sanitizer's memcheck.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Options, Report};

/// The end of its last line where it found nothing.
const CLEAN: &str = "ERROR SUMMARY: 0 errors";

/// Checks, and adds what was found to the report.
pub fn all(_: &Options, report: &mut Report) -> Result<()> {
    report.add("\n## compute-sanitizer memcheck\n\n")?;
    let sanitizer = program().context(
        "it is neither in PATH nor in the bin of CUDA_HOME or /usr/local/cuda: nothing was checked",
    )?;
    let mut clean = true;
    for network in ["lenet 64", "resnet18 16"] {
        for precision in ["tf32", "bf16"] {
            for replicas in 1..=2 {
                let what = format!("{network} --replicas {replicas} --precision {precision}");
                let said = step(&sanitizer, &what)?;
                clean &= said.ends_with(CLEAN);
                report.add(&format!("- {what}: {said}\n"))?;
            }
        }
    }
    ensure!(clean, "memcheck found something");
    Ok(())
}

/// Its summary of a step.
fn step(sanitizer: &Path, what: &str) -> Result<String> {
    let mut child = Command::new(sanitizer)
        .args(["--tool", "memcheck", "--error-exitcode", "9"])
        .arg(env::current_exe()?)
        .args(["contend-gpu", "steps"])
        .args(what.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", sanitizer.display()))?;
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

/// Where compute-sanitizer is.
fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let homes = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(env::var_os);
    let homes = homes.chain(["/usr/local/cuda".into()]);
    let folders = env::split_paths(&path).chain(homes.map(|home| PathBuf::from(home).join("bin")));
    folders
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|program| program.is_file())
}
