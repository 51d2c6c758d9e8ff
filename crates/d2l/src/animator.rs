//! Curves that grow with the run: an SVG file, and the last state in the terminal.

use anyhow::{Result, ensure};
use plotters::prelude::*;

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
    legend: Vec<String>,
    xlim: (f64, f64),
    x: Vec<f64>,
    y: Vec<Vec<f64>>,
}

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
            legend: legend.iter().map(|&l| l.to_owned()).collect(),
            xlim,
            x: Vec::new(),
            y: vec![Vec::new(); legend.len()],
        }
    }

    /// Adds one point to each curve.
    ///
    /// # Errors
    /// If there are not as many values as curves.
    pub fn add(&mut self, x: f64, y: &[f64]) -> Result<()> {
        ensure!(
            y.len() == self.y.len(),
            "{} values for {} curves",
            y.len(),
            self.y.len()
        );
        self.x.push(x);
        self.y.iter_mut().zip(y).for_each(|(ys, &y)| ys.push(y));
        Ok(())
    }

    /// The points of curve `i` so far, the book's `animator.Y[i]`.
    pub fn y(&self, i: usize) -> &[f64] {
        &self.y[i]
    }

    /// The curves as an SVG picture, on white, so that it can be read on a dark page as well. Its
    /// `aria-label` names them.
    ///
    /// # Errors
    /// If the drawing fails.
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())?;
        let label = format!("{} by {}", self.legend.join(", "), self.xlabel);
        let label = label
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&quot;");
        Ok(svg.replacen(
            "<svg ",
            &format!("<svg role=\"img\" aria-label=\"{label}\" "),
            1,
        ))
    }

    fn draw(&self, area: DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<()> {
        area.fill(&WHITE)?;
        let (low, high) = self.ylim();
        let (left, right) = (self.xlim.0, self.xlim.1.max(self.xlim.0 + 1.0));
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(left..right, low..high)?;
        chart
            .configure_mesh()
            .x_desc(&self.xlabel)
            .y_label_formatter(&|y| format!("{y:.2}"))
            .x_label_formatter(&|x| format!("{x:.0}"))
            .x_labels((right - left).min(9.0) as usize + 1)
            .light_line_style(WHITE)
            .draw()?;
        for (i, (ys, name)) in self.y.iter().zip(&self.legend).enumerate() {
            let color = COLORS[i % COLORS.len()];
            let points: Vec<(f64, f64)> = self.x.iter().copied().zip(ys.iter().copied()).collect();
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }

    /// From the lowest to the highest value, with a little room around; not-a-number is left out.
    fn ylim(&self) -> (f64, f64) {
        let finite = || self.y.iter().flatten().copied().filter(|y| y.is_finite());
        let low = finite().fold(f64::INFINITY, f64::min);
        let high = finite().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            return (0.0, 1.0);
        }
        let room = ((high - low) * 0.08).max(0.01);
        (low - room, high + room)
    }

    /// Curve `i` as text of at most `width` columns, or `None` where it has fewer than two
    /// points.
    pub fn text(&self, i: usize, width: usize) -> Option<String> {
        const LABELS: usize = 12; // columns that the axis takes
        let ys = &self.y[i];
        if ys.len() < 2 || ys.iter().any(|y| !y.is_finite()) {
            return None;
        }
        let columns = width.saturating_sub(LABELS).clamp(2, 60) as u32;
        let config = rasciigraph::Config::default()
            .with_height(8)
            .with_width(columns)
            .with_caption(format!("{} by {}", self.legend[i], self.xlabel));
        Some(rasciigraph::plot(ys.clone(), config))
    }
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
    fn the_picture_says_what_it_shows() -> Result<()> {
        let svg = Animator::new("epoch", &["loss", "\"a\" < b"], (1.0, 2.0)).svg()?;
        let label = r#"<svg role="img" aria-label="loss, &quot;a&quot; &lt; b by epoch" "#;
        assert!(svg.starts_with(label), "{svg}");
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
