//! The report as a picture: a bar for each contender, as long as it is fast beside PyTorch.
//!
//! Written by hand, on white like the other pictures of the project, so that it can be read on a
//! dark page as well.

use std::fmt::Write;

use super::contender::Family;
use super::report::{Report, median, ratio};
use super::rounds::Row;
use super::stats::short;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 230.0;
const BARS: f64 = 390.0;
const ROW: f64 = 22.0;

const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #24292f } \
    .title { font-size: 14px; font-weight: 600 } .soft { fill: #57606a; paint-order: stroke; stroke: #ffffff; stroke-width: 4px } .end { text-anchor: end }";

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
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"Training steps a second beside PyTorch\">\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// The bars of one step below `y`; returns where they end.
fn group(body: &mut String, y: f64, rows: &[Row]) -> f64 {
    let slowest = rows.iter().map(median).fold(0.0, f64::max);
    let speed = |row: &Row| ratio(row, rows).unwrap_or(slowest / median(row));
    let scale = BARS / rows.iter().map(speed).fold(1.0, f64::max);
    let end = y + ROW * rows.len() as f64;
    if rows.iter().any(|row| ratio(row, rows).is_some()) {
        let x = LEFT + scale;
        let _ = writeln!(
            body,
            "<path d=\"M{x:.1} {y:.1}V{end:.1}\" stroke=\"#57606a\" stroke-dasharray=\"3 3\"/>"
        );
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
    let _ = writeln!(
        body,
        "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"16\" rx=\"2\" fill=\"{color}\"/>",
        y + 3.0
    );
    text(body, (LEFT - 8.0, base), "end", &row.contender.label());
    let times = ratio.map_or(String::new(), |ratio| format!("{}×, ", short(ratio)));
    let said = format!("{times}{} ms", short(median(row)));
    text(body, (LEFT + length + 6.0, base), "soft", &said);
}

fn text(body: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
    );
}
