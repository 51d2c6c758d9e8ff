//! The report as a picture, on white, so that it can be read on a dark page as well.

use anyhow::Result;
use plotters::prelude::*;

use super::measure::{TURNS, name};
use super::report::Table;
use crate::bench::chart::WIDTH;

/// The time of the all-reduces and of `x += 1` over the bytes of each thread's vector, on logarithmic axes. There is a
/// panel for each number of threads.
///
/// # Errors
/// If plotters cannot draw it.
pub fn lines(cores: usize, tables: &[Table]) -> Result<String> {
    let mut svg = String::new();
    let size = (WIDTH, 300 * tables.len() as u32);
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, Table { k, rows }) in area.split_evenly((tables.len(), 1)).iter().zip(tables) {
        let title = match *k > cores {
            true => format!("{k} threads take turns on {cores} cores"),
            false => format!("{k} threads on as many cores"),
        };
        let of_len = |len: usize| (len * size_of::<f32>()) as f64;
        let bytes = rows.iter().map(|(len, _)| of_len(*len));
        let micros = rows.iter().flat_map(|(_, micros)| micros);
        let micros = micros.map(|micros| micros.median);
        let mut chart = ChartBuilder::on(part)
            .caption(title, ("sans-serif", 16))
            .margin(12)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(range(bytes).log_scale(), range(micros).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .label_style(("sans-serif", 13))
            .x_label_formatter(&|bytes| in_words(*bytes, ["B", "kB", "MB", "GB"]))
            .y_label_formatter(&|micros| in_words(*micros, ["µs", "ms", "s", "ks"]))
            .draw()?;
        for (i, turn) in TURNS.into_iter().enumerate() {
            let color = Palette99::pick(i).stroke_width(2);
            let points = rows
                .iter()
                .map(|(len, micros)| (of_len(*len), micros[i].median));
            chart
                .draw_series(LineSeries::new(points, color))?
                .label(name(turn))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 13))
            .background_style(WHITE)
            .draw()?;
    }
    area.present()?;
    drop(area);
    Ok(svg)
}

/// From the smallest value to the largest.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
    least..most
}

/// A power of ten with one of four units, each a thousand of the one before.
fn in_words(value: f64, units: [&str; 4]) -> String {
    let thousands = (value.log10() / 3.0).floor().clamp(0.0, 3.0);
    let (number, unit) = (value / 1e3f64.powf(thousands), units[thousands as usize]);
    format!("{number:.0} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::stats::Summary;

    #[test]
    fn ten_times_the_time_is_as_far_up_everywhere() -> Result<()> {
        let rows = [
            (250, [100.0, 1.0, 10.0, 10.0, 1.0]),
            (25_000_000, [1e6, 1e4, 1e5, 1e5, 1e4]),
        ];
        let summary = |micros| Summary::of(&[micros]);
        let rows = rows.map(|(len, micros)| (len, micros.map(summary).into()));
        let rows = rows.into();
        let svg = lines(2, &[Table { k: 2, rows }])?;
        let ends = |line: &str| -> Option<[f64; 2]> {
            let points = line.split_once("points=\"")?.1.split_once('"')?.0;
            let heights = points.split_whitespace().map(|point| point.split_once(','));
            let heights: Option<Vec<f64>> = heights.map(|p| p?.1.parse().ok()).collect();
            Some([*heights.as_ref()?.first()?, *heights?.last()?])
        };
        let wide = svg
            .lines()
            .filter(|line| line.contains("stroke-width=\"2\""));
        let drawn: Vec<[f64; 2]> = wide.filter_map(ends).collect();
        let rise = |i: usize| drawn[i][0] - drawn[i][1];
        for i in 1..5 {
            assert!((rise(i) - rise(0)).abs() <= 1.0, "{drawn:?}"); // pixels
        }
        assert!(svg.contains("x += 1") && svg.contains("1 kB"), "{svg}");
        Ok(())
    }

    #[test]
    fn numbers_have_their_units() {
        let units = ["µs", "ms", "s", "ks"];
        let words = [1.0, 100.0, 1e3, 1e5, 1e6].map(|micros| in_words(micros, units));
        assert_eq!(words, ["1 µs", "100 µs", "1 ms", "100 ms", "1 s"]);
    }
}
