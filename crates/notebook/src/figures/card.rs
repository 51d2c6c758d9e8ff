//! The canvas of the drawn figures: a white card, so that they can be read on a dark page as well,
//! narrow, so that they can be read on a phone.

use std::mem;

use super::motion::Motion;
use svg::node::element::{Group, Path, Pattern, Rectangle, Style, Text};
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
pub const FAINT: &str = "#bcc5ce";
pub const EMPTY: &str = "#eaeef2";
/// Behind the part that a moving figure is at.
pub const LIT: &str = "#fff8c5";
/// The main point of a figure.
pub const MARK: &str = "#bc4c00";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } \
    .title { font-size: 16px; font-weight: 600 } .bold { font-weight: 600 } .large { font-size: 18px } .soft { fill: #57606a } .mark { fill: #bc4c00 } \
    .middle { text-anchor: middle } .end { text-anchor: end } .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 3px }";

/// A figure that is being drawn.
pub struct Card {
    body: Group,
    motion: Option<Motion>,
}

impl Card {
    pub fn new() -> Self {
        Self {
            body: Group::new(),
            motion: None,
        }
    }

    /// A figure with moving groups.
    pub fn moving(motion: Motion) -> Self {
        Self {
            body: Group::new(),
            motion: Some(motion),
        }
    }

    /// Things that are pale in a moving figure until this stage is over.
    pub fn shown(&mut self, stage: usize, draw: impl FnOnce(&mut Self)) {
        let group = self.gathered(draw);
        self.body
            .append(group.set("class", format!("shown-{stage}")));
    }

    /// Things that a moving figure has in this stage alone; a still picture does not have them.
    pub fn lit(&mut self, stage: usize, draw: impl FnOnce(&mut Self)) {
        if self.motion.is_some() {
            let group = self.gathered(draw);
            self.body
                .append(group.set("class", format!("lit lit-{stage}")));
        }
    }

    /// As [`Card::lit`]; they move by `(x, y)`.
    pub fn carried(&mut self, stage: usize, (x, y): Pair, draw: impl FnOnce(&mut Self)) {
        if self.motion.is_some() {
            let by = format!("--x: {}px; --y: {}px", short(x), short(y));
            let group = self.gathered(draw).set("style", by);
            let class = format!("carried carried-{stage}");
            self.body.append(group.set("class", class));
        }
    }

    fn gathered(&mut self, draw: impl FnOnce(&mut Self)) -> Group {
        let outer = mem::replace(&mut self.body, Group::new());
        draw(self);
        mem::replace(&mut self.body, outer)
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

    /// A box that is split: each of two devices has a half of it.
    pub fn halves(&mut self, at: Pair, size: Pair, words: &str) {
        let half = (size.0 / 2.0, size.1);
        self.device(at, half, 0, "");
        self.device((at.0 + half.0, at.1), half, 1, "");
        let middle = (at.0 + half.0, at.1 + size.1 / 2.0 + 5.0);
        self.text(middle, "middle halo", words);
    }

    /// A box with the sum over two devices: striped in the colors of both.
    pub fn sum(&mut self, at: Pair, size: Pair, words: &str) {
        self.tile(at, size, "url(#sum)");
        self.frame(at, size, INK);
        let middle = (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 5.0);
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
        self.finish_wide((WIDTH, height), label)
    }

    /// As [`Card::finish`], in a size of its own.
    pub fn finish_wide(self, (width, height): Pair, label: &str) -> String {
        let card = rectangle((0.0, 0.0), (width, height)).set("fill", "#ffffff");
        let motion = self.motion.map(|motion| motion.css()).unwrap_or_default();
        let document = Document::new()
            .set("viewBox", (0, 0, width, height))
            .set("width", width)
            .set("height", height)
            .set("role", "img")
            .set("aria-label", label)
            .add(Style::new(format!("{STYLE}{motion}")))
            .add(stripes())
            .add(card.set("rx", 8))
            .add(self.body);
        format!("{document}\n")
    }
}

/// What [`Card::sum`] is filled with.
fn stripes() -> Pattern {
    let stripe = |x, color| {
        rectangle((x, 0.0), (8.0, 16.0))
            .set("rx", 0)
            .set("fill", color)
    };
    Pattern::new()
        .set("id", "sum")
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .set("width", 16)
        .set("height", 16)
        .add(stripe(0.0, PALE[0]))
        .add(stripe(8.0, PALE[1]))
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
