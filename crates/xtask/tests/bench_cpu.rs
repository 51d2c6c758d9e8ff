//! `bench cpu` from end to end, with tiny steps of ours and no peers.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[test]
fn a_tiny_run_leaves_tables() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(["bench", "cpu", "--out"]).arg(folder.path());
    let options =
        "--only ours --only devices --rounds 3 --threads 2 --step lenet-6 --step resnet18-2";
    let output = xtask.args(options.split(' ')).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{stderr}");
    // a program in two tables is measured once: 2 steps, 3 rounds of: one device, two, two with twice the examples; one
    // replica on two threads
    ensure!(stderr.matches(" round ").count() == 2 * 3 * 4, "{stderr}");
    let report = std::fs::read_to_string(folder.path().join("cpu.md"))?;
    let (devices, programs) = report
        .split_once("\n## LeNet, batch 6\n")
        .context("no table of programs")?;
    let of_two = |table| {
        let found = rows(table)
            .into_iter()
            .find(|row| row[0] == "ours, 2 replicas");
        found.with_context(|| format!("no row: {report}"))
    };
    ensure!(
        of_two(devices)?[3..5] == of_two(programs)?[2..4],
        "{report}"
    ); // ms, from – to
    let programs = rows(programs);
    ensure!(programs.len() == 4, "{report}"); // two steps: k = 2, k = 1
    for row in programs {
        ensure!(row.len() == 10, "{row:?}");
        let number = |i: usize| row[i].parse::<f64>().with_context(|| format!("{row:?}"));
        ensure!(number(2)? > 0.0, "{row:?}"); // ms
        ensure!(row[4] == "3" && row[5..7] == ["–", "–"], "{row:?}");
        ensure!(number(9)? > 1.0, "{row:?}"); // MiB
    }
    Ok(())
}

/// The cells of each contender's row.
fn rows(report: &str) -> Vec<Vec<&str>> {
    let rows = report.lines().filter(|line| line.starts_with("| ours"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}
