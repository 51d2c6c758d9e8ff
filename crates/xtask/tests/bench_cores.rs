//! `bench cores` from end to end, with small steps.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[test]
fn a_small_run_leaves_tables_that_say_simulated() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args("bench cores --cores 2 --cores 8".split(' '));
    xtask.args("--step lenet-64 --step resnet18-1".split(' '));
    let output = xtask.arg("--out").arg(folder.path()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{stderr}");
    let report = std::fs::read_to_string(folder.path().join("cores.md"))?;
    let mut titles = report.lines().filter(|line| line.starts_with('#'));
    ensure!(
        titles.all(|title| title.to_lowercase().contains("simulated")),
        "{report}"
    );

    // what the simulation counts as a convolution has these names
    for kernel in ["ConvolutionKernel", "Pooled", "OneChannel"] {
        ensure!(report.contains(kernel), "no {kernel}: {report}");
    }

    let steps = table(&report, "a step of one replica")?;
    ensure!(steps.len() == 2, "{steps:?}");
    for row in &steps {
        let [two, eight] = [cell(row, 1)?, cell(row, 2)?];
        ensure!(two.ms > eight.ms && eight.ms > 0.0, "{row:?}");
        ensure!(
            two.efficiency < 1.0 && eight.efficiency < two.efficiency,
            "{row:?}"
        );
    }
    ensure!(
        table(&report, "the memory of a server")?.len() == 1,
        "{report}"
    );
    let replicas = table(&report, "k replicas")?;
    ensure!(
        replicas.len() == 1 && replicas[0].len() == 6,
        "{replicas:?}"
    );
    ensure!(
        replicas[0][0] == "8" && replicas[0][5] == "–",
        "{replicas:?}"
    );
    for k in 1..=4 {
        ensure!(cell(&replicas[0], k)?.ms > 0.0, "{replicas:?}");
    }
    ensure!(
        report
            .matches("## Simulated: idle time on 16 cores")
            .count()
            == 2,
        "{report}"
    );
    Ok(())
}

/// The rows of the table whose title has these words.
fn table<'a>(report: &'a str, title: &str) -> Result<Vec<Vec<&'a str>>> {
    let sections = report.split("\n## ");
    let mut sections = sections.filter(|section| {
        section
            .lines()
            .next()
            .is_some_and(|line| line.contains(title))
    });
    let section = sections
        .next()
        .with_context(|| format!("{title}: {report}"))?;
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1);
    Ok(rows
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect())
}

struct Cell {
    ms: f64,
    efficiency: f64,
}

/// `12.3 (0.95)`.
fn cell(row: &[&str], i: usize) -> Result<Cell> {
    let wrong = || format!("cell {i} of {row:?}");
    let (ms, rest) = row[i].split_once(" (").with_context(wrong)?;
    let efficiency = rest.strip_suffix(')').with_context(wrong)?;
    Ok(Cell {
        ms: ms.parse().with_context(wrong)?,
        efficiency: efficiency.parse().with_context(wrong)?,
    })
}
