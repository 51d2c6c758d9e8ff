//! Curves that grow with the run: an SVG file, and the last state in the terminal.

use std::ops::Range;

use anyhow::{Result, ensure};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
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
    xlim: Range<f64>,
    x: Vec<f64>,
    y: Vec<Vec<f64>>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const WIDTH: u32 = 560;
/// With a legend of one row.
const HEIGHT: u32 = 360;
const MARGIN: u32 = 16;
/// What the labels of the y axis take at least.
const Y_LABELS: u32 = 56;
/// A row of the legend.
const ROW: u32 = 22;
/// The piece of a curve before its name, and what a letter of the name takes.
const SAMPLE: u32 = 16;
const LETTER: u32 = 8;
/// Between such a piece and its name.
const GAP: u32 = 6;
/// Matplotlib's ten colours.
const COLORS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(255, 127, 14),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// A value beyond this is as one that is infinite: the length of an axis has to be a number.
const LARGEST: f64 = 1e307;

impl Animator {
    /// One curve for each name in `legend`, over `xlim`. What lies outside of `xlim` is not drawn: there a line ends at the
    /// edge. It has a gap at NaN and infinity.
    pub fn new(xlabel: &str, legend: &[&str], xlim: (f64, f64)) -> Self {
        Self {
            xlabel: xlabel.to_owned(),
            ylabel: String::new(),
            log: false,
            legend: legend.iter().map(|&l| l.to_owned()).collect(),
            xlim: xlim.0..xlim.1,
            x: Vec::new(),
            y: vec![Vec::new(); legend.len()],
        }
    }

    /// Labels the y axis, the book's `ylabel`.
    pub fn ylabel(mut self, ylabel: &str) -> Self {
        self.ylabel = ylabel.to_owned();
        self
    }

    /// Makes the x axis logarithmic, the book's `xscale='log'`, with a mark at the x of each point. It has no place for an x
    /// of 0 or below; if `xlim` has one, it ends at the points.
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
        // more rows of the legend take nothing from the plot
        let height = HEIGHT + self.legend_height() - ROW;
        let picture = SVGBackend::with_string(&mut svg, (WIDTH, height));
        self.draw(picture.into_drawing_area())?;
        let words = escape(&self.words());
        let label = format!("<svg role=\"img\" aria-label=\"{words}\" ");
        let svg = svg.replacen("<svg ", &label, 1);
        Ok(svg.replace("</svg>", &format!("{DARK_MODE}\n</svg>")))
    }

    fn draw(&self, area: Area<'_>) -> Result<()> {
        area.fill(&WHITE)?;
        let axis = self.xlim();
        if self.log {
            let all = self.x.iter().copied();
            let marks: Vec<f64> = all.filter(|x| self.is_on(*x, &axis)).collect();
            let x = axis.clone().log_scale().with_key_points(marks);
            return self.plot(area, x, &axis, 0, short);
        }
        let (marks, digits) = marks(&axis);
        let mark = |x: f64| label(x, digits, &axis);
        self.plot(area, axis.clone(), &axis, marks, mark)
    }

    /// Where a value of x stands on its axis, as a number that grows along it; none where it has no place.
    fn place(&self, x: f64) -> Option<f64> {
        let place = if self.log { x.ln() } else { x };
        Some(place).filter(|place| place.is_finite() && x.abs() <= LARGEST)
    }

    fn is_on(&self, x: f64, axis: &Range<f64>) -> bool {
        self.place(x).is_some() && x >= axis.start && x <= axis.end
    }

    /// What is drawn of curve `i`: its points as circles of a radius, if that is not 0, and its lines.
    fn curve<'a>(
        &self,
        i: usize,
        axis: &Range<f64>,
        style: ShapeStyle,
        radius: i32,
    ) -> Vec<DynElement<'static, SVGBackend<'a>, (f64, f64)>> {
        let mut drawn = Vec::new();
        if radius > 0 {
            let points = self.points(i, axis).into_iter();
            drawn.extend(points.map(|at| Circle::new(at, radius, style).into_dyn()));
        }
        let pieces = self.pieces(i, axis).into_iter();
        drawn.extend(pieces.map(|piece| PathElement::new(piece, style).into_dyn()));
        drawn
    }

    /// The points of curve `i` that are on the axis.
    fn points(&self, i: usize, axis: &Range<f64>) -> Vec<(f64, f64)> {
        let points = self.x.iter().copied().zip(self.y[i].iter().copied());
        points
            .filter(|(x, y)| self.is_on(*x, axis) && y.abs() <= LARGEST)
            .collect()
    }

    /// Curve `i` in pieces: its points from left to right, cut off at the ends of the axis. Where a point has no place, a
    /// piece ends.
    fn pieces(&self, i: usize, axis: &Range<f64>) -> Vec<Vec<(f64, f64)>> {
        let points = self.x.iter().zip(&self.y[i]);
        let points: Vec<Option<(f64, f64)>> = points
            .map(|(x, y)| {
                let is_there = self.place(*x).is_some() && y.abs() <= LARGEST;
                is_there.then_some((*x, *y))
            })
            .collect();
        let mut pieces: Vec<Vec<(f64, f64)>> = Vec::new();
        for pair in points.windows(2) {
            let Some((a, b)) = pair[0].zip(pair[1]) else {
                continue;
            };
            let Some([from, to]) = self.cut(a, b, axis) else {
                continue;
            };
            match pieces.last_mut() {
                Some(piece) if piece.last() == Some(&from) => piece.push(to),
                _ => pieces.push(vec![from, to]),
            }
        }
        pieces
    }

    /// The part of a line that is on the axis; on a logarithmic one the line is straight in the picture.
    fn cut(&self, a: (f64, f64), b: (f64, f64), axis: &Range<f64>) -> Option<[(f64, f64); 2]> {
        if a.0.max(b.0) < axis.start || a.0.min(b.0) > axis.end {
            return None;
        }
        let place = |x: f64| self.place(x).unwrap_or_default();
        let end = |p: (f64, f64)| {
            let x = p.0.clamp(axis.start, axis.end);
            if x == p.0 {
                return p;
            }
            let part = (place(x) - place(a.0)) / (place(b.0) - place(a.0));
            (x, a.1 * (1.0 - part) + b.1 * part)
        };
        Some([end(a), end(b)])
    }

    /// Draws the curves over an axis `x` with at most so many marks.
    fn plot<X>(
        &self,
        area: Area<'_>,
        x: X,
        axis: &Range<f64>,
        marks: usize,
        mark: impl Fn(f64) -> String,
    ) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let y = self.ylim(axis);
        let (y_axis, y_digits) = (y.clone(), digits(&y));
        let y_label = [y.start, y.end].map(|y| label(y, y_digits, &y_axis).len());
        let y_label = (14 + 8 * y_label[0].max(y_label[1]) as u32).max(Y_LABELS);
        let y_desc = if self.ylabel.is_empty() { 0 } else { 20 };
        let mut chart = ChartBuilder::on(&area)
            .margin(MARGIN)
            .margin_top(MARGIN + self.legend_height())
            .x_label_area_size(40)
            .y_label_area_size(y_label + y_desc)
            .build_cartesian_2d(x, y)?;
        let mut mesh = chart.configure_mesh();
        if !self.ylabel.is_empty() {
            mesh.y_desc(&self.ylabel);
        }
        mesh.x_desc(&self.xlabel)
            .y_label_formatter(&|y| label(*y, y_digits, &y_axis))
            .x_label_formatter(&|x| mark(*x))
            .x_labels(marks)
            .y_labels(6)
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 16))
            .bold_line_style(BLACK.mix(0.12))
            .light_line_style(WHITE)
            .draw()?;
        // points that touch would hide the line, and a thick line its own turns
        let point = if self.x.len() > 60 { 0 } else { 3 };
        let width = if self.x.len() > 500 { 1 } else { 2 };
        for i in 0..self.y.len() {
            let style = color(i).stroke_width(width);
            chart.draw_series(self.curve(i, axis, style, point))?;
        }
        self.draw_legend(&area, width)?;
        area.present()?;
        Ok(())
    }

    /// Each name behind a piece of its curve.
    fn draw_legend(&self, area: &Area<'_>, width: u32) -> Result<()> {
        let place = Pos::new(HPos::Left, VPos::Center);
        let font = ("sans-serif", 16).into_text_style(area).pos(place);
        for (i, (x, y)) in self.legend_places().into_iter().enumerate() {
            let at = |right: u32| ((x + right) as i32, y as i32);
            let style = color(i).stroke_width(width);
            area.draw(&PathElement::new([at(0), at(SAMPLE)], style))?;
            area.draw_text(&self.legend[i], &font, at(SAMPLE + GAP))?;
        }
        Ok(())
    }

    /// Where the legend's names are: above the plot, where they hide no curve, in as many rows as they need.
    fn legend_places(&self) -> Vec<(u32, u32)> {
        let left = MARGIN + Y_LABELS;
        let (mut x, mut y) = (left, MARGIN + ROW / 2);
        let mut places = Vec::new();
        for name in &self.legend {
            let width = SAMPLE + GAP + LETTER * name.chars().count() as u32;
            if x > left && x + width > WIDTH - MARGIN {
                (x, y) = (left, y + ROW);
            }
            places.push((x, y));
            x += width + 2 * LETTER;
        }
        places
    }

    fn legend_height(&self) -> u32 {
        let last = self.legend_places().pop();
        last.map_or(ROW, |(_, y)| y + ROW / 2 - MARGIN)
    }

    /// The axis has a length, even where there is one epoch only: that is its middle. Where `xlim` is no axis, the points
    /// make one.
    fn xlim(&self) -> Range<f64> {
        let (mut left, mut right) = (self.xlim.start, self.xlim.end);
        if self.place(left).is_none() || self.place(right).is_none() {
            let places = || self.x.iter().copied().filter(|x| self.place(*x).is_some());
            left = places().fold(f64::INFINITY, f64::min);
            right = places().fold(f64::NEG_INFINITY, f64::max);
            if left > right {
                (left, right) = (1.0, 10.0);
            }
        }
        if right > left {
            left..right
        } else if self.log {
            left / 2.0..left * 2.0
        } else {
            left - 1.0..left + 1.0
        }
    }

    /// What the picture shows: each curve with its first and its last value.
    fn words(&self) -> String {
        let value = |y: f64| {
            if y == 0.0 || (1e-3..1e6).contains(&y.abs()) || !y.is_finite() {
                format!("{y:.3}")
            } else {
                format!("{y:.3e}")
            }
        };
        let point = |y: &f64, x: &f64| format!("{} at {}", value(*y), short(*x));
        let ends = |ys: &[f64]| match (ys, &self.x[..]) {
            ([y0, .., y1], [x0, .., x1]) => format!(": {}, {}", point(y0, x0), point(y1, x1)),
            ([y], [x]) => format!(": {}", point(y, x)),
            _ => String::new(),
        };
        let curves = self
            .legend
            .iter()
            .zip(&self.y)
            .map(|(name, ys)| format!("{name} by {}{}", self.xlabel, ends(ys)))
            .collect::<Vec<_>>()
            .join("; ");
        match &*self.ylabel {
            "" => curves,
            ylabel => format!("{ylabel}: {curves}"),
        }
    }

    /// From the lowest to the highest value that is drawn, with a little room around.
    fn ylim(&self, axis: &Range<f64>) -> Range<f64> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for i in 0..self.y.len() {
            let pieces = self.pieces(i, axis).into_iter().flatten();
            for (_, y) in self.points(i, axis).into_iter().chain(pieces) {
                (low, high) = (low.min(y), high.max(y));
            }
        }
        if low > high {
            return 0.0..1.0;
        }
        // of small values the room is small too
        let least = match low.abs().max(high.abs()) {
            0.0 => 0.01,
            largest => largest.min(0.01).max(largest * 1e-9),
        };
        let room = ((high - low) * 0.08).max(least);
        low - room..high + room
    }

    /// Curve `i` as text of at most `width` columns, or `None` where there is nothing to see: fewer than two
    /// points, or a straight line.
    pub fn text(&self, i: usize, width: usize) -> Option<String> {
        const LABELS: usize = 12; // columns that the axis takes
        const ROWS: u32 = 8;
        let ys = &self.y[i];
        let low = ys.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ys.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_straight = high - low <= 1e-8 * high.abs().max(low.abs());
        if ys.len() < 2 || is_straight || ys.iter().any(|y| y.is_nan() || y.abs() > LARGEST) {
            return None;
        }
        let columns = width.saturating_sub(LABELS).clamp(2, 60);
        // the library rounds to what an integer holds, so it gets the rows that the values are in
        let rows = ys
            .iter()
            .map(|y| (y - low) / (high - low) * f64::from(ROWS));
        let config = rasciigraph::Config::default()
            .with_height(ROWS)
            .with_width(columns as u32);
        let plot = rasciigraph::plot(rows.collect(), config);
        let step = (high - low) / f64::from(ROWS);
        let axis = low..high;
        let digits = digits_apart(step, &axis);
        let labels: Vec<String> = (0..=ROWS)
            .map(|row| label(high - f64::from(row) * step, digits, &axis))
            .collect();
        let wide = labels.iter().map(String::len).max()?;
        let rows = plot.lines().zip(&labels).map(|(line, label)| {
            let begin = line.find(['┤', '┼']).unwrap_or(line.len());
            format!(" {label:>wide$} {}", line[begin..].trim_end())
        });
        let plot: Vec<String> = rows.collect();
        let indent = wide + 2;
        let (from, to) = (short(self.x[0]), short(self.x[ys.len() - 1]));
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
    if whole && exponent(axis).is_none() {
        (length.min(10.0) as usize + 1, 0)
    } else {
        (6, digits(axis))
    }
}

/// A number with three digits after the point, or four that count.
fn short(x: f64) -> String {
    let rounded = (x * 1e3).round() / 1e3;
    let is_near = (rounded - x).abs() <= 1e-3 * x.abs();
    if x == 0.0 || is_near && x.abs() < 1e6 {
        return rounded.to_string();
    }
    let rounded: f64 = format!("{x:.3e}").parse().unwrap_or(x);
    if (1e-4..1e6).contains(&x.abs()) {
        rounded.to_string()
    } else {
        format!("{rounded:e}")
    }
}

/// How many digits after the point tell the marks of an axis apart.
fn digits(axis: &Range<f64>) -> usize {
    digits_apart((axis.end - axis.start) / 10.0, axis)
}

/// How many digits after the point show a `step`; before an exponent, where [`label`] writes one.
fn digits_apart(step: f64, axis: &Range<f64>) -> usize {
    let unit = match exponent(axis) {
        Some(exponent) => step.log10() - f64::from(exponent),
        None => step.log10(),
    };
    (-unit.floor()).clamp(0.0, 16.0) as usize
}

/// The exponent of the largest value of an axis, if it is too large or too small to be written without one.
fn exponent(axis: &Range<f64>) -> Option<i32> {
    let largest = axis.start.abs().max(axis.end.abs());
    let is_plain = largest == 0.0 || (1e-4..1e6).contains(&largest);
    (!is_plain).then(|| largest.log10().floor() as i32)
}

/// A value of an axis with so many digits after the point.
fn label(value: f64, digits: usize, axis: &Range<f64>) -> String {
    if exponent(axis).is_none() {
        let value = if value == 0.0 { 0.0 } else { value }; // not -0
        format!("{value:.digits$}")
    } else if value == 0.0 {
        "0".to_owned()
    } else {
        format!("{value:.digits$e}")
    }
}

/// The colour of curve `i`: no two are alike.
fn color(i: usize) -> RGBColor {
    COLORS.get(i).copied().unwrap_or_else(|| {
        let turn = (i as f64 * 0.618).fract();
        let (r, g, b) = HSLColor(turn, 0.75, 0.3).to_backend_color().rgb;
        RGBColor(r, g, b)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

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
        let mut animator = Animator::new("rate", &["LeNet"], (0.1, 0.8))
            .ylabel("accuracy")
            .xscale_log();
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

    /// The numbers of an attribute in all elements of a kind.
    fn numbers(svg: &str, kind: &str, attribute: &str) -> Vec<f64> {
        let elements = svg.split(kind).skip(1);
        let values = elements.filter_map(|element| {
            let (_, rest) = element.split_once(&format!(" {attribute}=\""))?;
            rest.split('"').next()?.parse().ok()
        });
        values.collect()
    }

    /// The points of all curves, each in as many pieces as it has.
    fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let lines = svg
            .split("<polyline")
            .skip(1)
            .filter(|line| line.contains("stroke=\"#1F77B4\""));
        let points = lines.map(|line| {
            let points = line
                .split("points=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .split_whitespace();
            let point = points.map(|point| {
                let (x, y) = point.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            });
            point.collect::<Vec<(f64, f64)>>()
        });
        // the legend's line has two points beside each other
        points
            .filter(|line| line.len() > 2 || line[1].0 - line[0].0 > 17.0)
            .collect()
    }

    #[test]
    fn what_is_beyond_the_axis_is_cut_off() -> Result<()> {
        let mut animator = Animator::new("x", &["y"], (1.0, 4.0));
        for (x, y) in [(-3.0, 0.0), (2.0, 5.0), (3.0, 6.0), (9.0, 0.0)] {
            animator.add(x, &[y])?;
        }
        let svg = animator.svg()?;
        let [line] = &lines(&svg)[..] else {
            anyhow::bail!("{svg}")
        };
        assert_eq!(line.len(), 4);
        let (left, right) = (line[0].0, line[3].0);
        assert_eq!((left, right), (56.0 + 16.0, 560.0 - 16.0 - 1.0));
        // on the way from 0 to 5 it is 4, and from 6 to 0 it is 5
        let height = |y: f64| (line[1].1 - y) / (line[1].1 - line[2].1);
        assert!((height(line[0].1) + 1.0).abs() < 0.02, "{line:?}");
        assert!(height(line[3].1).abs() < 0.02, "{line:?}");
        assert_eq!(numbers(&svg, "<circle", "cx"), [line[1].0, line[2].0]);
        Ok(())
    }

    #[test]
    fn a_line_has_a_gap_where_there_is_no_number() -> Result<()> {
        let mut animator = Animator::new("x", &["y"], (1.0, 6.0));
        for (x, y) in [
            (1.0, 1.0),
            (2.0, 2.0),
            (3.0, f64::NAN),
            (4.0, 2.0),
            (5.0, f64::INFINITY),
        ] {
            animator.add(x, &[y])?;
        }
        let svg = animator.svg()?;
        assert_eq!(lines(&svg).len(), 1, "from 1 to 2");
        assert_eq!(numbers(&svg, "<circle", "cx").len(), 3);
        Ok(())
    }

    #[test]
    fn a_logarithmic_axis_has_no_zero() -> Result<()> {
        let mut animator = Animator::new("rate", &["y"], (0.0, 0.1)).xscale_log();
        for (x, y) in [(0.0, 1.0), (1e-5, 2.0), (1e-3, 3.0), (0.1, 4.0)] {
            animator.add(x, &[y])?;
        }
        let svg = animator.svg()?;
        let labels: Vec<&str> = svg.lines().map(str::trim).collect();
        for label in ["1e-5", "0.001", "0.1"] {
            assert!(labels.contains(&label), "{label}");
        }
        assert!(!labels.contains(&"0"), "{svg}");
        assert_eq!(numbers(&svg, "<circle", "cx").len(), 3);
        Ok(())
    }

    #[test]
    fn numbers_of_any_size_have_labels_that_fit() -> Result<()> {
        for (low, high) in [
            (1e300, 1e300),
            (-1e308, 1e308),
            (1e-300, 2e-300),
            (1e-8, 1e-4),
            (0.0, 0.0),
            (0.5, 0.5 + 1e-12),
            (1e9, 1e9 + 1e-3),
            (-3e7, 2.0),
        ] {
            let mut animator = Animator::new("x", &["y"], (1.0, 2.0));
            animator.add(1.0, &[low])?;
            animator.add(2.0, &[high])?;
            let svg = animator.svg()?;
            // a label ends at its x, left of the axis
            let texts = svg
                .split("<text ")
                .skip(1)
                .filter(|t| t.contains("text-anchor=\"end\""));
            for text in texts {
                let x: f64 = numbers(&format!("<text {text}"), "<text", "x")[0];
                let words = text
                    .split('>')
                    .nth(1)
                    .unwrap()
                    .trim()
                    .split('<')
                    .next()
                    .unwrap()
                    .trim();
                assert!(
                    8.0 * words.len() as f64 <= x,
                    "{low} to {high}: {words} at {x}"
                );
            }
            animator.text(0, 80);
        }
        // the picture is filled, however small the numbers are
        let mut animator = Animator::new("x", &["y"], (1.0, 2.0));
        animator.add(1.0, &[1e-4])?;
        animator.add(2.0, &[1e-8])?;
        let svg = animator.svg()?;
        let [line] = &lines(&svg)[..] else {
            anyhow::bail!("{svg}")
        };
        assert!(line[1].1 - line[0].1 > 80.0, "{line:?}");
        Ok(())
    }

    #[test]
    fn an_axis_is_made_where_there_is_none() -> Result<()> {
        for xlim in [
            (f64::NAN, 1.0),
            (0.0, f64::INFINITY),
            (-f64::MAX, f64::MAX),
            (3.0, 1.0),
        ] {
            for log in [false, true] {
                let mut animator = Animator::new("x", &["y"], xlim);
                animator.log = log;
                animator.svg()?;
                animator.add(2.0, &[1.0])?;
                animator.svg()?;
            }
        }
        Ok(())
    }

    /// Its rows are above the plot, which stays as high.
    #[test]
    fn the_legend_hides_no_curve() -> Result<()> {
        for (names, rows) in [(1, 1), (2, 1), (5, 3)] {
            let mut animator =
                Animator::new("step", &["twenty letters, or so"].repeat(names), (1.0, 2.0));
            animator.add(1.0, &vec![1.0; names])?;
            animator.add(2.0, &vec![2.0; names])?;
            let svg = animator.svg()?;
            let texts = svg
                .split("<text")
                .filter(|t| t.contains("text-anchor=\"start\""));
            let lowest = texts
                .map(|t| numbers(&format!("<text{t}"), "<text", "y")[0])
                .fold(0.0, f64::max);
            assert_eq!(lowest, f64::from(MARGIN + rows * ROW - ROW / 2));
            let points = numbers(&svg, "<circle", "cy");
            let [top, bottom] =
                [f64::min, f64::max].map(|f| points.iter().copied().reduce(f).unwrap());
            assert!(
                lowest + 10.0 < top && bottom - top > 220.0,
                "{lowest} {top} {bottom}"
            );
        }
        Ok(())
    }

    #[test]
    fn no_two_curves_have_the_same_colour() {
        let colors: std::collections::HashSet<_> = (0..30).map(|i| color(i).rgb()).collect();
        assert_eq!(colors.len(), 30);
    }

    #[test]
    fn the_labels_of_the_text_differ() -> Result<()> {
        let mut animator = Animator::new("epoch", &["test acc"], (1.0, 10.0));
        for (i, y) in [0.096, 0.1, 0.104, 0.099].into_iter().enumerate() {
            animator.add(i as f64, &[y])?;
        }
        let text = animator.text(0, 80).context("it is no straight line")?;
        let labels = text
            .lines()
            .filter_map(|line| line.trim().split([' ', '┤', '┼']).next());
        let labels: std::collections::BTreeSet<_> =
            labels.filter(|l| l.starts_with("0.")).collect();
        assert_eq!(labels.len(), 9, "{text}");
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
