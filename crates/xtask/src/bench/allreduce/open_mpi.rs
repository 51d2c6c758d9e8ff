//! Open MPI's all-reduce, called from Python: a process for each replica, which `mpirun` starts.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use collective::Algorithm;

use super::measure::measure;
use super::sizes::{LENET, RESNET18, calls, size};
use crate::bench::machine::ask;
use crate::bench::peers::root;
use crate::bench::stats::{Summary, short};

/// The section of the report: our owner algorithm and Open MPI, in turns, for the gradients of both networks.
///
/// # Errors
/// If one of them fails.
pub fn table(python: &Path, k: usize, rounds: usize) -> Result<String> {
    let version = ask("mpirun", &["--version"]).replace("mpirun (Open MPI)", "Open MPI");
    let mut text = format!(
        "\n## {version}\n\n{k} processes on {k} cores, alternating with the owner; the medians of the rounds.\n\n\
         | bytes | owner, µs | this, µs | this / owner | rounds |\n|--:|--:|--:|--:|--:|\n"
    );
    for len in [LENET, RESNET18] {
        let calls = calls(len).min(100);
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for round in 1..=rounds {
            ours.push(measure(k, len, calls, &[Some(Algorithm::Owner)])?[0].median);
            theirs.push(call(python, k, len, calls)?.median);
            eprintln!("{version}: {len} elements, round {round} of {rounds}");
        }
        let [ours, theirs] = [ours, theirs].map(|times| Summary::of(&times));
        let bytes = size(len);
        let ratio = short(theirs.median / ours.median);
        text += &format!("| {bytes} | {ours} | {theirs} | {ratio} | {rounds} |\n");
    }
    Ok(text)
}

/// The µs of the calls among `k` processes.
fn call(python: &Path, k: usize, len: usize, calls: usize) -> Result<Summary> {
    let output = Command::new("mpirun")
        .args(["-n", &k.to_string(), "--bind-to", "none", "--oversubscribe"])
        .arg(python)
        .arg(root().join("benches/openmpi_allreduce.py"))
        .args([len.to_string(), calls.to_string()])
        // Open MPI wants to be told twice that root may, as in a container
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("mpirun")?;
    ensure!(output.status.success(), "mpirun: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(times.len() == calls, "mpirun said {text:?}");
    Ok(Summary::of(&times))
}
