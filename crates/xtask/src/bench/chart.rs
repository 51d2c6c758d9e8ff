//! The report as a picture: a bar for each contender, as long as it is fast beside PyTorch.

use super::contender::Family;
use super::report::{Report, median, ratio};
use super::rounds::Row;
use super::stats::short;
use super::svg::{self, text};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 230.0;
const BARS: f64 = 390.0;
const ROW: f64 = 22.0;

/// The picture.
pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 34.0;
    text(
        &mut body,
        (16.0, 24.0),
        "soft",
        "Training steps a second, PyTorch = 1 (the better mode, as many threads)",
    );
    for (work, rows) in &report.tables {
        y += 26.0;
        text(&mut body, (16.0, y), "title", &work.to_string());
        y += 10.0;
        y = group(&mut body, y, rows);
    }
    let height = y + 16.0;
    let label = "Training steps a second beside PyTorch";
    svg::document((WIDTH, height), label, &body)
}

/// The bars of one step below `y`; returns where they end.
fn group(body: &mut String, y: f64, rows: &[Row]) -> f64 {
    let slowest = rows.iter().map(median).fold(0.0, f64::max);
    let speed = |row: &Row| ratio(row, rows).unwrap_or(slowest / median(row));
    let scale = BARS / rows.iter().map(speed).fold(1.0, f64::max);
    let end = y + ROW * rows.len() as f64;
    if rows.iter().any(|row| ratio(row, rows).is_some()) {
        let x = LEFT + scale;
        let look = "stroke=\"#57606a\" stroke-dasharray=\"3 3\"";
        svg::line(body, &[(x, y), (x, end)], look);
    }
    for (i, row) in rows.iter().enumerate() {
        bar(
            body,
            y + ROW * i as f64,
            row,
            (speed(row), scale),
            ratio(row, rows),
        );
    }
    end
}

fn bar(body: &mut String, y: f64, row: &Row, (speed, scale): (f64, f64), ratio: Option<f64>) {
    let color = match row.contender.family {
        Family::Ours => "#0969da",
        Family::Pytorch => "#bc4c00",
        Family::Other => "#8c959f",
    };
    let (base, length) = (y + 15.0, (speed * scale).max(1.0));
    svg::bar(body, (LEFT, y + 3.0), (length, 16.0), color);
    text(body, (LEFT - 8.0, base), "end", &row.contender.label());
    let times = ratio.map_or(String::new(), |ratio| format!("{}×, ", short(ratio)));
    let said = format!("{times}{} ms", short(median(row)));
    text(body, (LEFT + length + 6.0, base), "soft", &said);
}
