//! Curves that grow with the run: an SVG file, and the last state in the terminal.

use std::ops::{Range, RangeInclusive};

use anyhow::{Result, ensure};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::data::float::pretty_print_float;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::svg::{DARK_MODE, escape};

/// Plots one or more curves over the epochs ("Linear Regression Implementation from Scratch").
///
/// ```
/// let mut animator = d2l::Animator::new("epoch", &["test acc"], (1.0, 10.0));
/// animator.add(1.0, &[0.61])?;
/// animator.add(2.0, &[0.72])?;
/// assert_eq!(animator.y(0), [0.61, 0.72]);
/// assert!(animator.svg()?.starts_with("<svg"));
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Clone)]
pub struct Animator {
    xlabel: String,
    ylabel: String,
    log: bool,
    legend: Vec<String>,
    xlim: RangeInclusive<f64>,
    x: Vec<f64>,
    y: Vec<Vec<f64>>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 560;
/// Without the legend.
const HEIGHT: u32 = 340;
const MARGIN: u32 = 16;
/// The width of the labels left of the y axis.
const Y_LABELS: u32 = 72;
/// The height of a row of the legend.
const ROW: u32 = 22;
/// Matplotlib's ten colours. With more curves they begin again.
const COLORS: [u32; 10] = [
    0x1f77b4, 0xd62728, 0x2ca02c, 0x9467bd, 0xff7f0e, 0x8c564b, 0xe377c2, 0x7f7f7f, 0xbcbd22,
    0x17becf,
];

impl Animator {
    /// One curve for each name in `legend`, over `xlim`. A curve has a gap at NaN, at infinity, and at points outside of
    /// `xlim`.
    pub fn new(xlabel: &str, legend: &[&str], xlim: (f64, f64)) -> Self {
        let (from, to) = xlim;
        // one epoch alone is in the middle of its axis
        let room = if from == to { 1.0 } else { 0.0 };
        Self {
            xlabel: xlabel.to_owned(),
            ylabel: String::new(),
            log: false,
            legend: legend.iter().map(|&l| l.to_owned()).collect(),
            xlim: from - room..=to + room,
            x: Vec::new(),
            y: vec![Vec::new(); legend.len()],
        }
    }

    /// Labels the y axis, the book's `ylabel`.
    pub fn ylabel(mut self, ylabel: &str) -> Self {
        self.ylabel = ylabel.to_owned();
        self
    }

    /// Makes the x axis logarithmic, the book's `xscale='log'`, with a mark at the x of each point.
    ///
    /// ```
    /// let rates = d2l::Animator::new("learning rate", &["LeNet"], (0.02, 0.5));
    /// let mut rates = rates.ylabel("test accuracy").xscale_log();
    /// rates.add(0.025, &[0.79])?;
    /// rates.add(0.4, &[0.8])?;
    /// assert!(rates.svg()?.contains("0.025"));
    /// # anyhow::Ok(())
    /// ```
    pub fn xscale_log(mut self) -> Self {
        self.log = true;
        self
    }

    /// Adds one point to each curve.
    ///
    /// # Errors
    /// If there are not as many values as curves.
    pub fn add(&mut self, x: f64, y: &[f64]) -> Result<()> {
        let curves = self.y.len();
        ensure!(y.len() == curves, "{} values for {curves} curves", y.len());
        self.x.push(x);
        for (ys, &y) in self.y.iter_mut().zip(y) {
            ys.push(y);
        }
        Ok(())
    }

    /// The x of all points so far, the book's `animator.X[i]`: it is the same for each curve.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// The values of curve `i` so far, the book's `animator.Y[i]`.
    pub fn y(&self, i: usize) -> &[f64] {
        &self.y[i]
    }

    /// The curves as an SVG picture, on white; on a dark page they are dark.
    ///
    /// # Errors
    /// If `xlim` is no axis: it does not grow, has an infinite end, or, if the axis is logarithmic, begins at 0 or below.
    pub fn svg(&self) -> Result<String> {
        let (start, end) = self.xlim.clone().into_inner();
        let is_axis = start < end && is_number(end - start);
        ensure!(
            is_axis && (start > 0.0 || !self.log),
            "there is no x axis from {start} to {end}"
        );
        let mut svg = String::new();
        let size = (WIDTH, HEIGHT + self.legend_height());
        self.draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area())?;
        let words = escape(&self.words());
        let label = format!("<svg role=\"img\" aria-label=\"{words}\" ");
        let svg = svg.replacen("<svg ", &label, 1);
        Ok(svg.replace("</svg>", &format!("{DARK_MODE}\n</svg>")))
    }

    fn draw(&self, area: &Area<'_>) -> Result<()> {
        area.fill(&WHITE)?;
        let inner = area.margin(MARGIN, MARGIN, MARGIN, MARGIN);
        let (legend, chart) = inner.split_vertically(self.legend_height());
        self.draw_legend(&legend)?;
        let x = *self.xlim.start()..*self.xlim.end();
        if self.log {
            let marks = self.x.iter().copied().filter(|x| self.xlim.contains(x));
            self.draw_chart(&chart, x.log_scale().with_key_points(marks.collect()))?;
        } else {
            self.draw_chart(&chart, x)?;
        }
        area.present()?;
        Ok(())
    }

    /// A row for each name, above the plot, where it hides no curve.
    fn draw_legend(&self, area: &Area<'_>) -> Result<()> {
        let place = Pos::new(HPos::Left, VPos::Center);
        let font = ("sans-serif", 16).into_text_style(area).pos(place);
        let left = Y_LABELS as i32;
        for (i, name) in self.legend.iter().enumerate() {
            let y = (ROW * i as u32 + ROW / 2) as i32;
            let sample = [(left, y), (left + 16, y)];
            area.draw(&PathElement::new(sample, line(i)))?;
            area.draw_text(name, &font, (left + 22, y))?;
        }
        Ok(())
    }

    fn legend_height(&self) -> u32 {
        ROW * self.legend.len() as u32
    }

    fn draw_chart<X>(&self, area: &Area<'_>, x: X) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .x_label_area_size(40)
            .y_label_area_size(Y_LABELS)
            .build_cartesian_2d(x, self.ylim())?;
        let length = self.xlim.end() - self.xlim.start();
        // at whole epochs, if there are some
        let epochs = length.min(10.0) as usize;
        let marks = if epochs == 0 { 6 } else { epochs + 1 };
        chart
            .configure_mesh()
            .x_desc(&self.xlabel)
            .y_desc(&self.ylabel)
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .x_labels(marks)
            .y_labels(6)
            .max_light_lines(0)
            .label_style(("sans-serif", 15))
            .draw()?;
        // points that touch would hide the line
        let points_touch = self.x.len() > 60;
        for i in 0..self.y.len() {
            for piece in self.pieces(i) {
                if !points_touch {
                    chart.draw_series(piece.iter().map(|at| Circle::new(*at, 3, line(i))))?;
                }
                chart.draw_series([PathElement::new(piece, line(i))])?;
            }
        }
        Ok(())
    }

    /// Curve `i` between its gaps.
    fn pieces(&self, i: usize) -> Vec<Vec<(f64, f64)>> {
        let values = self.y[i].iter().copied();
        let points: Vec<(f64, f64)> = self.x.iter().copied().zip(values).collect();
        points
            .split(|(x, y)| !self.xlim.contains(x) || !is_number(*y))
            .filter(|piece| !piece.is_empty())
            .map(<[_]>::to_vec)
            .collect()
    }

    /// From the lowest to the highest value, with a little room around.
    fn ylim(&self) -> Range<f64> {
        let values = self.y.iter().flatten().copied();
        let (low, high) = lowest_and_highest(values.filter(|y| is_number(*y)));
        if low > high {
            return 0.0..1.0;
        }
        let length = if low < high { high - low } else { 1.0 };
        low - 0.08 * length..high + 0.08 * length
    }

    /// The text for screen readers: each curve with its first and its last value.
    fn words(&self) -> String {
        let point = |(x, y): (&f64, &f64)| format!("{y:.3} at {}", number(x));
        let mut curves = Vec::new();
        for (name, ys) in self.legend.iter().zip(&self.y) {
            let mut points = self.x.iter().zip(ys);
            let ends = points.next().into_iter().chain(points.next_back());
            let values: Vec<String> = ends.map(point).collect();
            curves.push(format!("{name} by {}: {}", self.xlabel, values.join(", ")));
        }
        match &*self.ylabel {
            "" => curves.join("; "),
            ylabel => format!("{ylabel}: {}", curves.join("; ")),
        }
    }

    /// Curve `i` as text of at most `width` columns, or `None` if there is nothing to see: fewer than two points, a
    /// straight line, or a value that is NaN or infinite.
    pub fn text(&self, i: usize, width: usize) -> Option<String> {
        const LABELS: usize = 12; // columns that the axis takes
        const ROWS: u32 = 8;
        let ys = &self.y[i];
        if ys.len() < 2 || !ys.iter().all(|y| is_number(*y)) {
            return None;
        }
        let columns = width.saturating_sub(LABELS).clamp(2, 60);
        let height = |column: usize| {
            let at = ((ys.len() - 1) * column) as f64 / (columns - 1) as f64;
            let before = ys[at.floor() as usize];
            before + (ys[at.ceil() as usize] - before) * at.fract()
        };
        let heights: Vec<f64> = (0..columns).map(height).collect();
        let (low, high) = lowest_and_highest(heights.iter().copied());
        let length = high - low;
        if length <= 1e-8 * high.abs().max(low.abs()).max(1.0) {
            return None;
        }
        let step = length / f64::from(ROWS);
        // enough of them to tell the labels apart
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let labels: Vec<String> = (0..=ROWS)
            .map(|row| format!("{:.digits$}", high - f64::from(row) * step))
            .collect();
        let wide = labels.iter().map(String::len).max()?;
        // its own labels may be alike, so only the curve behind them is used
        let rows = heights.iter().map(|y| (y - low) / length * f64::from(ROWS));
        let config = rasciigraph::Config::default().with_height(ROWS);
        let plot = rasciigraph::plot(rows.collect(), config);
        let mut text = format!("{} by {}\n", self.legend[i], self.xlabel);
        for (line, label) in plot.lines().zip(&labels) {
            let axis = line.find(['┤', '┼']).unwrap_or(line.len());
            text += &format!(" {label:>wide$} {}\n", line[axis..].trim_end());
        }
        let from = number(self.x.first()?);
        let to = number(self.x.last()?);
        let between = columns.saturating_sub(from.len());
        Some(text + &format!("{:wide$}  {from}{to:>between$}", ""))
    }
}

/// A value that can be drawn: plotters knows no axis for NaN, for infinity, or for the largest of f64.
fn is_number(value: f64) -> bool {
    (value as f32).is_finite()
}

fn lowest_and_highest(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// A number as plotters writes it: with no more digits than it needs, ten at most.
fn number(x: &f64) -> String {
    pretty_print_float(*x, true)
}

fn line(i: usize) -> ShapeStyle {
    let [_, red, green, blue] = COLORS[i % COLORS.len()].to_be_bytes();
    RGBColor(red, green, blue).stroke_width(2)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use anyhow::Context;

    use super::*;

    /// The numbers of an attribute in all circles: the points.
    fn points(svg: &str, attribute: &str) -> Vec<f64> {
        let number = |circle: &str| {
            let (_, after) = circle.split_once(attribute)?;
            after.split('"').nth(1)?.parse().ok()
        };
        svg.split("<circle ").skip(1).filter_map(number).collect()
    }

    fn has_text(svg: &str, text: &str) -> bool {
        svg.lines().any(|line| line.trim() == text)
    }

    #[test]
    fn as_many_values_as_curves() {
        let mut animator = Animator::new("epoch", &["loss", "acc"], (1.0, 2.0));
        assert!(animator.add(1.0, &[0.5]).is_err());
    }

    #[test]
    fn the_picture_says_in_words_what_it_shows() -> Result<()> {
        let mut animator = Animator::new("epoch", &["loss", "acc < 1"], (1.0, 10.0));
        animator.add(1.0, &[2.5, 0.1])?;
        animator.add(2.0, &[1.25, 0.75])?;
        let label = "role=\"img\" aria-label=\"loss by epoch: 2.500 at 1, 1.250 at 2; \
                     acc &lt; 1 by epoch: 0.100 at 1, 0.750 at 2\"";
        let svg = animator.svg()?;
        assert!(svg.contains(label), "{svg}");
        Ok(())
    }

    #[test]
    fn epochs_are_whole_numbers() -> Result<()> {
        for (last, marks) in [(1.0, "0 1 2"), (3.0, "1 2 3"), (8.0, "1 2 3 4 5 6 7 8")] {
            let mut animator = Animator::new("epoch", &["loss"], (1.0, last));
            animator.add(1.0, &[0.3])?;
            let svg = animator.svg()?;
            assert!(marks.split(' ').all(|mark| has_text(&svg, mark)), "{svg}");
            assert!(!has_text(&svg, "1.5"), "{svg}");
        }
        Ok(())
    }

    /// Its marks are at the points, as far from each other as these are factors.
    #[test]
    fn an_axis_can_be_logarithmic() -> Result<()> {
        let rates = Animator::new("rate", &["LeNet"], (0.1, 0.8));
        let mut rates = rates.ylabel("accuracy").xscale_log();
        for x in [0.1, 0.2, 0.8] {
            rates.add(x, &[x])?;
        }
        let svg = rates.svg()?;
        for text in ["0.1", "0.2", "0.8", "accuracy"] {
            assert!(has_text(&svg, text), "{svg}");
        }
        let x = points(&svg, "cx");
        let steps = [x[1] - x[0], x[2] - x[1]];
        assert!((steps[1] - 2.0 * steps[0]).abs() <= 2.0, "{x:?}");
        Ok(())
    }

    #[test]
    fn a_curve_has_gaps() -> Result<()> {
        let mut animator = Animator::new("x", &["y"], (1.0, 8.0));
        for (x, y) in [
            (1.0, 1.0),
            (2.0, f64::NAN),
            (3.0, 2.0),
            (4.0, 3.0),
            (5.0, f64::INFINITY),
            (6.0, f64::MAX),
            (9.0, 4.0),
            (f64::NAN, 4.0),
        ] {
            animator.add(x, &[y])?;
        }
        let svg = animator.svg()?;
        assert_eq!(points(&svg, "cx").len(), 3, "{svg}");
        Ok(())
    }

    #[test]
    fn an_axis_has_two_ends() {
        for xlim in [(f64::NAN, 1.0), (0.0, f64::INFINITY), (3.0, 1.0)] {
            assert!(Animator::new("x", &["y"], xlim).svg().is_err(), "{xlim:?}");
        }
        let rates = Animator::new("rate", &["y"], (0.0, 1.0)).xscale_log();
        assert!(rates.svg().is_err());
    }

    #[test]
    fn the_legend_hides_no_curve() -> Result<()> {
        let mut animator = Animator::new("step", &["a name"; 5], (1.0, 2.0));
        animator.add(1.0, &[1.0; 5])?;
        animator.add(2.0, &[2.0; 5])?;
        let heights = points(&animator.svg()?, "cy");
        let legend = f64::from(MARGIN + animator.legend_height());
        assert!(heights.iter().all(|y| *y > legend), "{heights:?}");
        Ok(())
    }

    #[test]
    fn the_text_fits_and_its_labels_differ() -> Result<()> {
        let mut animator = Animator::new("epoch", &["test acc"], (1.0, 10.0));
        for (i, y) in [0.096, 0.1, 0.104, 0.099].into_iter().enumerate() {
            assert_eq!(animator.text(0, 80).is_some(), i > 1);
            animator.add(i as f64, &[y])?;
        }
        for width in [40, 80] {
            let text = animator.text(0, width).context("a curve")?;
            assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
            let rows = text.lines().filter_map(|l| l.split_once(['┤', '┼']));
            let labels: HashSet<&str> = rows.map(|(label, _)| label).collect();
            assert_eq!(labels.len(), 9, "{text}");
        }
        animator.add(4.0, &[f64::NAN])?;
        assert_eq!(animator.text(0, 80), None);
        Ok(())
    }
}
