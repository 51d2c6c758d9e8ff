//! The report as Markdown: the tables, and when, where and how they were measured.

use std::fmt::Write;

use super::machine::{Load, ask, circumstances, is_doubtful, meanwhile};
use super::rounds::Row;
use super::stats::{Summary, short};
use super::work::{COUNTED, Work};
use crate::bench::contender::Family;

/// Everything that was measured.
pub struct Report {
    /// The steps, each with the rows of all contenders.
    pub tables: Vec<(Work, Vec<Row>)>,
    /// The table of the losses, or nothing.
    pub losses: String,
    threads: usize,
    before: Load,
}

/// The time of a step of the fastest PyTorch mode with as many threads, divided by the contender's
/// time; `None` without PyTorch.
pub fn ratio(row: &Row, rows: &[Row]) -> Option<f64> {
    let threads = row.contender.threads;
    let pytorch = rows
        .iter()
        .filter(|r| r.contender.family == Family::Pytorch && r.contender.threads == threads);
    let best = pytorch.map(median).min_by(f64::total_cmp)?;
    Some(best / median(row))
}

/// The milliseconds of a step.
pub fn median(row: &Row) -> f64 {
    Summary::of(&row.times).median
}

const HEAD: &str = "\
| | threads | ms | from – to | rounds | PyTorch / this | GFLOP/s | cores busy | memory, MiB | first step, s |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

const EXPLAINED: &str = "\
ms: the median over the rounds; the time of a round is the median of its steps. From – to: the fastest and the \
slowest round. PyTorch / this: the time of the fastest PyTorch mode with as many threads, divided by the time of \
this row; above 1 is faster than PyTorch. †: other programs used the cores meanwhile. Cores busy: processor time \
divided by elapsed time. Memory: the peak of the process. First step: of its first process; torch.compile \
compiles in it, with an empty cache.";

impl Report {
    /// An empty one.
    pub fn new(threads: usize, before: Load) -> Self {
        Self {
            tables: Vec::new(),
            losses: String::new(),
            threads,
            before,
        }
    }

    /// Adds a table, unless it has no rows.
    pub fn add(&mut self, work: Work, rows: Vec<Row>) {
        if !rows.is_empty() {
            self.tables.push((work, rows));
        }
    }

    /// All of it.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# Training on the CPU\n\n");
        text += &self.circumstances();
        for (work, rows) in &self.tables {
            let gflop = work.flops() / 1e9;
            let _ = write!(
                text,
                "\n## {work}\n\nOne step is {gflop:.1} GFLOP.\n\n{HEAD}"
            );
            rows.iter()
                .for_each(|row| text += &self.line(work, row, rows));
        }
        if !self.tables.is_empty() {
            let _ = write!(text, "\n{EXPLAINED} {COUNTED}\n");
        }
        text += &self.losses;
        text
    }

    fn line(&self, work: &Work, row: &Row, rows: &[Row]) -> String {
        let Summary {
            median,
            min,
            max,
            count,
        } = Summary::of(&row.times);
        let threads = row.contender.threads;
        let gflops = work.flops() / median / 1e6;
        let cells = [
            format!(
                "{}{}",
                row.contender.name,
                if disturbed(row) { " †" } else { "" }
            ),
            threads.to_string(),
            short(median),
            format!("{} – {}", short(min), short(max)),
            count.to_string(),
            or_dash(ratio(row, rows).map(short)),
            format!("{gflops:.0}"),
            or_dash(row.cores().map(|cores| format!("{cores:.1}"))),
            or_dash(row.memory.map(|memory| format!("{memory:.0}"))),
            or_dash(row.first.map(short)),
        ];
        format!("| {} |\n", cells.join(" | "))
    }

    fn circumstances(&self) -> String {
        let [when, machine] = circumstances(self.threads);
        let lines = [
            when,
            machine,
            format!("{}; {}", ask("rustc", &["--version"]), self.versions()),
            format!("before: {}", self.before.text()),
            format!("meanwhile: {}", meanwhile(self.worst())),
        ];
        lines.iter().map(|line| format!("- {line}\n")).collect()
    }

    fn versions(&self) -> String {
        let rows = self.tables.iter().flat_map(|(_, rows)| rows);
        let mut versions: Vec<&str> = rows.map(|row| row.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        versions.join(", ")
    }

    /// The most cores that other programs used while a contender was measured.
    fn worst(&self) -> Option<f64> {
        let rows = self.tables.iter().flat_map(|(_, rows)| rows);
        rows.filter_map(Row::other).reduce(f64::max)
    }
}

fn disturbed(row: &Row) -> bool {
    row.other().is_some_and(is_doubtful)
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "–".to_owned())
}
