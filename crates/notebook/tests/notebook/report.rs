//! What pages quote of `benches/results/allreduce.md` is what stands there.

use std::fs;

use anyhow::{Context, Result, bail};
use notebook::book::Book;

/// Figures of the report that `communication.md` or the README says otherwise.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let read = |file: &str| fs::read_to_string(book.root.join(file)).context(file.to_owned());
    let report = Report(read("benches/results/allreduce.md")?);
    let mut complaints = Vec::new();
    for (page, quotes) in [
        ("notebooks-md/communication.md", in_the_chapter(&report)?),
        ("README.md", in_the_readme(&report)?),
    ] {
        let words = one_line(&read(page)?);
        let missing = quotes.iter().filter(|quote| !words.contains(*quote));
        let complaint =
            |quote| format!("{page} does not say {quote:?}, as benches/results/allreduce.md does");
        complaints.extend(missing.map(complaint));
    }
    Ok(complaints)
}

fn in_the_chapter(report: &Report) -> Result<Vec<String>> {
    let resnet = report.row("4 threads", "44.7 MB, ResNet-18")?;
    let mpi = report.row("Open MPI", "44.7 MB, ResNet-18")?;
    let [owner, bound, mpi] = [resnet[1], resnet[4], mpi[1]].map(|us| us / 1e3);
    let model = report.0.split("t_compute(b) = ").nth(1).context("model")?;
    let (fixed, rest) = model.split_once(" + ").context("model")?;
    let (each, _) = rest.split_once("·b ms").context("model")?;
    let steps = ["1", "2", "4"].map(|k| ["strong", "weak"].map(|how| format!("{how} | {k}")));
    let ratios = steps.as_flattened().iter().map(|step| {
        let row = report.row("Training steps", step)?;
        row.get(3).copied().context("no ratio")
    });
    let ratios = ratios.collect::<Result<Vec<f64>>>()?;
    let worst = ratios.iter().map(|r| (r - 1.0).abs()).fold(0.0, f64::max);
    let step = |how: &str| report.row("Training steps", &format!("{how} | 4"));
    let [strong, weak] = [step("strong")?[2], step("weak")?[2]];
    Ok(vec![
        format!("took {strong} ms in one series and {weak} ms in the other"),
        format!("the owner takes {owner:.1} ms and the bound {bound:.1} ms"),
        format!("Open MPI, among four processes, takes {mpi:.0} ms"),
        format!("${} + {each}\\,b$ ms for $b$", fixed.trim_end_matches(".0")),
        format!("{fixed} + {each} * examples as f64"),
        format!("lie within {:.0}% of the model", 100.0 * worst),
    ])
}

fn in_the_readme(report: &Report) -> Result<Vec<String>> {
    let mut quotes = Vec::new();
    for size in ["516 kB, LeNet", "44.7 MB, ResNet-18"] {
        let ours: Vec<String> = report.row("4 threads", size)?[..5]
            .iter()
            .map(|us| thousands(*us))
            .collect();
        let peer = report.row("Open MPI", size)?;
        let (ours, mpi, times) = (ours.join(" | "), thousands(peer[1]), peer[2]);
        quotes.push(format!("| {size} | {ours} | {mpi} ({times:.1}×) |"));
    }
    // communication, compute, afterwards, with large buckets, with small ones
    let [half, .., all] = &report.rows("Overlap")[..] else {
        bail!("the report has no table under \"Overlap\"");
    };
    for row in [half, all] {
        quotes.push(format!(
            "communication takes {} ms, a step of {} ms takes {} ms with overlap and {} without",
            row[0], row[1], row[4], row[2]
        ));
    }
    Ok(quotes)
}

struct Report(String);

impl Report {
    /// The lines of the sections whose heading begins so.
    fn lines(&self, heading: &str) -> impl Iterator<Item = &str> {
        let sections = self.0.split("\n## ");
        let sections = sections.filter(move |section| section.starts_with(heading));
        sections.flat_map(str::lines)
    }

    /// The numbers of the row that begins so, in the section whose heading begins so: the first one in each cell.
    fn row(&self, heading: &str, row: &str) -> Result<Vec<f64>> {
        let mut lines = self.lines(heading);
        let line = lines.find_map(|line| line.strip_prefix(&format!("| {row} | ")));
        let line = line.with_context(|| format!("the report has no {row:?} under {heading:?}"))?;
        Ok(numbers(line))
    }

    /// The numbers of all rows there that begin with one.
    fn rows(&self, heading: &str) -> Vec<Vec<f64>> {
        let rows = self
            .lines(heading)
            .filter_map(|line| line.strip_prefix("| "));
        let rows = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_digit()));
        rows.map(numbers).collect()
    }
}

/// The first number of each cell.
fn numbers(row: &str) -> Vec<f64> {
    let first = |cell: &str| cell.split_whitespace().next()?.parse().ok();
    row.split('|').filter_map(first).collect()
}

/// Without the ends of its lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `4,023`, `33.2`
fn thousands(n: f64) -> String {
    let whole = n as u64;
    match whole {
        ..1000 => n.to_string(),
        _ => format!("{},{:03}", whole / 1000, whole % 1000),
    }
}
