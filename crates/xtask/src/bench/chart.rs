//! The report as a picture: a bar for each contender, as long as it is fast beside PyTorch.

use super::contender::Family;
use super::report::{median, ratio};
use super::rounds::Row;
use super::stats::short;
use super::svg::{self, text};
use super::work::Work;

const WIDTH: f64 = 600.0;
const LEFT: f64 = 220.0;
const BARS: f64 = 220.0;
const ROW: f64 = 22.0;
/// Where the columns of numbers end: how many times PyTorch's speed, and ms.
const TIMES: f64 = 500.0;
const MS: f64 = WIDTH - 16.0;

/// The picture of the steps, each with its rows.
pub fn svg(tables: &[(Work, Vec<Row>)]) -> String {
    let mut body = String::new();
    let mut y = 34.0;
    let words = "Training steps a second; 1×: the fastest mode of PyTorch with as many threads";
    text(&mut body, (16.0, 24.0), "soft", words);
    for (work, rows) in tables {
        y += 26.0;
        text(&mut body, (16.0, y), "title", &work.to_string());
        text(&mut body, (TIMES, y), "soft end", "× PyTorch");
        text(&mut body, (MS, y), "soft end", "ms a step");
        y = group(&mut body, y + 4.0, rows);
    }
    let height = y + 16.0;
    let label = "Training steps a second beside PyTorch";
    svg::document((WIDTH, height), label, &body)
}

/// The bars of one step below `y`, those with as many threads below each other; returns where they end.
fn group(body: &mut String, mut y: f64, rows: &[Row]) -> f64 {
    let slowest = rows.iter().map(median).fold(0.0, f64::max);
    let speed = |row: &Row| ratio(row, rows).unwrap_or(slowest / median(row));
    let scale = BARS / rows.iter().map(speed).fold(1.0, f64::max);
    for rows in rows.chunk_by(|a, b| a.contender.threads == b.contender.threads) {
        let threads = rows[0].contender.threads;
        let s = if threads == 1 { "" } else { "s" };
        text(
            body,
            (16.0, y + 15.0),
            "soft",
            &format!("{threads} thread{s}"),
        );
        let end = y + ROW * rows.len() as f64;
        if rows.iter().any(|row| ratio(row, rows).is_some()) {
            let look = "stroke=\"#57606a\" stroke-dasharray=\"3 3\"";
            svg::line(body, &[(LEFT + scale, y), (LEFT + scale, end)], look);
        }
        for row in rows {
            bar(body, y, row, speed(row) * scale, ratio(row, rows));
            y += ROW;
        }
        y += 8.0;
    }
    y
}

fn bar(body: &mut String, y: f64, row: &Row, length: f64, ratio: Option<f64>) {
    let color = match row.contender.family {
        Family::Ours => "#0969da",
        Family::Pytorch => "#bc4c00",
        Family::Other => "#8c959f",
    };
    let base = y + 15.0;
    svg::bar(body, (LEFT, y + 3.0), (length.max(1.0), 16.0), color);
    text(body, (LEFT - 8.0, base), "end", &row.contender.name);
    if let Some(ratio) = ratio {
        text(body, (TIMES, base), "end", &format!("{}×", short(ratio)));
    }
    text(body, (MS, base), "end", &short(median(row)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::Contender;
    use std::path::Path;

    pub fn row(family: Family, name: &str, threads: usize, ms: f64) -> Row {
        let contender = Contender::new(family, name, threads, Path::new("python"));
        let mut row = Row::new(&contender);
        row.times.push(ms);
        row
    }

    #[test]
    fn no_line_or_bar_reaches_the_numbers() {
        let rows = [
            row(Family::Ours, "ours", 4, 5.0),
            row(Family::Pytorch, "PyTorch compile", 4, 20.0),
            row(Family::Pytorch, "PyTorch eager", 4, 25.0),
            row(Family::Other, "Burn", 1, 400.0),
        ];
        let mut body = String::new();
        let foot = group(&mut body, 0.0, &rows);
        assert_eq!(foot, 4.0 * ROW + 2.0 * 8.0);
        // 1x is a quarter of the longest bar, for those with as many threads as a PyTorch
        let line = format!("M{0:.1} 0.0L{0:.1} {1:.1}", LEFT + BARS / 4.0, 3.0 * ROW);
        assert_eq!(body.matches("<path").count(), 1);
        assert!(body.contains(&line), "{body}");
        let texts: Vec<&str> = body.lines().filter(|l| l.starts_with("<text")).collect();
        assert!(texts.iter().any(|t| t.contains(">4.00×<")) && texts[0].contains(">4 threads<"));
        // the words of a number are narrower than 60
        const { assert!(LEFT + BARS + 60.0 <= TIMES) };
        let longest = format!(" width=\"{BARS:.1}\"");
        let bars = body.lines().filter(|line| line.starts_with("<rect"));
        assert_eq!(bars.filter(|bar| bar.contains(&longest)).count(), 1);
    }
}
