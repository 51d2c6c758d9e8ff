//! README's picture: the time on one device and on two, in the book, here and in PyTorch.

use std::fs;

use anyhow::{Context, Result};
use d2l::DARK_MODE;

use crate::book::Book;

/// The file of the picture.
pub const FILE: &str = "img/speed-up.svg";

const REPORT: &str = "benches/results/cpu.md";
const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } .soft { fill: #57606a } \
    .bold { font-weight: 600 } .one { fill: #8c959f } .two { fill: #0969da }";

/// Titles; the networks of the report, and how the names of its rows begin.
const MEASURED: [(&str, &str, &str); 4] = [
    ("here: ResNet-18", "ResNet-18, batch 256", "ours"),
    ("here: LeNet", "LeNet, batch 256", "ours"),
    (
        "PyTorch DDP, eager: ResNet-18",
        "ResNet-18, batch 256",
        "PyTorch ddp, eager",
    ),
    (
        "PyTorch DDP, eager: LeNet",
        "LeNet, batch 256",
        "PyTorch ddp, eager",
    ),
];

/// The picture.
///
/// # Errors
/// If the report is not there, or has no such figures.
pub fn svg(book: &Book) -> Result<String> {
    let report = fs::read_to_string(book.root.join(REPORT)).context(REPORT)?;
    let mut groups = vec![(
        "the book: ResNet-18 with MXNet, on GPUs",
        [13.2, 7.3],
        "s an epoch",
    )];
    for (title, network, name) in MEASURED {
        groups.push((title, on_devices(&report, network, name)?, "ms a step"));
    }
    let (mut drawn, mut words) = (String::new(), Vec::new());
    for (i, &(title, [one, two], unit)) in groups.iter().enumerate() {
        let y = 44 + 66 * i;
        let head = y + 14;
        drawn += &format!("<text class=\"bold\" x=\"16\" y=\"{head}\">{title}</text>\n");
        drawn += &bar(y + 20, "one", 1.0, &format!("{} {unit}", short(one)));
        let faster = format!("{} {unit}: {:.2}×", short(two), one / two);
        drawn += &bar(y + 39, "two", two / one, &faster);
        words.push(format!("{title} {:.2}", one / two));
    }
    let (height, words) = (44 + 66 * groups.len() + 8, words.join(", "));
    Ok(format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="560" height="{height}" viewBox="0 0 560 {height}" role="img" aria-label="Times as fast with two devices as with one: {words}">
<style>{STYLE}</style>
<rect fill="#ffffff" width="560" height="{height}" rx="8"/>
<rect class="one" x="16" y="18" width="14" height="12" rx="2"/><text x="36" y="29">one device</text>
<rect class="two" x="136" y="18" width="14" height="12" rx="2"/><text x="156" y="29">two devices</text>
<text class="soft" x="262" y="29">here and with DDP: one core each</text>
{drawn}{DARK_MODE}
</svg>
"##
    ))
}

/// A bar as long as this share of the longest, and words behind it.
fn bar(y: usize, class: &str, share: f64, words: &str) -> String {
    let width = 330.0 * share;
    format!(
        "<rect class=\"{class}\" x=\"16\" y=\"{y}\" width=\"{width:.0}\" height=\"16\" rx=\"2\"/>\
         <text class=\"soft\" x=\"{:.0}\" y=\"{}\">{words}</text>\n",
        width + 24.0,
        y + 13
    )
}

/// The milliseconds of a step on one device and on two with as many examples: the fastest row that begins so.
fn on_devices(report: &str, network: &str, name: &str) -> Result<[f64; 2]> {
    let head = format!("## On devices of one core: {network}\n");
    let (_, section) = report
        .split_once(&head)
        .with_context(|| format!("{REPORT}: {head}"))?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows: Vec<Vec<&str>> = (section.lines())
        .filter(|line| line.starts_with(&format!("| {name}")))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let fastest = |devices: &str| {
        let same = |row: &&Vec<&str>| row[2] == devices && row[3] == rows[0][3];
        let times = rows
            .iter()
            .filter(same)
            .filter_map(|row| row[4].parse().ok());
        times
            .reduce(f64::min)
            .with_context(|| format!("{REPORT}: {network}: {name} on {devices}"))
    };
    Ok([fastest("1")?, fastest("2")?])
}

fn short(number: f64) -> String {
    if number < 100.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    }
}
