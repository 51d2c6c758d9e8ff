//! `bench cpu` from end to end, with tiny steps of ours and no peers.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[test]
fn a_tiny_run_leaves_a_table() -> Result<()> {
    let Run { report, .. } =
        run("--only ours --rounds 2 --threads 2 --step lenet-6 --step resnet18-2")?;
    let rows = table(&report);
    ensure!(rows.len() == 4, "{report}"); // two steps: k = 2, k = 1
    for row in rows {
        ensure!(row.len() == 10, "{row:?}");
        let ms: f64 = row[2].parse().with_context(|| format!("{row:?}"))?;
        ensure!(
            ms > 0.0 && row[4] == "2" && row[5..7] == ["–", "–"],
            "{row:?}"
        );
        let mib: f64 = row[9].parse().with_context(|| format!("{row:?}"))?;
        ensure!(mib > 1.0, "{row:?}");
    }
    Ok(())
}

#[test]
fn a_program_in_two_tables_is_measured_once() -> Result<()> {
    let Run { report, stderr } =
        run("--only ours --only devices --rounds 3 --threads 2 --step lenet-6")?;
    // 3 rounds of: one device, two, two with twice the examples; one replica on two threads
    ensure!(stderr.matches(" round ").count() == 3 * 4, "{stderr}");
    let (devices, programs) = report
        .split_once("\n## LeNet, batch 6\n")
        .context("no table of programs")?;
    let row = |table: &str| {
        let mut lines = table.lines();
        let line = lines.find(|line| line.contains("ours, 2 replicas | 2 |"));
        let cells = line.map(|line| line.split(" | ").map(str::to_owned).collect::<Vec<_>>());
        cells.with_context(|| format!("no row: {report}"))
    };
    ensure!(row(devices)?[3..5] == row(programs)?[2..4], "{report}"); // ms, from – to
    Ok(())
}

/// What `bench cpu` leaves.
struct Run {
    report: String,
    stderr: String,
}

/// Runs `bench cpu` with these options.
fn run(options: &str) -> Result<Run> {
    let folder = tempfile::tempdir()?;
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(["bench", "cpu", "--out"]).arg(folder.path());
    let output = xtask.args(options.split(' ')).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{stderr}");
    let report = std::fs::read_to_string(folder.path().join("cpu.md"))?;
    Ok(Run { report, stderr })
}

/// The cells of each contender's row.
fn table(report: &str) -> Vec<Vec<&str>> {
    let rows = report.lines().filter(|line| line.starts_with("| ours"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}
