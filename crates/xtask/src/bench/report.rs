//! The report as Markdown: the tables, and when, where and how they were measured.

use super::machine::circumstances;
use super::rounds::Row;
use super::stats::{Summary, short};
use super::work::{COUNTED, Work};

/// A kind of step with the rows of all contenders.
pub type Table = (Work, Vec<Row>);

/// The time of a step of the fastest PyTorch mode in bf16 or in float32 with as many threads, divided by the
/// contender's time; a dash without PyTorch.
pub fn ratio(row: &Row, rows: &[Row], bf16: bool) -> String {
    let threads = row.contender.threads;
    let pytorch = rows
        .iter()
        .filter(|r| r.contender.is_pytorch(bf16) && r.contender.threads == threads);
    let best = pytorch.map(Row::median).min_by(f64::total_cmp);
    best.map_or("–".to_owned(), |best| short(best / row.median()))
}

const HEAD: &str = "\
| | threads | ms | from – to | rounds | PyTorch / this | bf16 / this | GFLOP/s | cores busy | memory, MiB |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

const EXPLAINED: &str = "\
ms: the median over the rounds; the time of a round is the median of its steps. From – to: the fastest and the \
slowest round. PyTorch / this: the time of the fastest float32 mode of PyTorch with as many threads, divided by the \
time of this row; above 1 is faster than PyTorch. Bf16 / this: the same of PyTorch's fastest bf16 mode \
(`torch.autocast`). Cores busy: processor time divided by elapsed time. Memory: the peak of \
the process.";

/// All of it: the number of cores for each program, the tables, and the section of the losses.
pub fn markdown(threads: usize, tables: &[Table], losses: &str) -> String {
    let rows = || tables.iter().flat_map(|(_, rows)| rows);
    let mut versions: Vec<&str> = rows().map(|row| row.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let other = rows().map(|row| row.spent.other_cores());
    let other = other.reduce(f64::max).unwrap_or(f64::NAN);
    let head = circumstances(threads, &versions.join(", "), other);
    let mut text = format!("# Training on the CPU\n\n{head}");
    for (work, rows) in tables {
        let gflop = short(work.flops() / 1e9);
        text += &format!("\n## {work}\n\nOne step is {gflop} GFLOP.\n\n{HEAD}");
        text.extend(rows.iter().map(|row| line(work, row, rows)));
    }
    if !tables.is_empty() {
        text += &format!("\n{EXPLAINED} {COUNTED}\n");
    }
    text + losses
}

fn line(work: &Work, row: &Row, rows: &[Row]) -> String {
    let times = Summary::of(&row.times);
    format!(
        "| {} | {} | {} | {} – {} | {} | {} | {} | {:.0} | {:.1} | {:.0} |\n",
        row.contender.name,
        row.contender.threads,
        short(times.median),
        short(times.min),
        short(times.max),
        times.count,
        ratio(row, rows, false),
        ratio(row, rows, true),
        work.flops() / times.median / 1e6,
        row.spent.cores(),
        row.memory,
    )
}
