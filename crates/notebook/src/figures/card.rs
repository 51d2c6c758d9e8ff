//! What the drawn figures are drawn with: a white card, so that they can be read on a dark page as well,
//! narrow, so that they can be read on a phone.

use svg::node::element::{Group, Path, Rectangle, Style, Text};
use svg::{Document, Node};

/// A point, or a width and a height.
pub type Pair = (f64, f64);

/// On a phone's 360 pixels the smallest words are 11 pixels high.
pub const WIDTH: f64 = 480.0;

/// One color for each device; together with the place or the number, never alone.
pub const DEVICES: [&str; 4] = ["#0969da", "#f0a30a", "#1a7f37", "#a475f9"];
pub const PALE: [&str; 4] = ["#cfe3fb", "#fdeac2", "#cdebd4", "#e9dcfe"];
pub const INK: &str = "#24292f";
pub const SOFT: &str = "#57606a";
pub const FAINT: &str = "#d0d7de";
pub const EMPTY: &str = "#eaeef2";
/// What a figure is about.
pub const MARK: &str = "#bc4c00";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } \
    .title { font-size: 16px; font-weight: 600 } .bold { font-weight: 600 } .soft { fill: #57606a } .mark { fill: #bc4c00 } \
    .middle { text-anchor: middle } .end { text-anchor: end } .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }";

/// A figure that is being drawn.
pub struct Card {
    body: Group,
}

impl Card {
    pub fn new() -> Self {
        Self { body: Group::new() }
    }

    /// Words on a line at `y`; the classes say how they look.
    pub fn text(&mut self, (x, y): Pair, class: &str, words: &str) {
        let text = Text::new(words).set("x", short(x)).set("y", short(y));
        self.body.append(text.set("class", class));
    }

    /// Lines of words below each other, in the middle of `x`.
    pub fn lines(&mut self, (x, y): Pair, class: &str, lines: &[&str]) {
        for (i, words) in lines.iter().enumerate() {
            let at = (x, y + 18.0 * i as f64);
            self.text(at, &format!("middle {class}"), words);
        }
    }

    /// A box of a device with words in it.
    pub fn device(&mut self, at: Pair, size: Pair, device: usize, words: &str) {
        self.tile(at, size, PALE[device]);
        self.frame(at, size, DEVICES[device]);
        let middle = (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 5.0);
        self.text(middle, "middle", words);
    }

    /// A box of two devices, each with a half of it.
    pub fn halves(&mut self, at: Pair, size: Pair, words: &str) {
        let half = (size.0 / 2.0, size.1);
        self.device(at, half, 0, "");
        self.device((at.0 + half.0, at.1), half, 1, "");
        let middle = (at.0 + half.0, at.1 + size.1 / 2.0 + 5.0);
        self.text(middle, "middle halo", words);
    }

    /// Which color is which device.
    pub fn legend(&mut self, at: Pair, devices: usize) {
        for (device, color) in DEVICES.iter().enumerate().take(devices) {
            let x = at.0 + 88.0 * device as f64;
            self.tile((x, at.1 - 11.0), (14.0, 12.0), color);
            self.text((x + 19.0, at.1), "", &format!("device {device}"));
        }
    }

    /// A box with its upper left corner.
    pub fn tile(&mut self, at: Pair, size: Pair, fill: &str) {
        self.body.append(rectangle(at, size).set("fill", fill));
    }

    /// A box that is only a line.
    pub fn frame(&mut self, at: Pair, size: Pair, stroke: &str) {
        let frame = rectangle(at, size).set("fill", "none");
        self.body
            .append(frame.set("stroke", stroke).set("stroke-width", 1.5));
    }

    pub fn line(&mut self, from: Pair, to: Pair, stroke: &str) {
        self.path(&[from, to], stroke);
    }

    /// A line through points that ends in a head.
    pub fn arrow(&mut self, points: &[Pair], stroke: &str) {
        let [.., (x0, y0), (x, y)] = points else {
            return;
        };
        let (dx, dy) = (x - x0, y - y0);
        let length = dx.hypot(dy).max(1.0);
        let (dx, dy) = (dx / length, dy / length);
        let (foot_x, foot_y) = (x - 7.0 * dx, y - 7.0 * dy);
        let mut line = points.to_vec();
        line[points.len() - 1] = (foot_x, foot_y);
        self.path(&line, stroke);
        let side = |s: f64| (foot_x - 3.5 * s * dy, foot_y + 3.5 * s * dx);
        let head = format!("{}Z", through(&[(*x, *y), side(1.0), side(-1.0)]));
        self.body
            .append(Path::new().set("d", head).set("fill", stroke));
    }

    fn path(&mut self, points: &[Pair], stroke: &str) {
        let path = Path::new().set("d", through(points)).set("fill", "none");
        self.body
            .append(path.set("stroke", stroke).set("stroke-width", 1.5));
    }

    /// The whole figure, so high, with what it shows in words.
    pub fn finish(self, height: f64, label: &str) -> String {
        let card = rectangle((0.0, 0.0), (WIDTH, height)).set("fill", "#ffffff");
        let document = Document::new()
            .set("viewBox", (0, 0, WIDTH, height))
            .set("width", WIDTH)
            .set("height", height)
            .set("role", "img")
            .set("aria-label", label)
            .add(Style::new(STYLE))
            .add(card.set("rx", 8))
            .add(self.body);
        format!("{document}\n")
    }
}

fn rectangle((x, y): Pair, (width, height): Pair) -> Rectangle {
    let size = Rectangle::new()
        .set("width", short(width))
        .set("height", short(height));
    size.set("x", short(x)).set("y", short(y)).set("rx", 2)
}

fn through(points: &[Pair]) -> String {
    let points = points
        .iter()
        .map(|(x, y)| format!("{} {}", short(*x), short(*y)));
    format!("M{}", points.collect::<Vec<_>>().join("L"))
}

/// To a tenth of a pixel.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
