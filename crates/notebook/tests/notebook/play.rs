//! The page to play with, in a browser without a window: its times are those of `Schedule`, and its keys and buttons work.

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
said.push(`zoom ${all / (view[1] - view[0])}`);
press("ArrowRight");
said.push(view[1] <= all ? "in the trace" : "outside");
const times = NAMES.flatMap((name) =>
  SCHEDULES[name].flatMap((all) => [1000, 12345678].map((bytes) => time(all, bytes, { latency: 0.01, speed: 1e4 }))));
document.body.innerHTML = `<p id="said">${said.join("|")}</p><p id="all-times">${times.join(" ")}</p>`;
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
    let script = format!("<script>{READER}</script></body>");
    let read = fs::read_to_string(&page)?.replace("</body>", &script);
    let page = page.with_file_name("reader.html");
    fs::write(&page, read)?;
    complaints.extend(after_a_reader(&dom(&page, "")?)?);
    Ok(complaints)
}

/// What is wrong after `READER`.
fn after_a_reader(shown: &str) -> Result<Vec<String>> {
    let text = |id: &str| -> Result<String> {
        let text = Regex::new(&format!(r#"<p id="{id}">([^<]*)"#))?;
        Ok(text.captures(shown).context("the script failed")?[1].to_owned())
    };
    let right = "Round 1 of 4: 2 messages, 1 N through the busiest member, 35.8 ms.\
        |It is no all-reduce: member 1 ends with 1 in chunk 0.\
        |Round 1: `by`, `from` and `to` have to name members, 0 to 1.|0+1+(2+3)+4|5|zoom 2|in the trace";
    let said = text("said")?;
    ensure!(said == right, "the page says\n{said}\nand not\n{right}");
    let (mut complaints, times) = (Vec::new(), text("all-times")?);
    let mut times = times.split(' ');
    let link = Link {
        latency: Duration::from_millis(10),
        bytes_per_second: 1e4,
    };
    for algorithm in Algorithm::ALL {
        for k in 1..=16 {
            for bytes in [1000, 12_345_678] {
                let right = Schedule::new(algorithm, k).time(bytes, |_, _| link);
                let seconds = times.next().context("a time is missing")?;
                let what = format!("{algorithm} of {k}, {bytes} bytes");
                complaints.extend(apart(&what, seconds, right)?);
            }
        }
    }
    Ok(complaints)
}

/// A complaint, if the page shows another time than `Schedule`, which rounds a round to nanoseconds.
fn apart(what: &str, seconds: &str, right: Duration) -> Result<Option<String>> {
    let (seconds, right): (f64, f64) = (seconds.parse()?, right.as_secs_f64());
    let is_apart = (seconds - right).abs() > 1e-6 * right + 1e-12;
    Ok(is_apart.then(|| format!("{what}: the page shows {seconds} s and not {right} s")))
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
