//! What the pictures of the reports are drawn with. They are written by hand, on white like the other
//! pictures of the project, so that they can be read on a dark page as well.

use std::fmt::Write;

const STYLE: &str = "text { font: 12px system-ui, sans-serif; fill: #24292f } \
    .title { font-size: 14px; font-weight: 600 } .soft { fill: #57606a; paint-order: stroke; stroke: #ffffff; stroke-width: 4px } .end { text-anchor: end }";

/// A picture with what it shows in words.
pub fn document((width, height): (f64, f64), label: &str, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{label}\">\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Words whose line stands at `y`; the classes say how they look.
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
