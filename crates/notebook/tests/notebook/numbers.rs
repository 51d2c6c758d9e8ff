//! Measured figures in the text of the pages. Each has one source: a report in `benches/results`, or what a program
//! or a cell printed. The page says it in the words that are made here. A figure that looks measured and has no
//! source is a complaint as well.

use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};
use notebook::book::Book;
use notebook::chapter::Kind;
use notebook::epochs::Epochs;
use regex::Regex;

use crate::text::paragraphs;

const SECTION_1: &str = "scratch --gpus 2";
const SECTION_2: &str = "concise --gpus 2";
const SHORT_RUN: &str =
    "concise --gpus 2 --limit-train 6000 --limit-test 1000 --epochs 1 --batch-size 64 --lr 0.05";
const SEEDS: &str =
    "--example 15_seeds --data $FASHION_MNIST_DIR --limit-train 60000 --epochs 10 --seeds 12";

/// The threads and the steps of `cpu.md`.
const THREADS: usize = 2;
const STEPS: [&str; 3] = [
    "LeNet, batch 256",
    "ResNet-18, batch 64",
    "ResNet-18, batch 256",
];
/// The first build on two cores and on four, timed by hand.
const BUILDS: [&str; 2] = ["3 min 49 s", "2 min 44 s"];

/// What pages say otherwise than their sources, or without one.
pub fn complaints(book: &Book) -> Result<Vec<String>> {
    let sources = Sources::read(book)?;
    let mut complaints = Vec::new();
    for page in book.pages()? {
        let (name, raw) = (book.name(&page), book.text(&page)?);
        let mut text = paragraphs(&raw);
        let quotes = quotes(&page, &sources).with_context(|| name.clone())?;
        for quote in quotes.into_iter().chain(given(&page)) {
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
                let what = format!("{figure} has no source in numbers.rs: {line}");
                complaints.push(format!("{name}: {what}"));
            }
        }
    }
    Ok(complaints)
}

/// The quotes of a page from its sources.
fn quotes(page: &str, sources: &Sources) -> Result<Vec<String>> {
    match page {
        "../README" => readme(sources),
        "measurements" => measurements(sources),
        "communication" => communication(sources),
        "solutions" => solutions(sources),
        _ => Ok(Vec::new()),
    }
}

fn readme(sources: &Sources) -> Result<Vec<String>> {
    let (lenet, short) = (sources.seconds(SECTION_1)?, sources.seconds(SHORT_RUN)?);
    let long = sources.seconds(SECTION_2)? / 60.0;
    let losses = sources.pytorch.worst("lenet", "this project", 0)?;
    let mut parity = 0f64;
    for k in 2..=4 {
        parity = parity.max(sources.printed("multiple-gpus", &format!("{k} devices: "))?);
    }
    let moved = sources.printed("multiple-gpus", "the step moves a parameter by up to ")?;
    let mut quotes = vec![
        format!("ten epochs of Fashion-MNIST | {lenet:.0} s"),
        format!("the short run above | {short:.0} s"),
        format!("ten epochs of all images | {long:.0} min"),
        format!("differ from those on one device by at most {parity:.0e}"),
        format!("the step moves them by up to {moved:.0e}"),
        sources.last_line(SECTION_1)?,
        format!("its sources | {}", BUILDS[0]),
        format!("the same on four cores | {}", BUILDS[1]),
        format!("losses differ from PyTorch's by at most {losses:.1e} relative"),
        format!("`code` at {} random moments", sources.kills()?),
    ];
    for step in STEPS {
        quotes.push(format!("{step} | {}", speed(&sources.cpu, step, THREADS)?));
    }
    quotes.extend(accuracies(sources)?);
    Ok(quotes)
}

/// PyTorch's eager and compiled modes, then one device and two, with the ratio to the faster mode.
fn speed(cpu: &Report, step: &str, threads: usize) -> Result<String> {
    let eager = cpu.fastest(step, "PyTorch eager", threads)?;
    let compiled = cpu.fastest(step, "PyTorch compile", threads)?;
    let faster = eager.parse::<f64>()?.min(compiled.parse()?);
    let mut cells = vec![thousands(eager), thousands(compiled)];
    for replicas in ["1 replica", "2 replicas"].iter().take(threads) {
        let row = cpu.row(step, &format!("ours, {replicas} | {threads}"))?;
        let times = faster / row.number(0)?;
        cells.push(format!("{} ({times:.1}×)", thousands(row.text(0)?)));
    }
    Ok(cells.join(" | "))
}

/// The rows of the table beside the book.
fn accuracies(sources: &Sources) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for (k, book) in [(1, "0.85 | 0.84"), (2, "0.84 | 0.83")] {
        let (last, best) = sources.seeds(k)?;
        rows.push(format!("LeNet, 256, 0.2 | {k} | {book} | {last} | {best}"));
    }
    for (k, start) in [
        (1, "256, 0.1 | 1 | 0.93 | 0.91"),
        (2, "512, 0.2 | 2 | 0.92 | 0.73"),
    ] {
        let runs = sources.runs(&format!("concise --gpus {k}"));
        let (mut last, mut best) = (Vec::new(), Vec::new());
        for Epochs { accuracies, .. } in runs {
            last.push(format!("{:.3}", accuracies[accuracies.len() - 1]));
            best.push(format!("{:.3}", accuracies.into_iter().fold(0.0, f64::max)));
        }
        let (last, best) = (last.join(", "), best.join(", "));
        rows.push(format!("ResNet-18, {start} | {last} | {best}"));
    }
    Ok(rows)
}

fn measurements(sources: &Sources) -> Result<Vec<String>> {
    let (cpu, pytorch) = (&sources.cpu, &sources.pytorch);
    let mut quotes = vec![
        format!("2 | {} | 1 min 56 s", BUILDS[0]),
        format!("4 | {} | 1 min 22 s", BUILDS[1]),
    ];
    for (network, rows, name) in [
        ("lenet", "this project", "LeNet, this project"),
        ("lenet", "its float64", "LeNet, PyTorch's float64"),
        ("resnet18", "this project", "ResNet-18, this project"),
        ("resnet18", "its float64", "ResNet-18, PyTorch's float64"),
    ] {
        let [losses, model] = [0, 1].map(|column| pytorch.worst(network, rows, column));
        quotes.push(format!("{name} | {:.1e} | {:.1e}", losses?, model?));
    }
    let theirs = pytorch.rows("LeNet as in the book").into_iter();
    let theirs: Result<Vec<&str>> = theirs.map(|row| row.text(1)).collect();
    let theirs = theirs?;
    let (last, first) = theirs.split_last().context("no seeds")?;
    let first = first.join(", ");
    quotes.push(format!("its last epochs reached {first} and {last}"));
    for step in STEPS {
        let peer = |name, threads| cpu.fastest(step, name, threads).map(thousands);
        let (candle, burn) = (peer("candle as it is", THREADS)?, peer("Burn", THREADS)?);
        let ours = speed(cpu, step, THREADS)?;
        quotes.push(format!("{step} | {ours} | {candle} | {burn}"));
        let (ours, candle) = (speed(cpu, step, 1)?, peer("candle as it is", 1)?);
        quotes.push(format!("{step}, one thread | {ours} | | {candle}"));
    }
    for (network, whose) in [("ResNet-18", "the"), ("LeNet", "its")] {
        let (apart, moved) = cpu.rounding(network)?;
        quotes.push(format!(
            "{whose} losses with and without Winograd differ by up to {apart}"
        ));
        quotes.push(format!("already changes them by up to {moved}"));
    }
    for size in ["516 kB, LeNet", "44.7 MB, ResNet-18"] {
        let ours = sources.allreduce.row("4 threads", size)?;
        let ours: Vec<String> = ours.0[..4].iter().map(|us| thousands(us)).collect();
        let ours = ours.join(" | ");
        let peer = sources.allreduce.row("Open MPI", size)?;
        let (mpi, times) = (thousands(peer.text(1)?), peer.number(2)?);
        quotes.push(format!("{size} | {ours} | {mpi} ({times:.1}×)"));
    }
    for accuracy in ["0.90", "0.93"] {
        let [ours, theirs] = ["this project", "PyTorch"].map(|program| {
            let runs = format!("{accuracy} | {program}");
            sources.time_to_accuracy.seeds(&runs)
        });
        quotes.push(format!("{accuracy} | {} | {}", ours?, theirs?));
    }
    for row in sources.allreduce.rows("Overlap") {
        // communication, compute, without overlap, with large buckets, with small ones
        quotes.push(row.0[..5].join(" | "));
    }
    Ok(quotes)
}

fn communication(sources: &Sources) -> Result<Vec<String>> {
    let report = &sources.allreduce;
    let resnet = report.row("4 threads", "44.7 MB, ResNet-18")?;
    let mpi = report.row("Open MPI", "44.7 MB, ResNet-18")?;
    let ms = |row: &Row, column| Ok::<_, anyhow::Error>(row.number(column)? / 1e3);
    let (owner, increment, mpi) = (ms(&resnet, 1)?, ms(&resnet, 4)?, ms(&mpi, 1)?);
    let step = |name| sources.cpu.row(name, "ours, 1 replica | 1")?.number(0);
    let (small, large) = (step("ResNet-18, batch 64")?, step("ResNet-18, batch 256")?);
    let each = (large - small) / (256.0 - 64.0);
    let fixed = small - 64.0 * each;
    Ok(vec![
        format!("{small} ms for 64 examples"),
        format!("{} ms for 256", thousands(&large.to_string())),
        format!("${fixed:.1} + {each:.1}\\,b$ ms for $b$"),
        format!("{fixed:.1} + {each:.1} * examples as f64"),
        format!("the owner takes {owner:.1} ms and `code` takes {increment:.1} ms"),
        format!("Open MPI, among four processes, takes {mpi:.0} ms"),
    ])
}

/// One device and four with minibatches of 16: the largest difference of their accuracies.
fn solutions(sources: &Sources) -> Result<Vec<String>> {
    let is_table = |command: &&String| command.starts_with("--example 06_learning_rates ");
    let command = sources.recorded.keys().find(is_table).context("no table")?;
    let mut most = 0f64;
    for row in sources.recorded[command]
        .lines()
        .filter(|line| line.starts_with("0."))
    {
        let row = row.split_whitespace().filter_map(|n| n.parse().ok());
        let row: Vec<f64> = row.collect();
        most = most.max((row[1] - row[2]).abs());
    }
    Ok(vec![format!(
        "their accuracies differ by at most {most:.2}"
    )])
}

/// Figures that are no record of this project: the book's, the tutorial's, and settings of a cell below them.
fn given(page: &str) -> impl Iterator<Item = String> {
    let given: &[&str] = match page {
        "../README" => &["0.91 on one GPU and 0.73 on two"],
        "measurements" => &["The goal for both networks was 0.1%"],
        "README" => &["60, 80 and 15 ms"],
        "multiple-gpus" => &[
            "MXNet | test acc: 0.85, 2.5 sec/epoch | test acc: 0.84, 4.9 sec/epoch",
            "PyTorch | test acc: 0.84, 2.6 sec/epoch | test acc: 0.83, 2.6 sec/epoch",
        ],
        "multiple-gpus-concise" => &[
            "MXNet | test acc: 0.93, 13.2 sec/epoch | test acc: 0.92, 7.3 sec/epoch",
            "test acc: 0.91, 12.2 sec/epoch | test acc: 0.73, 7.5 sec/epoch",
            "see PyTorch's 0.73",
        ],
        "communication" => &[
            "each with a link of 16 GB/s",
            "= 50 µs and `code` = 1.25 GB/s",
            "= 10 µs and `code` = 16 GB/s",
            "fills 90% of the first GPU's memory and 50% of the others'",
        ],
        "solutions" => &[
            "The book's MXNet run takes 13.2 s",
            "but only 2% for",
            "a latency of 10 ms and a bandwidth of 1 GB/s",
        ],
        _ => &[],
    };
    given.iter().map(|quote| quote.to_string())
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
struct Sources {
    cpu: Report,
    allreduce: Report,
    pytorch: Report,
    time_to_accuracy: Report,
    /// What programs printed on the real data, by their command.
    recorded: BTreeMap<String, String>,
    /// What cells printed, by their page.
    printed: BTreeMap<String, String>,
    /// A test that kills a run.
    kills: String,
}

impl Sources {
    fn read(book: &Book) -> Result<Self> {
        let read = |file: &str| fs::read_to_string(book.root.join(file)).context(file.to_owned());
        let report = |name: &str| read(&format!("benches/results/{name}.md")).map(Report);
        let mut printed = BTreeMap::<String, String>::new();
        for page in book.chapters(None)? {
            for piece in book.chapter(&page)?.pieces {
                if let Kind::Output(_) = piece.kind {
                    *printed.entry(page.clone()).or_default() += &piece.body;
                }
            }
        }
        Ok(Self {
            cpu: report("cpu")?,
            allreduce: report("allreduce")?,
            pytorch: report("pytorch")?,
            time_to_accuracy: report("time_to_accuracy")?,
            recorded: book.recorded()?,
            printed,
            kills: read("tests/claims/runs_are_taken_up.rs")?,
        })
    }

    /// What a program printed last.
    fn last_line(&self, command: &str) -> Result<String> {
        let text = self.recorded.get(command).context(command.to_owned())?;
        let line = text.lines().rfind(|line| !line.starts_with("```"));
        Ok(line.context("nothing is recorded")?.to_owned())
    }

    /// The seconds of all epochs of a run.
    fn seconds(&self, command: &str) -> Result<f64> {
        let run = Epochs::of_command(&self.recorded, command)?;
        Ok(run.seconds.iter().sum())
    }

    /// The run of a command, and those with other seeds.
    fn runs(&self, command: &str) -> Vec<Epochs> {
        let is_one = |of: &str| of == command || of.starts_with(&format!("{command} --seed "));
        let all = self.recorded.iter().filter(|(of, _)| is_one(of));
        all.filter_map(|(_, text)| Epochs::of(text).ok()).collect()
    }

    /// The last epoch and the best, over the seeds: `0.733 to 0.840, mean 0.814`.
    fn seeds(&self, k: usize) -> Result<(String, String)> {
        let gpus = if k == 2 {
            String::new()
        } else {
            format!(" --gpus {k}")
        };
        let command = format!("{SEEDS}{gpus}");
        let text = self.recorded.get(&command).context(command)?;
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::to_owned)
                .with_context(|| format!("no {name:?} in {text:?}"))
        };
        Ok((of("last epoch: ")?, of("best epoch: ")?))
    }

    /// The number behind some words that a cell of the page printed.
    fn printed(&self, page: &str, words: &str) -> Result<f64> {
        let text = self.printed.get(page).context(page.to_owned())?;
        let found = text.lines().find_map(|line| line.strip_prefix(words));
        let found = found.with_context(|| format!("no cell prints {words:?}"))?;
        Ok(found.trim().parse()?)
    }

    /// How often the test kills LeNet's run.
    fn kills(&self) -> Result<usize> {
        let rest = self.kills.split("kills(&runs, times(").nth(1);
        let count = rest.and_then(|rest| rest.split(')').next());
        Ok(count.context("no kills")?.parse()?)
    }
}

/// A report of `benches/results`.
struct Report(String);

impl Report {
    /// The lines of the sections with a heading that begins with `heading`.
    fn lines(&self, heading: &str) -> impl Iterator<Item = &str> {
        let sections = self.0.split("\n## ");
        let sections = sections.filter(move |section| section.starts_with(heading));
        sections.flat_map(str::lines)
    }

    /// The row that begins with `row`, without this beginning, in the sections under `heading`.
    fn row(&self, heading: &str, row: &str) -> Result<Row<'_>> {
        let start = format!("| {row} | ");
        let line = self
            .lines(heading)
            .find_map(|line| line.strip_prefix(&start));
        let line = line.with_context(|| format!("the report has no {row:?} under {heading:?}"))?;
        Ok(Row::of(line))
    }

    /// The rows under `heading` that begin with a number.
    fn rows(&self, heading: &str) -> Vec<Row<'_>> {
        let rows = self
            .lines(heading)
            .filter_map(|line| line.strip_prefix("| "));
        let rows = rows.filter(|row| row.starts_with(|c: char| c.is_ascii_digit()));
        rows.map(Row::of).collect()
    }

    /// The fewest milliseconds of a step among the rows with a name that begins with `name`.
    fn fastest(&self, step: &str, name: &str, threads: usize) -> Result<&str> {
        let rows = self.lines(step).filter_map(|line| line.strip_prefix("| "));
        let rows = rows.filter_map(|line| line.strip_prefix(name)).map(Row::of);
        let rows = rows.filter(|row| row.0[1] == threads.to_string());
        let times = rows.map(|row| Ok((row.number(2)?, row.text(2)?)));
        let times = times.collect::<Result<Vec<_>>>()?.into_iter();
        let fastest = times.min_by(|(a, _), (b, _)| a.total_cmp(b));
        let none = || format!("no {name} with {threads} threads under {step:?}");
        Ok(fastest.with_context(none)?.1)
    }

    /// The mean, the smallest and the largest accuracy, and the median of the seconds, of the rows that begin with `runs`.
    fn seeds(&self, runs: &str) -> Result<String> {
        let start = format!("| {runs} | ");
        let rows = self.0.lines().filter_map(|line| line.strip_prefix(&start));
        let rows: Vec<Row> = rows.map(Row::of).collect();
        let sorted = |column| -> Result<Vec<f64>> {
            let mut all: Vec<f64> = rows
                .iter()
                .map(|row| row.number(column))
                .collect::<Result<_>>()?;
            all.sort_by(f64::total_cmp);
            Ok(all)
        };
        let (accuracies, seconds) = (sorted(1)?, sorted(2)?);
        let [first, .., last] = accuracies[..] else {
            bail!("no two seeds of {runs}");
        };
        let mean = accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        let seconds = seconds[seconds.len() / 2];
        Ok(format!(
            "{mean:.4} ({first:.4} to {last:.4}) | {seconds:.1}"
        ))
    }

    /// The largest difference in a column of `pytorch.md`, over the seeds and devices.
    fn worst(&self, network: &str, rows: &str, column: usize) -> Result<f64> {
        let all = self.0.lines();
        let all = all.filter(|line| line.starts_with(&format!("| {network} |")));
        let all = all.filter_map(|line| Some(Row::of(line.split_once(rows)?.1)));
        let all = all.map(|row| row.number(row.0.len() - 3 + column));
        let all = all.collect::<Result<Vec<f64>>>()?.into_iter();
        all.reduce(f64::max).context(network.to_owned())
    }

    /// The losses of 20 steps: how far Winograd moves them, and how far a change in the last place does.
    fn rounding(&self, network: &str) -> Result<(&str, &str)> {
        let row = self.row("Losses with Winograd", network)?;
        Ok((row.text(1)?, row.text(2)?))
    }
}

/// The first word of each cell.
struct Row<'a>(Vec<&'a str>);

impl<'a> Row<'a> {
    fn of(line: &'a str) -> Self {
        let line = line.trim_end().trim_end_matches('|');
        let first = |cell: &'a str| cell.split_whitespace().next().unwrap_or_default();
        Self(line.split('|').map(first).collect())
    }

    fn text(&self, i: usize) -> Result<&'a str> {
        let cell = self.0.get(i).copied();
        cell.with_context(|| format!("no cell {i} in {:?}", self.0))
    }

    fn number(&self, i: usize) -> Result<f64> {
        let text = self.text(i)?;
        text.parse().with_context(|| format!("{text:?}"))
    }
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
