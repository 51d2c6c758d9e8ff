//! `bench cpu` from end to end, with tiny steps of ours and no peers.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[test]
fn a_tiny_run_leaves_a_table() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args("bench cpu --only ours --rounds 2 --threads 2".split(' '));
    xtask.args("--step lenet-6 --step resnet18-2".split(' '));
    let output = xtask.arg("--out").arg(folder.path()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{stderr}");
    let report = std::fs::read_to_string(folder.path().join("cpu.md"))?;
    let rows = table(&report);
    ensure!(rows.len() == 6, "{report}"); // two steps: k = 2, k = 1, one thread
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

/// The cells of each contender's row.
fn table(report: &str) -> Vec<Vec<&str>> {
    let rows = report.lines().filter(|line| line.starts_with("| ours"));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}
