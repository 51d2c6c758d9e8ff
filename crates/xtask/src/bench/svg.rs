//! What the pictures of the reports are drawn with. They are written by hand, on white like the other
//! pictures of the project, so that they can be read on a dark page as well.

use std::fmt::Write;

const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #24292f } \
    .title { font-size: 14px; font-weight: 600 } .soft { fill: #57606a; paint-order: stroke; stroke: #ffffff; stroke-width: 4px } .end { text-anchor: end } .middle { text-anchor: middle }";

/// A picture with what it shows in words.
pub fn document((width, height): (f64, f64), label: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{label}\">\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A line of text with its baseline at `y`; `class` selects its style.
pub fn text(body: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
    );
}

/// A bar with its upper left corner.
pub fn bar(body: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), color: &str) {
    let _ = writeln!(
        body,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{color}\"/>"
    );
}

/// A line through points; `look` is the rest of its attributes.
pub fn line(body: &mut String, points: &[(f64, f64)], look: &str) {
    let points: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1} {y:.1}"))
        .collect();
    let _ = writeln!(
        body,
        "<path d=\"M{}\" fill=\"none\" {look}/>",
        points.join("L")
    );
}

/// A dot with white around it.
pub fn dot(body: &mut String, (x, y): (f64, f64), color: &str) {
    let _ = writeln!(
        body,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{color}\" stroke=\"#ffffff\"/>"
    );
}

/// Two logarithmic axes.
pub struct LogLog {
    /// The left and the right end of the x axis in the picture.
    pub sides: (f64, f64),
    /// The same, as values.
    pub x: (f64, f64),
    /// The top and the foot of the y axis in the picture.
    pub heights: (f64, f64),
    /// The powers of ten there, that of the foot first.
    pub decades: (i32, i32),
}

impl LogLog {
    /// The powers of ten around all of `values`.
    pub fn decades(values: impl Iterator<Item = f64>) -> (i32, i32) {
        let (least, most) = values.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        (least.log10().floor() as i32, most.log10().ceil() as i32)
    }

    /// Where a point is in the picture.
    pub fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let ((left, right), (from, to)) = (self.sides, self.x);
        let ((top, foot), (first, last)) = (self.heights, self.decades);
        let across = (x / from).log2() / (to / from).log2();
        let up = (y.log10() - f64::from(first)) / f64::from(last - first);
        (
            left + across * (right - left),
            top + (1.0 - up) * (foot - top),
        )
    }

    /// A line and a label at each power of ten.
    pub fn lines(&self, body: &mut String, label: impl Fn(f64) -> String) {
        let (first, last) = self.decades;
        for value in (first..=last).map(|decade| 10f64.powi(decade)) {
            let (x, y) = self.at((self.x.0, value));
            line(body, &[(x, y), (self.sides.1, y)], "stroke=\"#d0d7de\"");
            text(body, (x - 8.0, y + 4.0), "end", &label(value));
        }
    }
}

/// The heights of labels, as near to `wanted` as they can be if no two are closer than `gap`: those that
/// are too close are moved apart to both sides.
pub fn apart(wanted: &[f64], gap: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // groups that touch: the sum of what its members want, as the height of the first, and their number
    let mut groups: Vec<(f64, usize)> = Vec::new();
    for label in &order {
        let mut group = (wanted[*label], 1);
        while let Some((sum, count)) = groups.pop_if(|(sum, count)| {
            let end = *sum / *count as f64 + gap * *count as f64;
            group.0 / (group.1 as f64) < end
        }) {
            let moved = gap * (count * group.1) as f64;
            group = (sum + group.0 - moved, count + group.1);
        }
        groups.push(group);
    }
    let mut heights = vec![0.0; wanted.len()];
    let mut labels = order.into_iter();
    for (sum, count) in groups {
        for (i, label) in labels.by_ref().take(count).enumerate() {
            heights[label] = sum / count as f64 + gap * i as f64;
        }
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equal_distances() {
        let axes = LogLog {
            sides: (100.0, 300.0),
            x: (1.0, 256.0),
            heights: (0.0, 90.0),
            decades: LogLog::decades([20.0, 5000.0].into_iter()),
        };
        assert_eq!(axes.decades, (1, 4));
        for (value, place) in [
            ((1.0, 10.0), (100.0, 90.0)),
            ((16.0, 100.0), (200.0, 60.0)),
            ((256.0, 10_000.0), (300.0, 0.0)),
        ] {
            let (x, y) = axes.at(value);
            assert!((x - place.0).hypot(y - place.1) < 1e-9, "{value:?}");
        }
    }

    #[test]
    fn labels_move_apart_and_no_further() {
        assert_eq!(apart(&[50.0, 10.0], 12.0), [50.0, 10.0]);
        assert_eq!(apart(&[20.0, 20.0], 12.0), [14.0, 26.0]);
        assert_eq!(
            apart(&[20.0, 100.0, 20.0, 20.0], 10.0),
            [10.0, 100.0, 20.0, 30.0]
        );
        // the pair in the middle pushes its neighbours away
        assert_eq!(
            apart(&[29.0, 30.0, 31.0, 45.0], 10.0),
            [18.75, 28.75, 38.75, 48.75]
        );
    }
}
