//! The pictures of the all-reduce algorithms, drawn from the schedules that groups execute. They move, by CSS alone.
//! Where a reader asks for less motion, or a viewer knows no animation, they are complete and still.

use collective::cost::Link;
use collective::{Algorithm, Partial, Schedule, Sum};
use d2l::DARK_MODE;
use std::time::Duration;

/// Devices. The gradient of device i has the colour of the class `d` with its number.
const K: usize = 4;
const WIDTH: f64 = 480.0;
/// The rounds are named left of this, the devices stand in columns right of it.
const LEFT: f64 = 98.0;
const COLUMN: f64 = (WIDTH - 16.0 - LEFT) / K as f64;
/// Width and height of a device: its chunks side by side, in each a slot for every gradient.
const DEVICE: (f64, f64) = (78.0, 30.0);
/// Seconds that a round is shown.
const ROUND: f64 = 1.5;

const STYLE: &str = "\
text { font: 15px system-ui, sans-serif; fill: #24292f } .bold { font-weight: 600 }
.soft { fill: #57606a } .middle { text-anchor: middle } .card { fill: #ffffff }
.d0 { fill: #0969da } .d1 { fill: #d97706 } .d2 { fill: #1a7f37 } .d3 { fill: #a475f9 } .none { fill: #eaeef2 }
.old { opacity: 0.25 } .lit { fill: #fff8c5 } .lit, .moves { opacity: 0 }
.new, .path { fill: none; stroke: #24292f; stroke-width: 1.5 } .path { stroke: #cf222e; stroke-width: 3 }
.arrow { stroke: #8c959f; stroke-width: 1.5; marker-end: url(#tip) }
.arrow.path { stroke: #cf222e; stroke-width: 3; marker-end: url(#path-tip) } #tip { fill: #8c959f } #path-tip { fill: #cf222e }";

/// Which gradients are in each chunk of each device.
type Held = Vec<Vec<Partial>>;

/// The file of a picture.
pub fn file(algorithm: Algorithm) -> String {
    format!("img/{algorithm}.svg")
}

/// The picture of an algorithm among four devices.
pub fn svg(algorithm: Algorithm) -> String {
    let schedule = Schedule::new(algorithm, K);
    let rounds = schedule.rounds.len();
    let gap = if rounds > 4 { 33.0 } else { 52.0 };
    let mut body = legend(algorithm, &schedule);
    let mut y = 109.0;
    let held = schedule.held();
    body += &devices(&schedule, 0, &held[0], y);
    for number in 0..rounds {
        let below = y + DEVICE.1 + gap;
        body += &round(
            &schedule,
            number,
            &held[number],
            Band {
                top: y,
                bottom: below,
            },
        );
        y = below;
        body += &devices(&schedule, number + 1, &held[number + 1], y);
    }
    let busiest = schedule.rounds.iter().map(|sums| busiest(&schedule, sums));
    let all = of_n(busiest.sum());
    let foot = y + DEVICE.1;
    let words = "N: bytes of one gradient. Each round shows the bytes";
    body += &text(16.0, foot + 23.0, "soft", words);
    let words = format!("through its busiest link. All rounds: {all}.");
    body += &text(16.0, foot + 41.0, "soft", &words);
    let height = foot + 53.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="All-reduce among {K} devices, {algorithm}: {rounds} rounds, {all} bytes through the busiest link">
<style>
{STYLE}
{}
</style>
<defs>{}{}</defs>
<rect class="card" width="{WIDTH}" height="{height}" rx="8"/>
{body}{DARK_MODE}
</svg>
"##,
        motion(rounds),
        tip("tip", 8),
        tip("path-tip", 12),
    )
}

/// A round is lit, and its chunks move, in its turn: the delay of a class `r` with its number.
fn motion(rounds: usize) -> String {
    let seconds = ROUND * rounds as f64 + 1.0;
    let at = |share: f64| (100.0 * share * ROUND / seconds * 10.0).round() / 10.0;
    let [seen, go, come, end] = [0.1, 0.15, 0.75, 1.0].map(at);
    let mut css = format!(
        "@keyframes lit {{ 0%, {end}%, 100% {{ opacity: 0 }} {seen}%, {come}% {{ opacity: 1 }} }}
@keyframes moves {{ 0% {{ opacity: 0 }} {seen}%, {go}% {{ opacity: 1; transform: none }} \
{come}% {{ opacity: 1; transform: translate(var(--x), var(--y)) }} \
{end}%, 100% {{ opacity: 0; transform: translate(var(--x), var(--y)) }} }}
@media (prefers-reduced-motion: no-preference) {{
.lit {{ animation: lit {seconds}s linear infinite }} .moves {{ animation: moves {seconds}s linear infinite }}"
    );
    for round in 1..rounds {
        let delay = ROUND * round as f64;
        css += &format!(" .r{round} {{ animation-delay: {delay}s }}");
    }
    css + " }"
}

/// Title and legend above the devices.
fn legend(algorithm: Algorithm, schedule: &Schedule) -> String {
    let title = match algorithm {
        Algorithm::Star => "Star: device 0 sums, the others copy the sum",
        Algorithm::Owner => "Owner: a reduce-scatter, then an all-gather",
        Algorithm::Ring => "Ring: a reduce-scatter (1–3), an all-gather (4–6)",
        Algorithm::Tree => "Tree: pairs sum, then pairs of pairs, and back",
        Algorithm::Auto | Algorithm::Nccl => unreachable!("they have no schedule"),
    };
    let mut all = text(16.0, 30.0, "bold", title);
    all += &text(16.0, 53.0, "soft", "gradients of");
    for device in 0..K {
        let x = 118.0 + 40.0 * device as f64;
        let sample = Rect {
            x,
            y: 42.0,
            width: 14.0,
            height: 12.0,
        };
        all += &sample.tile(&format!("d{device}"));
        all += &text(x + 18.0, 53.0, "", &device.to_string());
        let middle = left(device, 0, 1) + DEVICE.0 / 2.0;
        all += &text(middle, 101.0, "middle soft", &format!("device {device}"));
    }
    let sample = Rect {
        x: 286.0,
        y: 41.0,
        width: 14.0,
        height: 14.0,
    };
    all += &sample.tile("new");
    all += &text(306.0, 53.0, "soft", "new in this round");
    all += &text(16.0, 75.0, "soft", "pale: no longer needed");
    if schedule.chunks > 1 {
        all += "<line class=\"path\" x1=\"212\" y1=\"70\" x2=\"234\" y2=\"70\"/>\n";
        all += &text(242.0, 75.0, "soft", "thick: path of the first chunk");
    }
    all
}

/// The chunks of all devices before a round, which are new since the round before.
fn devices(schedule: &Schedule, round: usize, held: &Held, y: f64) -> String {
    let just = match round {
        0 => &[][..],
        _ => &schedule.rounds[round - 1],
    };
    let mut all = String::new();
    for (device, chunks) in held.iter().enumerate() {
        for (chunk, parts) in chunks.iter().enumerate() {
            let x = left(device, chunk, chunks.len());
            let width = width(chunks.len());
            let parts = &parts.ranks;
            let old = parts.len() < K && !is_read(&schedule.rounds[round..], device, chunk);
            all += &slots(x, y, width, 0..K, "none");
            all += &slots(x, y, width, parts.clone(), if old { "old" } else { "" });
            let is_new = |sum: &Sum| sum.chunk == chunk && sum.to.contains(&device);
            if just.iter().any(is_new) {
                let is_path = is_path(schedule, chunk);
                let class = if is_path { "path" } else { "new" };
                let frame = Rect {
                    x: x - 1.0,
                    y: y - 1.5,
                    width: width + 2.0,
                    height: DEVICE.1 + 2.0,
                };
                all += &frame.tile(class);
            }
        }
    }
    all
}

/// True if what a device holds of a chunk is read in these rounds, before it is written over.
fn is_read(rounds: &[Vec<Sum>], device: usize, chunk: usize) -> bool {
    let sums = rounds.iter().flatten().filter(|sum| sum.chunk == chunk);
    let mut uses = sums.filter(|sum| sum.from.contains(&device) || sum.to.contains(&device));
    uses.next().is_some_and(|sum| sum.from.contains(&device))
}

/// The slots of these gradients in a chunk.
fn slots(
    x: f64,
    y: f64,
    width: f64,
    parts: impl IntoIterator<Item = usize>,
    class: &str,
) -> String {
    let height = DEVICE.1 / K as f64;
    let slot = |device: usize| {
        let slot = Rect {
            x,
            y: y + height * device as f64,
            width,
            height: height - 1.0,
        };
        slot.tile(&format!("{class} d{device}"))
    };
    parts.into_iter().map(slot).collect()
}

/// Rows of the picture: from the devices before a round to those after it, or what is between them.
#[derive(Clone, Copy)]
struct Band {
    top: f64,
    bottom: f64,
}

/// One of several devices that read the same chunks.
#[derive(Clone, Copy)]
struct Reader {
    number: usize,
    of: usize,
}

struct Rect {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Rect {
    fn tile(&self, class: &str) -> String {
        let Self {
            x,
            y,
            width,
            height,
        } = self;
        format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"/>\n"
        )
    }
}

/// Draws a round: its words, its arrows, and the chunks that move along them.
fn round(schedule: &Schedule, number: usize, held: &Held, band: Band) -> String {
    let sums = &schedule.rounds[number];
    let foot = band.top + DEVICE.1;
    let lit = format!("lit r{number}");
    let card = Rect {
        x: 8.0,
        y: foot + 3.0,
        width: WIDTH - 16.0,
        height: band.bottom - band.top,
    };
    let mut all = card.tile(&lit);
    let middle = f64::midpoint(foot, band.bottom);
    all += &text(16.0, middle - 1.0, "bold", &format!("round {}", number + 1));
    let sums_up = sums.iter().any(|sum| sum.from.len() > 1);
    let does = if sums_up { "sum" } else { "copy" };
    let words = format!("{does}, {}", of_n(busiest(schedule, sums)));
    all += &text(16.0, middle + 17.0, "soft", &words);
    let mut sums: Vec<&Sum> = sums.iter().collect();
    sums.sort_by_key(|sum| is_path(schedule, sum.chunk)); // the path over the others
    for sum in &sums {
        // Several readers of a chunk have an arrow each, side by side
        let is_same = |other: &&&Sum| (other.chunk, &other.from) == (sum.chunk, &sum.from);
        let readers: Vec<usize> = sums.iter().filter(is_same).map(|s| s.by).collect();
        let reader = Reader {
            number: readers.iter().position(|by| *by == sum.by).unwrap_or(0),
            of: readers.len(),
        };
        let between = Band { top: foot, ..band };
        all += &arrows(schedule, sum, reader, between);
        all += &moving(schedule, number, sum, held, band);
    }
    all
}

/// Arrows from the devices that are read to the one that adds; it is the i-th of some readers.
fn arrows(schedule: &Schedule, sum: &Sum, reader: Reader, band: Band) -> String {
    let at = |device: usize, i: usize, of: usize| {
        let share = (i + 1) as f64 / (of + 1) as f64;
        left(device, sum.chunk, schedule.chunks) + width(schedule.chunks) * share
    };
    let is_path = is_path(schedule, sum.chunk);
    let class = if is_path { "arrow path" } else { "arrow" };
    let top = band.top + 3.0;
    let tip = band.bottom - 6.0;
    let mut all = String::new();
    for (i, &from) in sum.from.iter().enumerate() {
        if from != sum.by {
            let start = at(from, reader.number, reader.of);
            let end = at(sum.by, i, sum.from.len());
            let place = format!(r#"x1="{start:.1}" y1="{top}" x2="{end:.1}" y2="{tip}""#);
            all += &format!("<line class=\"{class}\" {place}/>\n");
        }
    }
    all
}

/// The chunks that move in a round, each in a group of its own.
fn moving(schedule: &Schedule, number: usize, sum: &Sum, held: &Held, band: Band) -> String {
    let mut all = String::new();
    let down = band.bottom - band.top;
    for &from in sum.from.iter().filter(|from| **from != sum.by) {
        let x = left(from, sum.chunk, schedule.chunks);
        let right = left(sum.by, sum.chunk, schedule.chunks) - x;
        let parts = held[from][sum.chunk].ranks.clone();
        let chunk = slots(x, band.top, width(schedule.chunks), parts, "");
        let way = format!("--x: {right:.1}px; --y: {down}px");
        all += &format!("<g class=\"moves r{number}\" style=\"{way}\">\n{chunk}</g>\n");
    }
    all
}

/// The most that goes into a device, or out of it, in a round: in quarters of N.
fn busiest(schedule: &Schedule, sums: &[Sum]) -> usize {
    let quarter = Link {
        latency: Duration::ZERO,
        bytes_per_second: 16.0,
    };
    schedule.round_time(sums, 64, |_, _| quarter).as_secs() as usize
}

fn of_n(quarters: usize) -> String {
    let part = ["", "¼", "½", "¾"][quarters % 4];
    match quarters / 4 {
        0 => format!("{part} N"),
        1 if part.is_empty() => "N".to_owned(),
        whole => format!("{whole}{part} N"),
    }
}

/// True if the path of a chunk is marked: that of the first one, where there are several.
fn is_path(schedule: &Schedule, chunk: usize) -> bool {
    schedule.chunks > 1 && chunk == 0
}

/// Left edge of a chunk of a device.
fn left(device: usize, chunk: usize, chunks: usize) -> f64 {
    let device = LEFT + COLUMN * device as f64 + (COLUMN - DEVICE.0) / 2.0;
    device + (width(chunks) + 2.0) * chunk as f64
}

fn width(chunks: usize) -> f64 {
    (DEVICE.0 + 2.0) / chunks as f64 - 2.0
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>\n")
}

/// The tip of an arrow, of this size.
fn tip(id: &str, size: u32) -> String {
    format!(
        r#"<marker id="{id}" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="{size}" markerHeight="{size}" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_are_read_as_people_write_them() {
        let words = [1, 3, 4, 6, 24].map(of_n);
        assert_eq!(words, ["¼ N", "¾ N", "N", "1½ N", "6 N"]);
    }
}
