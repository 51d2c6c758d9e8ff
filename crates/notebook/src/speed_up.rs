//! README's picture: the time on one device and on two, in the book, here and in PyTorch.

use anyhow::{Context, Result};
use d2l::DARK_MODE;

use crate::book::Book;
use crate::report;

/// The file of the picture.
pub const FILE: &str = "img/speed-up.svg";

const STYLE: &str = "text { font: 15px system-ui, sans-serif; fill: #24292f } .soft { fill: #57606a } \
    .bold { font-weight: 600 } .one { fill: #8c959f } .two { fill: #0969da }";

/// Titles, and how the names of the report's rows begin.
const MEASURED: [(&str, &str); 2] = [
    ("here", "ours"),
    ("PyTorch DDP, eager", "PyTorch ddp, eager"),
];

/// The picture.
///
/// # Errors
/// If the report is not there, or has no such figures.
pub fn svg(book: &Book) -> Result<String> {
    let book_s = ["13.2", "7.3", "1.81"].map(str::to_owned);
    let title = "the book: ResNet-18 with MXNet, on GPUs".to_owned();
    let mut groups = vec![(title, book_s, "s an epoch")];
    for (title, name) in MEASURED {
        for network in ["ResNet-18", "LeNet"] {
            let times = on_devices(book, &format!("{network}, batch 256"), name)?;
            groups.push((format!("{title}: {network}"), times, "ms a step"));
        }
    }
    let (mut drawn, mut words) = (String::new(), Vec::new());
    for (i, (title, [one, two, faster], unit)) in groups.iter().enumerate() {
        let y = 44 + 66 * i;
        let head = y + 14;
        drawn += &format!("<text class=\"bold\" x=\"16\" y=\"{head}\">{title}</text>\n");
        drawn += &bar(y + 20, "one", 1.0, &format!("{one} {unit}"));
        let share = 1.0 / faster.parse::<f64>()?;
        drawn += &bar(y + 39, "two", share, &format!("{two} {unit}: {faster}×"));
        words.push(format!("{title} {faster}"));
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

/// The milliseconds of a step on one device, those on two with as many examples, and the speed-up.
fn on_devices(book: &Book, network: &str, name: &str) -> Result<[String; 3]> {
    let heading = format!("On devices of one core: {network}");
    // name, devices, examples, ms, from – to, examples/sec, speed-up
    let mut rows = report::rows(book, "cpu", &heading, name)?.into_iter();
    let mut first = |devices: &str| {
        let row = rows.find(|row| row[1] == devices);
        row.with_context(|| format!("cpu.md: {network}: {name} on {devices}"))
    };
    let (one, two) = (first("1")?, first("2")?);
    Ok([one[3].clone(), two[3].clone(), two[6].clone()])
}
