//! The picture of what a replica keeps in each stage of sharding, from the recorded count.

use anyhow::{Context, Result, ensure};
use d2l::DARK_MODE;

use crate::book::Book;

/// The file of the picture.
pub const FILE: &str = "img/memory.svg";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } .soft { fill: #57606a } \
    .d0 { fill: #0969da } .d1 { fill: #f0a30a } .d2 { fill: #1a7f37 }";
const STAGES: [&str; 4] = ["data parallel", "stage 1", "stage 2", "stage 3"];
const KINDS: [&str; 3] = ["parameters", "gradients", "momentum"];
/// Of a replica among so many.
const K: &str = "4";

/// The picture.
///
/// # Errors
/// If the count is not recorded.
pub fn svg(book: &Book) -> Result<String> {
    let recorded = book.recorded()?;
    let table = recorded
        .get("seven-diffs memory")
        .context("no page has <!-- recorded: seven-diffs memory -->")?;
    let mut rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    rows.retain(|row| row.len() == 8 && row[1] == K);
    let count = rows.len();
    ensure!(count == STAGES.len(), "{count} stages are recorded");
    let (mut drawn, mut words) = (String::new(), Vec::new());
    for (i, kind) in KINDS.iter().enumerate() {
        let x = 130 + 120 * i;
        drawn += &format!(
            "<rect class=\"d{i}\" x=\"{x}\" y=\"18\" width=\"14\" height=\"12\" rx=\"2\"/><text x=\"{}\" y=\"29\">{kind}</text>\n",
            x + 20
        );
    }
    for (i, (stage, row)) in STAGES.iter().zip(rows).enumerate() {
        let (y, mut x) = (46 + 30 * i, 130.0);
        drawn += &format!("<text x=\"16\" y=\"{}\">{stage}</text>\n", y + 15);
        for (kind, kb) in row[2..5].iter().enumerate() {
            let width = kb.parse::<f64>()? / 5.0;
            drawn += &format!(
                "<rect class=\"d{kind}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"20\"/>\n"
            );
            x += width;
        }
        let (all, x, y) = (row[5], x + 8.0, y + 15);
        drawn += &format!("<text class=\"soft\" x=\"{x:.1}\" y=\"{y}\">{all} kB</text>\n");
        words.push(format!("{stage} {all} kB"));
    }
    let words = words.join(", ");
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="560" height="176" viewBox="0 0 560 176" role="img" aria-label="What one of {K} replicas keeps: {words}">
<style>{STYLE}</style>
<rect fill="#ffffff" width="560" height="176" rx="8"/>
{drawn}{DARK_MODE}
</svg>
"##
    ))
}
