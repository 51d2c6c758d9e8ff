//! README's picture: how many times as fast two devices are as one, in the book, here and in PyTorch.

use anyhow::{Context, Result};
use d2l::DARK_MODE;

use crate::book::Book;
use crate::report;

/// The file of the picture.
pub const FILE: &str = "img/speed-up.svg";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } .soft { fill: #57606a } \
    .bold { font-weight: 600 } .bar { fill: #0969da } .range { stroke: #24292f; stroke-width: 2; fill: none } \
    .whole { stroke: #8c959f; stroke-width: 1.5 }";

/// Titles, and how the names of the report's rows begin.
const MEASURED: [(&str, &str); 2] = [
    ("here", "ours, 2"),
    ("PyTorch DDP, eager", "PyTorch ddp, eager"),
];

const LEFT: f64 = 16.0;
/// The width of one device's speed.
const ONCE: f64 = 150.0;
/// Left edge of the numbers.
const NUMBERS: f64 = 368.0;
/// The first bar's title begins below `TOP`, and each next one lower by `HEIGHT`.
const TOP: usize = 40;
const HEIGHT: usize = 48;

/// A bar: the examples per second on two devices, divided by those on one.
struct SpeedUp {
    title: String,
    times: f64,
    /// The lowest and the highest of the rounds.
    range: Option<Range>,
}

struct Range {
    lowest: f64,
    highest: f64,
}

/// The picture.
///
/// # Errors
/// If the report is not there, or has no such figures.
pub fn svg(book: &Book) -> Result<String> {
    let mut bars = vec![SpeedUp {
        title: "the book: ResNet-18, 256 images on each GPU".to_owned(),
        times: 13.2 / 7.3, // seconds of an epoch
        range: None,
    }];
    for (title, name) in MEASURED {
        for network in ["ResNet-18", "LeNet"] {
            bars.push(on_two_devices(book, network, title, name)?);
        }
    }
    let mut drawn =
        format!("<text class=\"soft\" x=\"{NUMBERS}\" y=\"24\">median (all rounds)</text>\n");
    for whole in [1, 2] {
        let x = LEFT + ONCE * f64::from(whole);
        drawn += &format!(
            "<text class=\"soft\" x=\"{x}\" y=\"24\" text-anchor=\"middle\">{whole}×</text>\n"
        );
    }
    let mut words = Vec::new();
    for (i, bar) in bars.iter().enumerate() {
        drawn += &bar.svg(TOP + HEIGHT * i);
        words.push(format!("{} {}", bar.title, bar.words()));
    }
    let height = TOP + HEIGHT * bars.len() + 12;
    let words = words.join(", ");
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="560" height="{height}" viewBox="0 0 560 {height}" role="img" aria-label="Times as fast with two devices as with one: {words}">
<style>{STYLE}</style>
<rect class="card" fill="#ffffff" width="560" height="{height}" rx="8"/>
{drawn}{DARK_MODE}
</svg>
"##
    ))
}

impl SpeedUp {
    /// Its title, and below it the bar with its range and its number.
    fn svg(&self, top: usize) -> String {
        let head = top + 14;
        let y = top + 20;
        let title = &self.title;
        let width = ONCE * self.times;
        let mut drawn = format!(
            "<text class=\"bold\" x=\"{LEFT}\" y=\"{head}\">{title}</text>\n\
             <rect class=\"bar\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.0}\" height=\"16\" rx=\"2\"/>\n"
        );
        for whole in [1.0, 2.0] {
            let x = LEFT + ONCE * whole;
            let above = y - 3;
            let below = y + 19;
            drawn += &format!("<path class=\"whole\" d=\"M{x} {above} V{below}\"/>\n");
        }
        if let Some(Range { lowest, highest }) = self.range {
            let [low, high] = [lowest, highest].map(|times| LEFT + ONCE * times);
            let above = y + 3;
            let middle = y + 8;
            let below = y + 13;
            drawn += &format!(
                "<path class=\"range\" d=\"M{low:.1} {above} V{below} M{low:.1} {middle} H{high:.1} M{high:.1} {above} V{below}\"/>\n"
            );
        }
        let words = self.words();
        drawn += &format!(
            "<text class=\"soft\" x=\"{NUMBERS}\" y=\"{}\">{words}</text>\n",
            y + 13
        );
        drawn
    }

    fn words(&self) -> String {
        let Self { times, range, .. } = self;
        match range {
            Some(Range { lowest, highest }) => {
                format!("{times:.2}× ({lowest:.2} to {highest:.2})")
            }
            None => format!("{times:.2}×"),
        }
    }
}

/// Reads from the report the speed-up of two devices with the same minibatch of 256 images as one.
fn on_two_devices(book: &Book, network: &str, title: &str, name: &str) -> Result<SpeedUp> {
    let heading = format!("On devices of one core: {network}, batch 256");
    let what = || format!("cpu.md: {heading}: {name} on two devices");
    // name, devices, examples, ms, from – to, examples/sec, speed-up, lowest – highest
    let rows = report::whole_rows(book, "cpu", &heading, name)?;
    let on_two = rows.iter().find(|row| row[1..3] == ["2", "256"]);
    let row = on_two.with_context(what)?;
    let (lowest, highest) = row[7].split_once(" – ").with_context(what)?;
    Ok(SpeedUp {
        title: format!("{title}: {network}, 256 images"),
        times: row[6].parse().with_context(what)?,
        range: Some(Range {
            lowest: lowest.parse().with_context(what)?,
            highest: highest.parse().with_context(what)?,
        }),
    })
}
