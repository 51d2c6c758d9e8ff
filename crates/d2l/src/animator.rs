//! Curves that grow with the run: an SVG file, and the last state in the terminal.

use std::ops::Range;

use anyhow::{Result, ensure};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

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
    xlim: (f64, f64),
    x: Vec<f64>,
    y: Vec<Vec<f64>>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const SIZE: (u32, u32) = (560, 360);
const COLORS: [RGBColor; 4] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
];

impl Animator {
    /// One curve for each name in `legend`, over `xlim`.
    pub fn new(xlabel: &str, legend: &[&str], xlim: (f64, f64)) -> Self {
        Self {
            xlabel: xlabel.to_owned(),
            ylabel: String::new(),
            log: false,
            legend: legend.iter().map(|&l| l.to_owned()).collect(),
            xlim,
            x: Vec::new(),
            y: vec![Vec::new(); legend.len()],
        }
    }

    /// Labels the y axis, the book's `ylabel`.
    pub fn ylabel(mut self, ylabel: &str) -> Self {
        self.ylabel = ylabel.to_owned();
        self
    }

    /// Makes the x axis logarithmic, the book's `xscale='log'`, with a mark at the x of each point. `xlim` has to
    /// be above 0.
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
        let (values, curves) = (y.len(), self.y.len());
        ensure!(values == curves, "{values} values for {curves} curves");
        self.x.push(x);
        self.y.iter_mut().zip(y).for_each(|(ys, &y)| ys.push(y));
        Ok(())
    }

    /// Where the points of all curves are so far, the book's `animator.X[i]`.
    pub fn x(&self) -> &[f64] {
        &self.x
    }

    /// The points of curve `i` so far, the book's `animator.Y[i]`.
    pub fn y(&self, i: usize) -> &[f64] {
        &self.y[i]
    }

    /// The curves as an SVG picture, on white; on a dark page they are dark.
    ///
    /// # Errors
    /// If the drawing fails.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())?;
        let words = escape(&self.words());
        let label = format!("<svg role=\"img\" aria-label=\"{words}\" ");
        let svg = svg.replacen("<svg ", &label, 1);
        Ok(svg.replace("</svg>", &format!("{DARK_MODE}\n</svg>")))
    }

    fn draw(&self, area: Area<'_>) -> Result<()> {
        area.fill(&WHITE)?;
        let x = self.xlim();
        if self.log {
            let marks = self.x.clone();
            return self.plot(area, x.log_scale().with_key_points(marks), 0, short);
        }
        let (marks, digits) = marks(&x);
        self.plot(area, x, marks, |x| format!("{x:.digits$}"))
    }

    /// Draws the curves over an axis `x` with at most so many marks.
    fn plot<X>(
        &self,
        area: Area<'_>,
        x: X,
        marks: usize,
        mark: impl Fn(f64) -> String,
    ) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let y = self.ylim();
        let y_digits = digits(&y);
        let y_label = if self.ylabel.is_empty() { 56 } else { 76 };
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(y_label)
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        if !self.ylabel.is_empty() {
            mesh.y_desc(&self.ylabel);
        }
        mesh.x_desc(&self.xlabel)
            .y_label_formatter(&|y| format!("{y:.y_digits$}"))
            .x_label_formatter(&|x| mark(*x))
            .x_labels(marks)
            .y_labels(6)
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 16))
            .bold_line_style(BLACK.mix(0.12))
            .light_line_style(WHITE)
            .draw()?;
        // points that touch would hide the line
        let (width, point) = if self.x.len() > 60 { (1, 0) } else { (2, 3) };
        for (i, (ys, name)) in self.y.iter().zip(&self.legend).enumerate() {
            let color = COLORS[i % COLORS.len()];
            let points = self.x.iter().copied().zip(ys.iter().copied());
            let points = points.filter(|(_, y)| y.is_finite());
            let line = LineSeries::new(points, color.stroke_width(width)).point_size(point);
            chart
                .draw_series(line)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
        chart
            .configure_series_labels()
            .position(self.legend_position())
            .label_font(("sans-serif", 15))
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }

    /// The axis has a length, even where there is one epoch only: that is its middle.
    fn xlim(&self) -> Range<f64> {
        let (left, right) = self.xlim;
        match right > left {
            true => left..right,
            false => left - 1.0..left + 1.0,
        }
    }

    /// Below curves that rise, above those that fall.
    fn legend_position(&self) -> SeriesLabelPosition {
        let falls = |ys: &Vec<f64>| ys.last() < ys.first();
        match !self.x.is_empty() && self.y.iter().all(falls) {
            true => SeriesLabelPosition::UpperRight,
            false => SeriesLabelPosition::LowerRight,
        }
    }

    /// What the picture shows: each curve with its first and its last value.
    fn words(&self) -> String {
        let point = |y: &f64, x: &f64| format!("{y:.3} at {}", short(*x));
        let ends = |ys: &[f64]| match (ys, &self.x[..]) {
            ([y0, .., y1], [x0, .., x1]) => format!(": {}, {}", point(y0, x0), point(y1, x1)),
            ([y], [x]) => format!(": {}", point(y, x)),
            _ => String::new(),
        };
        let curves = self.legend.iter().zip(&self.y);
        let curves = curves.map(|(name, ys)| format!("{name} by {}{}", self.xlabel, ends(ys)));
        let curves = curves.collect::<Vec<_>>().join("; ");
        match &*self.ylabel {
            "" => curves,
            ylabel => format!("{ylabel}: {curves}"),
        }
    }

    /// From the lowest to the highest value, with a little room around; not-a-number is left out.
    fn ylim(&self) -> Range<f64> {
        let finite = || self.y.iter().flatten().copied().filter(|y| y.is_finite());
        let low = finite().fold(f64::INFINITY, f64::min);
        let high = finite().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return 0.0..1.0;
        }
        let room = ((high - low) * 0.08).max(0.01);
        low - room..high + room
    }

    /// Curve `i` as text of at most `width` columns, or `None` where there is nothing to see: fewer than two
    /// points, or a straight line.
    pub fn text(&self, i: usize, width: usize) -> Option<String> {
        const LABELS: usize = 12; // columns that the axis takes
        let ys = &self.y[i];
        if ys.iter().all(|y| *y == ys[0]) || ys.iter().any(|y| !y.is_finite()) {
            return None;
        }
        let columns = width.saturating_sub(LABELS).clamp(2, 60);
        let config = rasciigraph::Config::default()
            .with_height(8)
            .with_width(columns as u32);
        let plot = rasciigraph::plot(ys.clone(), config);
        let plot: Vec<&str> = plot.lines().map(str::trim_end).collect();
        let indent = plot[0].chars().position(|c| "┤┼".contains(c))?;
        let (from, to) = (self.x[0].to_string(), self.x[ys.len() - 1].to_string());
        let between = columns.saturating_sub(from.len());
        let axis = format!("{:indent$}{from}{to:>between$}", "");
        let (name, xlabel) = (&self.legend[i], &self.xlabel);
        Some(format!("{name} by {xlabel}\n{}\n{axis}", plot.join("\n")))
    }
}

/// How many marks the x axis has at most, and with how many digits: whole epochs, where there are several.
fn marks(axis: &Range<f64>) -> (usize, usize) {
    let length = axis.end - axis.start;
    let whole = axis.start.fract() == 0.0 && axis.end.fract() == 0.0 && length >= 2.0;
    match whole {
        true => (length.min(10.0) as usize + 1, 0),
        false => (6, digits(axis)),
    }
}

/// A number with three digits after the point at most.
fn short(x: f64) -> String {
    ((x * 1e3).round() / 1e3).to_string()
}

/// How many digits after the point tell the marks of an axis apart.
fn digits(axis: &Range<f64>) -> usize {
    (1.0 - (axis.end - axis.start).log10().floor()).clamp(0.0, 9.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_values_as_curves() {
        let mut animator = Animator::new("epoch", &["loss", "acc"], (1.0, 2.0));
        assert!(animator.add(1.0, &[0.5]).is_err());
    }

    #[test]
    fn text_keeps_within_a_narrow_terminal() -> Result<()> {
        let mut animator = Animator::new("epoch", &["test acc"], (1.0, 10.0));
        assert_eq!(animator.text(0, 80), None);
        animator.add(0.0, &[0.1])?;
        assert_eq!(animator.text(0, 80), None);
        for epoch in 1..=10 {
            animator.add(f64::from(epoch), &[0.1 * f64::from(epoch)])?;
        }
        for width in [40, 60, 80] {
            let text = animator.text(0, width).unwrap();
            let widest = text.lines().map(|l| l.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} columns of {width}:\n{text}");
        }
        Ok(())
    }

    #[test]
    fn the_axes_tell_their_marks_apart() {
        assert_eq!(marks(&(1.0..10.0)), (10, 0));
        assert_eq!(marks(&(0.0..10.0)), (11, 0));
        assert_eq!(marks(&(0.0..100.0)), (11, 0));
        assert_eq!(marks(&(0.0..1.0)), (6, 1));
        assert_eq!(marks(&(0.05..0.8)), (6, 2));
        assert_eq!(digits(&(2.301..2.304)), 4);
        assert_eq!(digits(&(0.0..300.0)), 0);
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

    /// The marks of a logarithmic axis are at the points, as far from each other as these are factors.
    #[test]
    fn an_axis_can_be_logarithmic() -> Result<()> {
        let animator = Animator::new("rate", &["LeNet"], (0.1, 0.8)).ylabel("accuracy");
        let mut animator = animator.xscale_log();
        for x in [0.1, 0.2, 0.8] {
            animator.add(x, &[x])?;
        }
        let svg = animator.svg()?;
        assert!(svg.contains("aria-label=\"accuracy: LeNet by rate: 0.100 at 0.1, 0.800 at 0.8\""));
        let lines: Vec<&str> = svg.lines().map(str::trim).collect();
        let x_of = |label: &str| {
            let at = lines.iter().position(|line| *line == label).unwrap();
            let x = lines[at - 1].split(" x=\"").nth(1).unwrap();
            x.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        let [a, b, c] = ["0.1", "0.2", "0.8"].map(x_of);
        assert!(((c - b) - 2.0 * (b - a)).abs() <= 2.0, "{a} {b} {c}");
        assert!(lines.contains(&"accuracy"));
        Ok(())
    }

    #[test]
    fn a_curve_of_one_point_or_of_no_number_can_be_drawn() -> Result<()> {
        let mut animator = Animator::new("epoch", &["loss"], (1.0, 1.0));
        animator.svg()?;
        animator.add(1.0, &[f64::NAN])?;
        animator.svg()?;
        Ok(())
    }
}
