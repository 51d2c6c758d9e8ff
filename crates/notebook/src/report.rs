//! The tables of the reports in `benches/results`.

use anyhow::Result;

use crate::book::Book;
use crate::chapter;

/// The rows of a report that begin with `start`, without this beginning, in the sections with a heading that begins
/// with `heading`: the first word of each cell.
///
/// # Errors
/// If there is no such report.
pub fn rows(book: &Book, report: &str, heading: &str, start: &str) -> Result<Vec<Vec<String>>> {
    let first = |cell: &String| cell.split_whitespace().next().unwrap_or("").to_owned();
    let rows = whole_rows(book, report, heading, start)?;
    Ok(rows
        .iter()
        .map(|row| row.iter().map(first).collect())
        .collect())
}

/// Like [`rows`], with all words of each cell.
///
/// # Errors
/// If there is no such report.
pub fn whole_rows(
    book: &Book,
    report: &str,
    heading: &str,
    start: &str,
) -> Result<Vec<Vec<String>>> {
    let file = format!("benches/results/{report}.md");
    let text = chapter::read(&book.root.join(&file))?;
    let sections = text.split("\n## ").filter(|all| all.starts_with(heading));
    let start = format!("| {start}");
    let rows = sections
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix(&start));
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect();
    Ok(rows.map(cells).collect())
}
