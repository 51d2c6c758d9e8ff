//! The picture of what each device keeps in each stage of sharding, from the recorded count.

use anyhow::{Context, Result, ensure};
use d2l::DARK_MODE;

use crate::book::Book;

/// The file of the picture.
pub const FILE: &str = "img/memory.svg";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } .bold { font-weight: 600 } \
    .soft { fill: #57606a } .middle { text-anchor: middle } .end { text-anchor: end } \
    .d0 { fill: #0969da } .d1 { fill: #d97706 } .d2 { fill: #1a7f37 } .none { fill: #eaeef2 }";
const STAGES: [&str; 4] = ["data parallel", "stage 1", "stage 2", "stage 3"];
/// Each has a class `d` with its number, and a row of parts in each device.
const KINDS: [&str; 3] = ["parameters", "gradients", "momentum"];
/// Devices, and parts of each kind.
const K: usize = 4;

const WIDTH: f64 = 480.0;
/// The devices stand in columns right of the stages' names.
const LEFT: f64 = 126.0;
const COLUMN: f64 = 68.0;
/// The first stage, and from one stage to the next.
const TOP: f64 = 112.0;
const STAGE: f64 = 46.0;
/// Width and height of a part; what is between two.
const PART: (f64, f64) = (12.0, 9.0);
const GAP: f64 = 2.0;

/// The picture.
///
/// # Errors
/// If the count is not recorded, or has a device with another share than all or one part.
pub fn svg(book: &Book) -> Result<String> {
    let recorded = book.recorded()?;
    let table = recorded
        .get("seven-diffs memory")
        .context("no page has <!-- recorded: seven-diffs memory -->")?;
    // program, k, kB of parameters, of gradients, of momentum, together …
    let mut rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    rows.retain(|row| row.len() == 8 && row[1] == K.to_string());
    let count = rows.len();
    ensure!(count == STAGES.len(), "{count} stages are recorded");
    let mut drawn = legend();
    let mut words = Vec::new();
    for (i, (stage, row)) in STAGES.iter().zip(&rows).enumerate() {
        let y = TOP + STAGE * i as f64;
        drawn += &text(16.0, y + 20.0, "", stage);
        for kind in 0..KINDS.len() {
            let [kept, all] = [row, &rows[0]].map(|row| row[2 + kind].parse::<f64>());
            let parts = (kept? / all? * K as f64).round() as usize;
            ensure!(parts == 1 || parts == K, "{stage}: {parts} of {K} parts");
            let bar_y = y + (PART.1 + GAP) * kind as f64;
            for device in 0..K {
                drawn += &bar(device, bar_y, kind, parts);
            }
        }
        let kb = format!("{:.0} kB", row[5].parse::<f64>()?);
        drawn += &text(WIDTH - 16.0, y + 20.0, "end", &kb);
        words.push(format!("{stage} {kb}"));
    }
    let height = TOP + STAGE * STAGES.len() as f64;
    let words = words.join(", ");
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="What each of {K} devices keeps: {words}">
<style>{STYLE}</style>
<rect fill="#ffffff" width="{WIDTH}" height="{height}" rx="8"/>
{drawn}{DARK_MODE}
</svg>
"##
    ))
}

/// Title and legend above the stages.
fn legend() -> String {
    let title = format!("What each of k = {K} devices keeps of LeNet");
    let mut all = text(16.0, 30.0, "bold", &title);
    let mut x = 16.0;
    for (kind, name) in KINDS.iter().enumerate() {
        all += &part(x, 44.0, &format!("d{kind}"));
        all += &text(x + PART.0 + 6.0, 53.0, "", name);
        x += 40.0 + 8.0 * name.len() as f64;
    }
    all += &text(16.0, 75.0, "soft", "pale: on another device");
    all += &text(16.0, 101.0, "soft", "device");
    for device in 0..K {
        let middle = f64::midpoint(left(device, 0), left(device, K) - GAP);
        all += &text(middle, 101.0, "middle soft", &device.to_string());
    }
    all + &text(WIDTH - 16.0, 101.0, "end soft", "each")
}

/// The parts of a kind on a device: all, or the one that has the device's number.
fn bar(device: usize, y: f64, kind: usize, parts: usize) -> String {
    let numbered = |number: usize| {
        let is_kept = parts == K || number == device;
        let class = if is_kept {
            format!("d{kind}")
        } else {
            "none".to_owned()
        };
        part(left(device, number), y, &class)
    };
    (0..K).map(numbered).collect()
}

/// Left edge of a part on a device.
fn left(device: usize, part: usize) -> f64 {
    LEFT + COLUMN * device as f64 + (PART.0 + GAP) * part as f64
}

fn part(x: f64, y: f64, class: &str) -> String {
    let (width, height) = PART;
    format!(
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\"/>\n"
    )
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{words}</text>\n")
}
