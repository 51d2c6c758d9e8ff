//! The all-reduces of all sizes, and `x += 1`: time over bytes.

use super::measure::{LENET, Measured, RESNET18, TURNS, Turn};
use super::tables;
use crate::bench::svg::{self, LogLog, apart, text};
use collective::Algorithm;

const WIDTH: f64 = 600.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 520.0;
const HEIGHT: f64 = 190.0;

/// The picture of what was measured on so many cores.
pub fn svg(cores: usize, all: &[Measured]) -> String {
    let mut body = String::new();
    let words =
        "Time of an all-reduce over the bytes of each thread's vector; both axes are logarithmic.";
    text(&mut body, (16.0, 24.0), "soft", words);
    let words = "x += 1: every thread reads and writes its own vector once.";
    text(&mut body, (16.0, 42.0), "soft", words);
    let mut y = 46.0;
    for k in tables(cores) {
        y += 30.0;
        let title = match k > cores {
            true => format!("{k} threads take turns on {cores} cores"),
            false => format!("{k} threads on as many cores"),
        };
        text(&mut body, (16.0, y), "title", &title);
        let all: Vec<&Measured> = all.iter().filter(|m| m.k == k).collect();
        panel(&mut body, y + 28.0, &all);
        y += 28.0 + HEIGHT + 24.0;
    }
    let label =
        "The time of the all-reduces and of x += 1, from the smallest vectors to the largest";
    svg::document((WIDTH, y + 8.0), label, &body)
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

/// A line for each algorithm and one for `x += 1`, below `y`.
fn panel(body: &mut String, y: f64, all: &[&Measured]) {
    let micros = |m: &&Measured| TURNS.map(|turn| m.micros(turn).median);
    let bytes = all.iter().map(|m| m.bytes() as f64);
    let axes = LogLog {
        sides: (LEFT, RIGHT),
        x: bytes.fold((f64::MAX, 2.0), |(a, b), v| (a.min(v), b.max(v))),
        heights: (y, y + HEIGHT),
        decades: LogLog::decades(all.iter().flat_map(micros)),
    };
    axes.lines(body, micros_in_words);
    sizes(body, &axes);
    let lines = TURNS.map(|turn| {
        let at = |m: &&Measured| axes.at((m.bytes() as f64, m.micros(turn).median));
        all.iter().map(at).collect::<Vec<_>>()
    });
    let wanted: Vec<f64> = lines
        .iter()
        .filter_map(|line| Some(line.last()?.1))
        .collect();
    for ((turn, line), y) in TURNS.into_iter().zip(&lines).zip(apart(&wanted, 14.0)) {
        let look = match turn {
            Turn::Sum(algorithm) => format!("stroke=\"{}\" stroke-width=\"2\"", color(algorithm)),
            Turn::Increment => {
                "stroke=\"#24292f\" stroke-width=\"1.5\" stroke-dasharray=\"4 3\"".to_owned()
            }
        };
        svg::line(body, line, &look);
        svg::line(body, &[(RIGHT + 6.0, y), (RIGHT + 24.0, y)], &look);
        text(body, (RIGHT + 30.0, y + 4.0), "", &turn.to_string());
    }
}

/// Powers of ten below the axis, and above it the sizes of the two networks' gradients.
fn sizes(body: &mut String, axes: &LogLog) {
    let (top, foot) = axes.heights;
    for (bytes, name) in [
        (1e3, "1 kB"),
        (1e4, "10 kB"),
        (1e5, "100 kB"),
        (1e6, "1 MB"),
        (1e7, "10 MB"),
        (1e8, "100 MB"),
    ] {
        let (x, _) = axes.at((bytes, 1.0));
        text(body, (x, foot + 16.0), "middle", name);
    }
    for (len, name) in [(LENET, "LeNet"), (RESNET18, "ResNet-18")] {
        let (x, _) = axes.at(((len * size_of::<f32>()) as f64, 1.0));
        svg::line(
            body,
            &[(x, top), (x, foot)],
            "stroke=\"#8c959f\" stroke-dasharray=\"1 3\"",
        );
        text(body, (x, top - 6.0), "middle soft", name);
    }
}

fn micros_in_words(micros: f64) -> String {
    match micros {
        micros if micros < 1e3 => format!("{micros} µs"),
        micros if micros < 1e6 => format!("{} ms", micros / 1e3),
        micros => format!("{} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(len: usize, micros: [f64; 5]) -> Measured {
        let times = TURNS.into_iter().zip(micros.map(|micros| vec![micros]));
        Measured::new(2, len, times.collect())
    }

    #[test]
    fn ten_times_the_time_is_as_far_up_everywhere() {
        let all = [
            measured(250, [100.0, 1.0, 10.0, 10.0, 1.0]),
            measured(25_000_000, [1e6, 1e4, 1e5, 1e5, 1e4]),
        ];
        let mut body = String::new();
        panel(&mut body, 0.0, &[&all[0], &all[1]]);
        let step = HEIGHT / 6.0;
        for (algorithm, first) in [(Algorithm::Owner, 0.0), (Algorithm::Ring, 1.0)] {
            let [from, to] = [first, first + 4.0].map(|decade| HEIGHT - decade * step);
            let line = format!("M{LEFT:.1} {from:.1}L{RIGHT:.1} {to:.1}\"");
            let color = color(algorithm);
            let mut lines = body.lines();
            let found = lines.find(|l| l.contains(&line) && l.contains(color));
            assert!(found.is_some(), "{line}\n{body}");
        }
        for label in ["1 µs", "1 s", "1 kB", "100 MB", "x += 1"] {
            assert!(body.contains(&format!(">{label}</text>")), "{label}");
        }
    }
}
