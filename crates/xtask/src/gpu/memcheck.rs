//! A step of each network under compute-sanitizer's memcheck.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Options;

/// What it ends with where it found something.
const FOUND: &str = "9";

/// Checks, and adds what was found to the report.
pub fn all(_: &Options, found: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    found("\n## compute-sanitizer memcheck\n\n")?;
    let sanitizer = program().context(
        "it is neither in PATH nor in the bin of CUDA_HOME or /usr/local/cuda: nothing was checked",
    )?;
    let mut clean = true;
    for what in STEPS {
        let said = step(&sanitizer, what)?;
        clean &= said.ends_with(CLEAN);
        found(&format!("- {what}: {said}\n"))?;
    }
    ensure!(clean, "memcheck found something");
    Ok(())
}

/// Network, batch and more.
const STEPS: [&str; 8] = [
    "lenet 64 --replicas 1",
    "lenet 64 --replicas 2",
    "lenet 64 --replicas 1 --precision bf16",
    "lenet 64 --replicas 2 --precision bf16",
    "resnet18 16 --replicas 1",
    "resnet18 16 --replicas 2",
    "resnet18 16 --replicas 1 --precision bf16",
    "resnet18 16 --replicas 2 --precision bf16",
];

/// The end of its last line where it found nothing.
const CLEAN: &str = "ERROR SUMMARY: 0 errors";

/// Its summary of a step.
fn step(sanitizer: &Path, what: &str) -> Result<String> {
    let mut child = Command::new(sanitizer)
        .args(["--tool", "memcheck", "--error-exitcode", FOUND])
        .arg(env::current_exe()?)
        .arg("contend-gpu")
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
    let summary = said
        .lines()
        .rev()
        .find(|line| line.contains("ERROR SUMMARY"));
    let last = said.lines().last().unwrap_or("no output");
    let summary = summary.unwrap_or(last).trim_start_matches('=').trim();
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
    let homes = homes
        .map(PathBuf::from)
        .chain([PathBuf::from("/usr/local/cuda")]);
    let folders = env::split_paths(&path).chain(homes.map(|home| home.join("bin")));
    folders
        .map(|folder| folder.join("compute-sanitizer"))
        .find(|program| program.is_file())
}
