//! Measured figures in the text of the pages. `numbers.txt` has the words of each page, and for each figure its source:
//! a report in `benches/results`, or what a program or a cell printed. A figure that looks measured and is not in that
//! file is a complaint as well.

use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use notebook::book::Book;
use notebook::chapter::Kind;
use notebook::epochs::Epochs;
use notebook::report;
use regex::Regex;

use crate::text::paragraphs;

const QUOTES: &str = include_str!("numbers.txt");

/// The run of several seeds: its command, but for the number of devices.
const SEEDS: &str =
    "--example 15_seeds --data $FASHION_MNIST_DIR --limit-train 60000 --epochs 10 --seeds 12";

/// What pages say otherwise than their sources, or without one.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let recorded = book.recorded()?;
    let sources = Sources { book, recorded };
    let mut complaints = Vec::new();
    for page in book.pages()? {
        let (name, raw) = (book.name(&page), book.text(&page)?);
        let mut text = paragraphs(&raw);
        for line in quotes(&page) {
            let quote = sources.fill(line);
            let quote = quote.with_context(|| format!("{name}: {line}"))?;
            match text.iter_mut().find(|line| line.contains(&quote)) {
                Some(line) => *line = line.replace(&quote, "…"),
                None if raw.contains(&quote) => {} // in a formula, or in code
                None => {
                    complaints.push(format!("{name} does not say {quote:?}, as its source does"))
                }
            }
        }
        for line in &text {
            for figure in measured(line) {
                let what = format!("{figure} has no source in numbers.txt: {line}");
                complaints.push(format!("{name}: {what}"));
            }
        }
    }
    Ok(complaints)
}

/// The lines of `numbers.txt` for a page.
fn quotes(page: &str) -> impl Iterator<Item = &'static str> {
    let sections = QUOTES.split("\n[").filter_map(|all| all.split_once("]\n"));
    let lines = sections.filter(move |(of, _)| *of == page);
    let lines = lines.flat_map(|(_, lines)| lines.lines());
    lines.filter(|line| !line.is_empty())
}

/// The figures of a line that look measured: times, rates, ratios, percentages and accuracies.
fn measured(line: &str) -> impl Iterator<Item = &str> {
    static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
        let units = "s|sec|seconds|ms|µs|min|minutes|hours?|sec/epoch|GB/s|GFLOP/s|examples/s|images/s|times";
        let number = r"[0-9][0-9.,–]*";
        let with_unit = format!(r"\b{number}(?:[%×](?:\W|$)|\s+(?:{units})(?:\W|$))");
        Regex::new(&format!(r"{with_unit}|\b0\.[0-9]{{2,}}")).expect("it is written here")
    });
    FIGURE.find_iter(line).map(|figure| figure.as_str())
}

/// Where figures come from.
struct Sources<'a> {
    book: &'a Book,
    /// What programs printed on the real data, by their command.
    recorded: BTreeMap<String, String>,
}

impl Sources<'_> {
    /// A line with its figures in place of their sources.
    fn fill(&self, line: &str) -> Result<String> {
        let mut filled = String::new();
        for (i, part) in line.split(['{', '}']).enumerate() {
            match i % 2 {
                0 => filled += part,
                _ => filled += &self.figure(part)?,
            }
        }
        Ok(filled)
    }

    /// The figure of a source: a kind, and its arguments.
    fn figure(&self, source: &str) -> Result<String> {
        let (kind, arguments) = source.split_once(' ').unwrap_or((source, ""));
        let arguments: Vec<&str> = arguments.split("; ").collect();
        Ok(match (kind, &arguments[..]) {
            ("cell", [format, report, heading, row, column]) => {
                shown(format, &self.row(report, heading, row)?, column.parse()?)?
            }
            ("beside-pytorch", [step]) => self.beside_pytorch(step)?,
            ("epochs", [command]) => self.epochs(command)?,
            ("speed", [report, step, threads]) => self.speed(report, step, threads)?,
            ("time", [goal, program]) => self.time_to_accuracy(goal, program)?,
            ("worst", [network, what, column]) => self.worst(network, what, column)?,
            ("last-epochs", _) => self.last_epochs()?,
            ("seconds", [command]) => format!("{:.0}", self.seconds(command)?),
            ("end", [command]) => self.end(command)?,
            ("last", [command]) => self.accuracies(command, |all| all[all.len() - 1])?,
            ("best", [command]) => {
                self.accuracies(command, |all| all.iter().fold(0.0, |a, b| b.max(a)))?
            }
            ("seeds", [words, devices]) => self.seeds(words, devices)?,
            ("printed", [page, words @ ..]) => self.printed(page, words)?,
            ("drawn", [picture, title, spans @ ..]) => {
                format!("{:.2}", self.drawn(picture, title, spans)?)
            }
            ("whole-drawn", [picture, title, spans @ ..]) => {
                format!("{:.0}", self.drawn(picture, title, spans)?)
            }
            ("step-drawn", [picture, title]) => self.step_drawn(picture, title)?.to_string(),
            ("saved", [picture, short, long]) => {
                let [short, long] = [short, long].map(|title| self.step_drawn(picture, title));
                (long? - short?).to_string()
            }
            ("share", [ms, heading, row]) => {
                let steps = 50.0 * number(at(&self.row("cpu", heading, row)?, 0)?);
                let checkpoint = number(ms);
                format!("{:.1}%", 100.0 * checkpoint / (steps + checkpoint))
            }
            ("apart", _) => self.apart()?,
            ("kills", _) => self.kills()?,
            _ => bail!("no such source: {source:?}"),
        })
    }

    fn rows(&self, report: &str, heading: &str, start: &str) -> Result<Vec<Vec<String>>> {
        report::rows(self.book, report, heading, start)
    }

    /// The first row that begins with these cells, without them: all words of each other cell.
    fn row(&self, report: &str, heading: &str, cells: &str) -> Result<Vec<String>> {
        let mut rows = report::whole_rows(self.book, report, heading, &format!("{cells} | "))?;
        ensure!(!rows.is_empty(), "{report}.md has no row {cells:?}");
        Ok(rows.swap_remove(0))
    }

    /// The milliseconds of PyTorch's fastest float32 mode on two threads, ours on two devices, and the ratio. Its range
    /// goes from PyTorch's fastest round and our slowest to PyTorch's slowest round and our fastest.
    fn beside_pytorch(&self, step: &str) -> Result<String> {
        // name, threads, ms, from – to
        let rows = report::whole_rows(self.book, "cpu", step, "PyTorch ")?;
        let is_float32 = |row: &&Vec<String>| row[1] == "2" && !row[0].starts_with("bf16");
        let float32 = rows.iter().filter(is_float32);
        let fastest = float32.min_by(|a, b| number(&a[2]).total_cmp(&number(&b[2])));
        let pytorch = fastest.context("no such row")?;
        // ms, from – to, rounds, PyTorch / this
        let ours = self.row("cpu", step, "ours, 2 replicas | 2")?;
        let (theirs, of_ours) = (ends(at(pytorch, 3)?)?, ends(at(&ours, 1)?)?);
        let (least, most) = (theirs[0] / of_ours[1], theirs[1] / of_ours[0]);
        let (ms, our_ms) = (spread(pytorch, 2)?, spread(&ours, 0)?);
        let ratio = at(&ours, 3)?;
        Ok(format!(
            "{ms} | {our_ms} | {ratio}× ({least:.2} to {most:.2})"
        ))
    }

    /// The fewest milliseconds of a step among the rows with a name that begins with `name`.
    fn fastest(&self, report: &str, step: &str, name: &str, threads: &str) -> Result<String> {
        let rows = self.rows(report, step, name)?;
        let rows = rows.iter().filter(|row| row[1] == threads);
        let times = rows.map(|row| row[2].clone());
        let fastest = times.min_by(|a, b| number(a).total_cmp(&number(b)));
        fastest.context("no such row")
    }

    /// PyTorch's eager and compiled modes, then one device and two, with the ratio to the faster mode.
    fn speed(&self, report: &str, step: &str, threads: &str) -> Result<String> {
        let eager = self.fastest(report, step, "PyTorch eager", threads)?;
        let compiled = self.fastest(report, step, "PyTorch compile", threads)?;
        let mut cells = vec![thousands(&eager), thousands(&compiled)];
        for replicas in ["1 replica", "2 replicas"].iter().take(threads.parse()?) {
            let row = self.row(report, step, &format!("ours, {replicas} | {threads}"))?;
            let ratio = number(at(&row, 3)?);
            cells.push(format!("{} ({ratio:.1}×)", thousands(at(&row, 0)?)));
        }
        Ok(cells.join(" | "))
    }

    /// The mean, the smallest and the largest accuracy, and the median of the seconds, over the seeds.
    fn time_to_accuracy(&self, goal: &str, program: &str) -> Result<String> {
        let rows = self.rows("time_to_accuracy", "", &format!("{goal} | {program} | "))?;
        let sorted = |column: usize| {
            let mut all: Vec<f64> = rows.iter().map(|row| number(&row[column])).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let (accuracies, seconds) = (sorted(1), sorted(2));
        let [first, .., last] = accuracies[..] else {
            bail!("no two seeds");
        };
        let mean = accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        let median = seconds[seconds.len() / 2];
        Ok(format!("{mean:.4} ({first:.4} to {last:.4}) | {median:.1}"))
    }

    /// The largest difference in a column of `pytorch.md`, over the seeds and devices.
    fn worst(&self, network: &str, what: &str, column: &str) -> Result<String> {
        let column: usize = column.parse()?;
        let rows = self.rows("pytorch", "", &format!("{network} | "))?;
        let first = what.split(' ').next();
        let rows = rows.iter().filter(|row| first == Some(&row[1]));
        let worst = rows.map(|row| number(&row[column])).reduce(f64::max);
        Ok(format!("{:.1e}", worst.context("no such row")?))
    }

    /// The accuracies after the last epochs of all seeds: `0.829, 0.795 and 0.814`.
    fn last_epochs(&self) -> Result<String> {
        let rows = self.rows("pytorch", "LeNet as in the book", "")?;
        let rows = rows.iter().filter(|row| row[0].parse::<u32>().is_ok());
        let all: Vec<String> = rows.map(|row| row[1].clone()).collect();
        let (last, first) = all.split_last().context("no seeds")?;
        Ok(format!("{} and {last}", first.join(", ")))
    }

    fn recorded(&self, command: &str) -> Result<&String> {
        self.recorded.get(command).context(command.to_owned())
    }

    /// The seconds of all epochs of a run.
    fn seconds(&self, command: &str) -> Result<f64> {
        let run = Epochs::of_command(&self.recorded, command)?;
        Ok(run.seconds.iter().sum())
    }

    /// What a program printed last.
    fn end(&self, command: &str) -> Result<String> {
        let mut lines = self.recorded(command)?.lines();
        let line = lines.rfind(|line| !line.starts_with("```"));
        Ok(line.context("nothing is recorded")?.to_owned())
    }

    /// All accuracies of a recorded run: `0.493 | 0.726 | …`.
    fn epochs(&self, command: &str) -> Result<String> {
        let run = Epochs::of_command(&self.recorded, command)?;
        let all: Vec<String> = run
            .accuracies
            .iter()
            .map(|acc| format!("{acc:.3}"))
            .collect();
        Ok(all.join(" | "))
    }

    /// One of the accuracies of a recorded run.
    fn accuracies(&self, command: &str, one: fn(&[f64]) -> f64) -> Result<String> {
        let run = Epochs::of_command(&self.recorded, command)?;
        Ok(format!("{:.3}", one(&run.accuracies)))
    }

    /// What follows `words` in the run of several seeds: `0.733 to 0.840, mean 0.814`.
    fn seeds(&self, words: &str, devices: &str) -> Result<String> {
        let text = match devices {
            "2" => self.recorded(SEEDS)?,
            k => self.recorded(&format!("{SEEDS} --gpus {k}"))?,
        };
        let line = text.lines().find_map(|line| line.strip_prefix(words));
        Ok(line.context("no such line")?.trim().to_owned())
    }

    /// The recorded picture of timelines with this name.
    fn picture(&self, name: &str) -> Result<String> {
        let file = self.book.folder.join("img").join(format!("{name}.svg"));
        fs::read_to_string(&file).with_context(|| file.display().to_string())
    }

    /// The milliseconds of some spans, such as `forward, cpu(0)`, in the timeline with this title.
    fn drawn(&self, picture: &str, title: &str, spans: &[&str]) -> Result<f64> {
        let picture = self.picture(picture)?;
        let mut timelines = picture.split(r#"font-weight="600">"#).skip(1);
        let timeline = timelines.find(|rest| rest.starts_with(&format!("{title}<")));
        let timeline = timeline.with_context(|| format!("no timeline {title:?}"))?;
        let mut us = 0.0;
        for span in spans {
            let begin = format!("<title>{span}: ");
            let times = timeline.split(&begin).skip(1);
            let times: Vec<f64> = times
                .filter_map(|rest| rest.split(' ').next())
                .map(number)
                .collect();
            ensure!(!times.is_empty(), "no span {span:?} in {title:?}");
            us += times.iter().sum::<f64>();
        }
        Ok(us / 1e3)
    }

    /// The milliseconds of the whole timeline with this title, as its picture's description has them.
    fn step_drawn(&self, picture: &str, title: &str) -> Result<f64> {
        let picture = self.picture(picture)?;
        let label = picture.split("aria-label=\"Timeline of ").nth(1);
        let label = label.and_then(|rest| rest.split('"').next());
        let mut parts = label.context("no timeline")?.split(", and of ");
        let ms = parts.find_map(|part| part.strip_prefix(title)?.strip_prefix(", "));
        let ms = ms.and_then(|ms| ms.strip_suffix(" ms"));
        Ok(number(
            ms.with_context(|| format!("no timeline {title:?}"))?,
        ))
    }

    /// The largest of the numbers that stand behind some words in what the cells of a page printed.
    fn printed(&self, page: &str, words: &[&str]) -> Result<String> {
        let pieces = self.book.chapter(page)?.pieces.into_iter();
        let printed = pieces.filter(|piece| matches!(piece.kind, Kind::Output(_)));
        let printed: String = printed.map(|piece| piece.body).collect();
        let mut most = 0f64;
        for words in words {
            let found = printed.lines().find_map(|line| line.strip_prefix(words));
            let found = found.with_context(|| format!("no cell prints {words:?}"))?;
            most = most.max(found.trim().parse()?);
        }
        Ok(format!("{most:.0e}"))
    }

    /// One device and four with minibatches of 16: the largest difference of their accuracies.
    fn apart(&self) -> Result<String> {
        let is_table = |command: &&String| command.starts_with("--example 06_learning_rates ");
        let command = self.recorded.keys().find(is_table).context("no table")?;
        let rows = self.recorded[command].lines();
        let rows = rows.filter(|line| line.starts_with("0."));
        let apart = rows.map(|row| {
            let row: Vec<f64> = row.split_whitespace().map(number).collect();
            (row[1] - row[2]).abs()
        });
        Ok(format!("{:.2}", apart.reduce(f64::max).context("no row")?))
    }

    /// Number of times that two tests kill runs.
    fn kills(&self) -> Result<String> {
        let mut all = 0;
        for (test, before) in [
            ("runs_are_taken_up.rs", "let times = times("),
            ("ones_own_run_goes_on.rs", "0.0, 0.5, times("),
        ] {
            let test = fs::read_to_string(self.book.root.join("tests/claims").join(test))?;
            let rest = test.split(before).nth(1);
            let count = rest.and_then(|rest| rest.split(')').next());
            all += count.context("no kills")?.parse::<usize>()?;
        }
        Ok(all.to_string())
    }
}

/// A number of a report.
fn number(text: &str) -> f64 {
    let number = text.parse();
    number.unwrap_or_else(|_| panic!("a report has {text:?} in place of a number"))
}

/// A cell of a row.
fn at(row: &[String], column: usize) -> Result<&str> {
    let cell = row.get(column).map(String::as_str);
    cell.with_context(|| format!("the row {row:?} has no cell {column}"))
}

/// A median, and the range in the cell behind it: `8.65 (8.25 to 9.00)`.
fn spread(row: &[String], column: usize) -> Result<String> {
    let (median, rounds) = (at(row, column)?, at(row, column + 1)?);
    Ok(format!("{} ({})", thousands(median), range(rounds)))
}

/// A cell in a format; `spread` and `times` also show the range in the cell behind it.
fn shown(format: &str, row: &[String], column: usize) -> Result<String> {
    let cell = at(row, column)?;
    let word = cell.split_whitespace().next().unwrap_or("");
    Ok(match format {
        "plain" => word.to_owned(),
        "thousands" => thousands(word),
        "tenths" => format!("{:.1}", number(word)),
        "ms" => format!("{:.1}", number(word) / 1e3),
        "whole-ms" => format!("{:.0}", number(word) / 1e3),
        "range" => range(cell),
        "spread" => spread(row, column)?,
        "times" => format!("{cell}× ({})", range(at(row, column + 1)?)),
        _ => bail!("no such format: {format:?}"),
    })
}

/// The two numbers of `1475 – 1572`.
fn ends(cell: &str) -> Result<[f64; 2]> {
    let ends = cell.split_once(" – ");
    let (low, high) = ends.with_context(|| format!("{cell:?} is no range"))?;
    Ok([number(low), number(high)])
}

/// `1475 – 1572` as `1,475 to 1,572`.
fn range(cell: &str) -> String {
    let ends: Vec<String> = cell.split(" – ").map(thousands).collect();
    ends.join(" to ")
}

/// `4023` as `4,023`; shorter numbers as they are.
fn thousands(n: &str) -> String {
    match n.len() {
        4.. if n.bytes().all(|b| b.is_ascii_digit()) => {
            let (thousands, rest) = n.split_at(n.len() - 3);
            format!("{thousands},{rest}")
        }
        _ => n.to_owned(),
    }
}
