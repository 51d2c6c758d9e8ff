//! What only a browser can show, here one without a window. The page to play with: its times are those of `Schedule`, and
//! its keys and buttons work. And the colours of differences.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use collective::cost::Link;
use collective::{Algorithm, Schedule};
use notebook::book::Book;
use notebook::site;
use regex::Regex;

/// What a reader does, one step after the other. Each writes a line: what the page says then.
const READER: &str = r#"
const said = [];
const say = (id) => said.push($(id).textContent);
change("k=4&algorithm=tree&round=0");
$("next").click();
say("told");
$("json").value = '{"members": 2, "chunks": 1, "rounds": [[{"by": 0, "from": [0, 1], "to": [0], "chunk": 0}]]}';
$("show").click();
say("pasted");
$("json").value = $("json").value.replace("]]}", ",{\"by\": 2, \"from\": [0], \"to\": [2], \"chunk\": 0}]]}");
$("show").click();
say("pasted");
$("json").value = JSON.stringify(SCHEDULES.owner[4]);
$("show").click();
change({ round: 1 });
said.push($("rounds").querySelector("title").textContent);
change("k=0&algorithm=none&bytes=&latency=-1");
say("k-shown");
const press = (key) => $("trace").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
press("0");
const all = view[1] - view[0];
press("+");
said.push(`zoom ${digits(all / (view[1] - view[0]))}`);
press("ArrowRight");
said.push(view[1] <= all ? "in the trace" : "outside");
// each example shows the algorithm that is the fastest there
for (const button of document.querySelectorAll("[data-state]")) {
  button.click();
  const rows = [...$("times").rows].map(({ dataset }) => dataset);
  const { seconds } = rows.find(({ name }) => name === state.algorithm);
  const isFastest = rows.every((row) => Number(seconds) <= row.seconds * (1 + 1e-6));
  said.push(`${button.textContent}: ${state.algorithm}, ${isFastest ? "the fastest" : "not the fastest"}`);
  say("crossover");
}
// more members than are drawn
$("k").value = $("k").max;
$("k").dispatchEvent(new Event("input"));
change("bytes=516272&latency=50e-6&speed=1.25e9&round=3");
say("k-shown");
say("told");
said.push(`${$("rounds").children.length} pictures`, $("next").disabled ? "no next round" : "a next round");
for (const { cells } of $("times").rows) {
  said.push([...cells].slice(0, 5).map((cell) => cell.textContent).join(" "));
}
change("k=4");
said.push(`${$("rounds").children.length} picture`, $("next").disabled ? "no next round" : "a next round");
// the formulas for many members are what the schedules of few cost
for (const name of NAMES) {
  SCHEDULES[name].slice(1).forEach((all, i) => {
    const [right, formula] = [cost(all), costOfMany(name, i + 2)];
    const isRight = right.rounds === formula.rounds && right.messages === formula.messages;
    if (!isRight || Math.abs(right.share - formula.share) > 1e-9) said.push(`another formula: ${name} of ${i + 2}`);
  });
}
// the kinds of spans have different colours, which are explained
press("0");
for (const theme of ["light", "navy"]) {
  document.documentElement.className = `js ${theme}`;
  const page = getComputedStyle(document.documentElement).backgroundColor;
  const colors = [page];
  for (const kind of ["forward", "backward", "allreduce", "sum", "wait", "update"]) {
    const color = getComputedStyle(document.querySelector(`#kinds .${kind}`)).backgroundColor;
    const drawn = getComputedStyle(document.querySelector(`#trace .${kind}`)).fill;
    if (drawn !== color || colors.includes(color)) said.push(`${theme}: ${kind} is ${drawn}, explained as ${color}`);
    colors.push(color);
  }
}
const slow = { latency: 0.01, speed: 1e4 };
const few = NAMES.flatMap((name) => SCHEDULES[name].map((all) => (bytes) => time(all, bytes, slow)));
const many = NAMES.flatMap((name) => [17, 32, 100, 1024].map((k) => (bytes) => costOfMany(name, k).time(bytes, slow)));
const times = [...few, ...many].flatMap((time) => [1000, 12345678].map(time));
document.body.innerHTML = `<p id="said">${said.join("|")}</p><p id="all-times">${times.join(" ")}</p>`;
"#;

/// The colours of added and removed lines: what is wrong with them, in each of mdBook's themes.
const DIFFERENCES: &str = r#"
const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
const rgb = (color) => color.match(/[\d.]+/g).slice(0, 3).map((x) => linear(x / 255));
const bright = (color) => rgb(color).reduce((sum, x, i) => sum + [0.2126, 0.7152, 0.0722][i] * x, 0.05);
const wrong = [];
for (const theme of ["light", "rust", "coal", "navy", "ayu"]) {
  document.documentElement.className = `js ${theme}`;
  for (const kind of ["addition", "deletion"]) {
    const { color, backgroundColor } = getComputedStyle(document.querySelector(`.hljs-${kind}`));
    const contrast = bright(color) / bright(backgroundColor);
    const [red, green] = rgb(backgroundColor);
    const isRight = kind === "addition" ? green > red : red > green;
    if (!isRight || Math.max(contrast, 1 / contrast) < 4.5) wrong.push(`${theme}: ${kind} is ${color} on ${backgroundColor}`);
  }
}
document.body.innerHTML = `<p id="wrong">${wrong.join("|")}</p>`;
"#;

/// The browser that is installed, if there is one.
pub fn browser() -> Option<&'static str> {
    let names = ["chromium-headless-shell", "chromium", "google-chrome"];
    let is_there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    names.into_iter().find(is_there)
}

/// What is wrong with the page.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    site::build(&book.folder, folder.path())?;
    let page = folder.path().join("play.html");
    let state = "#k=5&bytes=160000000&latency=0.001&speed=16000000000";
    let shown = dom(&page, state)?;
    let mut complaints = Vec::new();
    for algorithm in Algorithm::ALL {
        let seconds = Regex::new(&format!(r#"data-name="{algorithm}" data-seconds="([^"]*)"#))?;
        let seconds = &seconds.captures(&shown).context("no time is shown")?[1];
        let link = Link {
            latency: Duration::from_millis(1),
            bytes_per_second: 16e9,
        };
        let right = Schedule::new(algorithm, 5).time(160_000_000, |_, _| link);
        complaints.extend(apart(&format!("{algorithm} of 5"), seconds, right)?);
    }
    complaints.extend(after_a_reader(&with_script(&page, READER)?)?);
    let page = page.with_file_name("seven-diffs.html");
    let wrong = text(&with_script(&page, DIFFERENCES)?, "wrong")?;
    let wrong = wrong.split('|').filter(|line| !line.is_empty());
    complaints.extend(wrong.map(str::to_owned));
    Ok(complaints)
}

/// What is wrong after `READER`.
fn after_a_reader(shown: &str) -> Result<Vec<String>> {
    let right = "Round 1 of 4: 2 messages, 1 N through the busiest member, 35.8 ms.\
        |It is no all-reduce: member 1 ends with 1 in chunk 0.\
        |Round 1: `by`, `from` and `to` have to name members, 0 to 1.|0+1+(2+3)+4|5|zoom 2|in the trace\
        |the book's: 160 MB, four GPUs, 16 GB/s: owner, the fastest|The fastest: owner and ring.\
        |LeNet, 64 devices, Ethernet: tree, the fastest|The fastest: tree, from 710 kB on owner and ring.\
        |ResNet-18, 16 devices, Ethernet: ring, the fastest|The fastest: tree, from 225 kB on owner and ring.\
        |1024|The rounds of more than 16 members have too many cells to draw. Their times and bytes are below.\
        |0 pictures|no next round|star 2 2046 2046 N 947 ms|owner 2 2046 2 N 103 ms|ring 2046 2046 2 N 103 ms\
        |tree 20 20 20 N 9.26 ms|1 picture|a next round";
    let said = text(shown, "said")?;
    ensure!(said == right, "the page says\n{said}\nand not\n{right}");
    let (mut complaints, times) = (Vec::new(), text(shown, "all-times")?);
    let mut times = times.split(' ');
    let link = Link {
        latency: Duration::from_millis(10),
        bytes_per_second: 1e4,
    };
    let (few, many) = ((1..=16).collect(), vec![17, 32, 100, 1024]);
    for members in [few, many] {
        for algorithm in Algorithm::ALL {
            for k in &members {
                let schedule = Schedule::new(algorithm, *k);
                for bytes in [1000, 12_345_678] {
                    let right = schedule.time(bytes, |_, _| link);
                    let seconds = times.next().context("a time is missing")?;
                    let what = format!("{algorithm} of {k}, {bytes} bytes");
                    complaints.extend(apart(&what, seconds, right)?);
                }
            }
        }
    }
    Ok(complaints)
}

/// The text of a paragraph that a script wrote.
fn text(shown: &str, id: &str) -> Result<String> {
    let text = Regex::new(&format!(r#"<p id="{id}">([^<]*)"#))?;
    Ok(text.captures(shown).context("the script failed")?[1].to_owned())
}

/// A complaint, if the page shows another time than `Schedule`, which rounds a round to nanoseconds.
fn apart(what: &str, seconds: &str, right: Duration) -> Result<Option<String>> {
    let (seconds, right): (f64, f64) = (seconds.parse()?, right.as_secs_f64());
    let is_apart = (seconds - right).abs() > 1e-6 * right + 1e-12;
    Ok(is_apart.then(|| format!("{what}: the page shows {seconds} s and not {right} s")))
}

/// The elements of a page after its scripts have run, and then one more.
fn with_script(page: &Path, script: &str) -> Result<String> {
    let script = format!("<script>{script}</script></body>");
    let changed = fs::read_to_string(page)?.replace("</body>", &script);
    let page = page.with_file_name("with-script.html");
    fs::write(&page, changed)?;
    dom(&page, "")
}

/// The elements of a page after its scripts have run.
fn dom(page: &Path, state: &str) -> Result<String> {
    let browser = browser().context("no browser")?;
    let url = format!("file://{}{state}", page.display());
    let options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ];
    let output = Command::new(browser).args(options).arg(url).output()?;
    ensure!(output.status.success(), "{browser}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
