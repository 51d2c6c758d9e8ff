//! The report as a picture, on white, so that they can be read on a dark page as well.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::contender::Family;
use super::report::{self, ratio};
use super::rounds::Row;
use super::stats::short;

pub const WIDTH: u32 = 620;
const BLUE: RGBColor = RGBColor(9, 105, 218);
const ORANGE: RGBColor = RGBColor(188, 76, 0);
const GREY: RGBColor = RGBColor(140, 149, 159);

/// Of `bars`: the height of a line, where the bars begin and how long they are, and where the columns of numbers end.
const LINE: i32 = 22;
const LEFT: i32 = 270;
const BARS: f64 = 200.0;
const TIMES: i32 = 540;
const MS: i32 = 604;

/// Training steps a second: a bar for each contender of each step, in multiples of PyTorch's speed.
///
/// # Errors
/// If plotters cannot draw it.
pub fn bars(tables: &[report::Table]) -> Result<String> {
    let lines = 2 + tables.iter().map(|(_, rows)| 2 + rows.len()).sum::<usize>();
    let mut svg = String::new();
    let size = (WIDTH, lines as u32 * LINE as u32);
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |words: &str, place: (i32, i32), side: HPos| {
        let style = ("sans-serif", 13).into_text_style(&area);
        area.draw_text(words, &style.pos(Pos::new(side, VPos::Center)), place)
    };
    let title = "Training steps a second; 1×: the fastest mode of PyTorch with as many threads";
    text(title, (16, LINE), HPos::Left)?;
    let mut y = 2 * LINE;
    for (work, rows) in tables {
        text(&work.to_string(), (16, y), HPos::Left)?;
        text("× PyTorch", (TIMES, y), HPos::Right)?;
        text("ms a step", (MS, y), HPos::Right)?;
        let slowest = rows.iter().map(Row::median).fold(0.0, f64::max);
        let speed = |row: &Row| ratio(row, rows).unwrap_or(slowest / row.median());
        let fastest = rows.iter().map(speed).fold(1.0, f64::max);
        for row in rows {
            y += LINE;
            let color = match row.contender.family {
                Family::Ours => BLUE,
                Family::Pytorch => ORANGE,
                Family::Other => GREY,
            };
            let end = LEFT + (BARS * speed(row) / fastest).max(1.0) as i32;
            area.draw(&Rectangle::new(
                [(LEFT, y - 8), (end, y + 8)],
                color.filled(),
            ))?;
            text(&row.contender.label(), (LEFT - 8, y), HPos::Right)?;
            if let Some(ratio) = ratio(row, rows) {
                text(&format!("{}×", short(ratio)), (TIMES, y), HPos::Right)?;
            }
            text(&short(row.median()), (MS, y), HPos::Right)?;
        }
        y += 2 * LINE;
    }
    area.present()?;
    drop(area);
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::Contender;
    use std::path::Path;

    fn row(family: Family, name: &str, threads: usize, ms: f64) -> Row {
        let contender = Contender::new(family, name, threads, Path::new("python"), &[]);
        let mut row = Row::new(&contender);
        row.times.push(ms);
        row
    }

    #[test]
    fn the_fastest_has_the_longest_bar() -> Result<()> {
        let rows = vec![
            row(Family::Ours, "ours", 4, 5.0),
            row(Family::Pytorch, "PyTorch compile", 4, 20.0),
            row(Family::Pytorch, "PyTorch eager", 4, 25.0),
            row(Family::Other, "Burn", 1, 400.0),
        ];
        let svg = bars(&[("lenet-256".parse()?, rows)])?;
        let bars: Vec<&str> = svg
            .lines()
            .filter(|line| line.starts_with("<rect"))
            .collect();
        let of = |bar: &str, width: f64| bar.contains(&format!("width=\"{width}\""));
        assert!(
            of(bars[1], BARS) && of(bars[2], BARS / 4.0) && of(bars[3], BARS / 5.0),
            "{svg}"
        );
        assert!(svg.contains("4.00×") && svg.contains("400"), "{svg}");
        Ok(())
    }
}
