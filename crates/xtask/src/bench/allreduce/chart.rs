//! The all-reduces of all sizes side by side: how fast each is beside the bound.

use super::measure::{Measured, OWNER, TURNS, Turn};
use super::report::size;
use super::{Results, tables};
use crate::bench::stats::short;
use crate::bench::svg::{self, text};
use collective::Algorithm;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = WIDTH - 16.0;
const HEIGHT: f64 = 110.0;

/// The picture.
pub fn svg(results: &Results) -> String {
    let mut body = String::new();
    text(
        &mut body,
        (16.0, 24.0),
        "soft",
        "Speed beside the bound = 100%: every thread reads and writes its own buffer once",
    );
    legend(&mut body, 48.0);
    let mut y = 52.0;
    for k in tables(results.cores) {
        y += 30.0;
        let title = match k > results.cores {
            true => format!("{k} threads take turns on {} cores", results.cores),
            false => format!("{k} threads on as many cores"),
        };
        text(&mut body, (16.0, y), "title", &title);
        let all: Vec<&Measured> = results.of(k).collect();
        panel(&mut body, y + 24.0, &all);
        y += 24.0 + HEIGHT + 52.0;
    }
    let label = "The all-reduces of all sizes beside their bound";
    svg::document((WIDTH, y + 4.0), label, &body)
}

/// One color for each algorithm, in both pictures.
pub fn color(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Star => "#bc4c00",
        Algorithm::Owner | Algorithm::Auto => "#0969da",
        Algorithm::Ring => "#8250df",
        Algorithm::Tree => "#1a7f37",
    }
}

fn legend(body: &mut String, y: f64) {
    for (i, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let x = 16.0 + 72.0 * i as f64;
        svg::bar(body, (x, y - 10.0), (12.0, 12.0), color(algorithm));
        text(body, (x + 18.0, y), "", &algorithm.to_string());
    }
}

/// The sizes from left to right, with a bar for each algorithm, below `y`.
fn panel(body: &mut String, y: f64, all: &[&Measured]) {
    let bars = |m: &&Measured| TURNS.map(|turn| m.of_the_bound(turn));
    let most = all.iter().flat_map(bars).fold(1.0, f64::max);
    let (foot, scale) = (y + HEIGHT, HEIGHT / most);
    let width = (RIGHT - LEFT) / all.len() as f64;
    for (i, m) in all.iter().enumerate() {
        let middle = LEFT + width * (i as f64 + 0.5);
        for (j, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            let height = (m.of_the_bound(Turn::Sum(algorithm)) * scale).max(1.0);
            let x = middle + 11.0 * (j as f64 - 2.0);
            svg::bar(body, (x, foot - height), (10.0, height), color(algorithm));
        }
        let name = size(m.len);
        let (bytes, whose) = name.split_once(", ").unwrap_or((&name, ""));
        text(body, (middle, foot + 16.0), "middle", bytes);
        text(body, (middle, foot + 30.0), "middle soft", whose);
        let owner = time(m.micros(OWNER).median);
        text(body, (middle, foot + 46.0), "middle soft", &owner);
    }
    text(body, (LEFT - 8.0, foot + 46.0), "end soft", "owner");
    let look = "stroke=\"#57606a\" stroke-dasharray=\"3 3\"";
    for (share, label, look) in [(0.0, "0", "stroke=\"#57606a\""), (1.0, "100%", look)] {
        let at = foot - share * scale;
        svg::line(body, &[(LEFT, at), (RIGHT, at)], look);
        text(body, (LEFT - 8.0, at + 4.0), "end", label);
    }
}

fn time(micros: f64) -> String {
    match micros < 1000.0 {
        true => format!("{} µs", short(micros)),
        false => format!("{} ms", short(micros / 1000.0)),
    }
}
