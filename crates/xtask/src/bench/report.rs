//! The report as Markdown: the tables, and when, where and how they were measured.

use std::cmp::Reverse;

use super::contender::{Contender, Tables};
use super::machine::{Spent, circumstances};
use super::rounds::Row;
use super::stats::{Summary, short};
use super::work::{COUNTED, Work};

/// A kind of step with the rows of all contenders.
pub type Measured = (Work, Vec<Row>);

/// The time of an example with the fastest PyTorch mode in bf16 or in float32 with as many threads, divided by the
/// contender's; a dash without PyTorch.
fn ratio(row: &Row, rows: &[&Row], bf16: bool) -> String {
    let threads = row.contender.threads;
    let is_other = |r: &&&Row| r.contender.is_pytorch(bf16) && r.contender.threads == threads;
    let pytorch = rows.iter().filter(is_other).copied();
    let of_example = |row: &Row| row.median() / row.contender.times as f64;
    let best = pytorch.map(of_example).min_by(f64::total_cmp);
    best.map_or("–".to_owned(), |best| short(best / of_example(row)))
}

const HEAD: &str = "\
| | threads | ms | from – to | rounds | PyTorch / this | bf16 / this | GFLOP/s | cores busy | memory, MiB |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

const HEAD_OF_DEVICES: &str = "\
| | devices | examples | ms | from – to | examples/sec | speed-up | lowest – highest | in each round | efficiency | PyTorch / this |
|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|
";

const DEVICES_EXPLAINED: &str = "\
A device is one core. Speed-up: the examples per second, divided by those of the same program on one device in the \
same round; the median over the rounds, the lowest and the highest, and that of each round. Efficiency: the median \
speed-up divided by the devices. With the same examples that is strong scaling, with more of them weak scaling. \
PyTorch / this: the time of an example with PyTorch's fastest mode on as many devices, divided by that of this row. On \
several devices PyTorch is DistributedDataParallel (gloo, one process for each device). A program that is also in a \
table below is the same measurement there.
";

const EXPLAINED: &str = "\
ms: the median over the rounds; the time of a round is the median of its steps, of ResNet-18 with more than 128 images \
one step. From – to: the fastest and the \
slowest round. PyTorch / this: the time of the fastest float32 mode of PyTorch with as many threads, divided by the \
time of this row; above 1 is faster than PyTorch. Bf16 / this: the same of PyTorch's fastest bf16 mode \
(`torch.autocast`). Cores busy: processor time divided by elapsed time. Memory: the peak of \
the process.";

/// All of it: the number of cores for each program, the tables of each step, and the section of the losses.
pub fn markdown(threads: usize, measured: &[Measured], losses: &str) -> String {
    let rows = || measured.iter().flat_map(|(_, rows)| rows);
    let mut versions: Vec<&str> = rows().map(|row| row.version.as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let worst = measured
        .iter()
        .map(|(_, rows)| other_cores(rows))
        .reduce(f64::max)
        .unwrap_or(f64::NAN);
    let head = circumstances(threads, &versions.join(", "), worst);
    let mut on_devices = String::new();
    let mut programs = String::new();
    for (work, rows) in measured {
        let rows_in = |is_in: fn(&Tables) -> bool| {
            rows.iter()
                .filter(|row| is_in(&row.contender.tables))
                .collect::<Vec<&Row>>()
        };
        let compared = rows_in(|tables| tables.devices);
        if !compared.is_empty() {
            on_devices += &format!("\n## On devices of one core: {work}\n\n{HEAD_OF_DEVICES}");
            let lines = compared
                .iter()
                .map(|row| line_of_devices(work, row, &compared));
            on_devices.extend(lines);
        }
        let mut listed = rows_in(|tables| tables.programs);
        if !listed.is_empty() {
            listed.sort_by_key(|row| Reverse(row.contender.threads)); // in the same order otherwise
            programs += &format!("\n## {work}\n\n");
            if let Some(flops) = work.flops() {
                programs += &format!("One step is {} GFLOP.\n\n", short(flops / 1e9));
            }
            programs += HEAD;
            programs.extend(listed.iter().map(|row| line(work, row, &listed)));
        }
    }
    if !on_devices.is_empty() {
        on_devices += &format!("\n{DEVICES_EXPLAINED}");
    }
    if !programs.is_empty() {
        programs += &format!("\n{EXPLAINED} {COUNTED}\n");
    }
    format!("# Training on the CPU\n\n{head}{on_devices}{programs}{losses}")
}

/// The most cores that did other work while a contender was timed. The system's clock is too coarse for less than two
/// seconds; contenders that were timed for less are taken together.
fn other_cores(rows: &[Row]) -> f64 {
    let (long, brief): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.spent.seconds >= 2.0);
    let together = Spent::total(brief.iter().map(|row| &row.spent));
    long.iter()
        .map(|row| row.spent.other_cores())
        .chain((!brief.is_empty()).then(|| together.other_cores()))
        .reduce(f64::max)
        .unwrap_or(f64::NAN)
}

fn line(work: &Work, row: &Row, rows: &[&Row]) -> String {
    let Contender { name, threads, .. } = &row.contender;
    let times = Summary::of(&row.times);
    let [ms, min, max] = [times.median, times.min, times.max].map(short);
    let [pytorch, bf16] = [false, true].map(|bf16| ratio(row, rows, bf16));
    let count = times.count;
    let gflops = |flops| format!("{:.0}", flops / times.median / 1e6);
    let gflops = work.flops().map_or("–".to_owned(), gflops);
    let cores = row.spent.cores();
    let memory = row.memory;
    format!(
        "| {name} | {threads} | {ms} | {min} – {max} | {count} | {pytorch} | {bf16} | {gflops} | \
         {cores:.1} | {memory:.0} |\n"
    )
}

fn line_of_devices(work: &Work, row: &Row, rows: &[&Row]) -> String {
    let times = Summary::of(&row.times);
    let k = row.contender.threads;
    let batch = |row: &Row| row.contender.work(work).batch as f64;
    let is_on_one = |other: &&&Row| {
        other.contender.threads == 1
            && other.contender.without_devices() == row.contender.without_devices()
    };
    let speed_up = match rows.iter().find(is_on_one) {
        None => "– | – | – | –".to_owned(),
        Some(one) => {
            let rounds = one.times.iter().zip(&row.times);
            let examples = batch(row) / batch(one);
            let ratios = rounds.map(|(of_one, ms)| examples * of_one / ms);
            speed_up(&ratios.collect::<Vec<f64>>(), k)
        }
    };
    let rate = 1e3 * batch(row) / row.median();
    let [ms, min, max, rate] = [times.median, times.min, times.max, rate].map(short);
    let name = &row.contender.name;
    let examples = batch(row);
    let pytorch = ratio(row, rows, false);
    format!(
        "| {name} | {k} | {examples} | {ms} | {min} – {max} | {rate} | {speed_up} | {pytorch} |\n"
    )
}

/// The cells of the ratios of the rounds: a slow phase of the machine affects both times of a round, and not their ratio.
fn speed_up(ratios: &[f64], devices: usize) -> String {
    let all = Summary::of(ratios);
    let [median, min, max, efficiency] =
        [all.median, all.min, all.max, all.median / devices as f64].map(short);
    let each: Vec<String> = ratios.iter().map(|ratio| short(*ratio)).collect();
    format!(
        "{median} | {min} – {max} | {} | {efficiency}",
        each.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn devices_are_compared_with_one() -> anyhow::Result<()> {
        let row = |name: &str, threads, times, ms: &[f64]| {
            let mut row = Row::new(&Contender::new(name, threads, Path::new(""), &[]));
            row.contender.times = times;
            row.times = ms.to_vec();
            row
        };
        let rows = [
            // the machine was slow in the third round
            row("ours, 1 replica", 1, 1, &[100.0, 90.0, 210.0]),
            row("ours, 2 replicas", 2, 1, &[62.5, 60.0, 140.0]),
            row("ours, 2 replicas", 2, 2, &[100.0, 100.0, 200.0]),
            row("PyTorch eager", 1, 1, &[300.0]),
            row("PyTorch ddp, eager", 2, 1, &[200.0]),
            row("PyTorch bf16, eager", 2, 1, &[10.0]), // another precision
        ];
        let work = "lenet-64".parse()?;
        let ends = [
            "| 64 | 100 | 90.0 – 210 | 640 | 1.00 | 1.00 – 1.00 | 1.00, 1.00, 1.00 | 1.00 | 3.00 |",
            "| 64 | 62.5 | 60.0 – 140 | 1024 | 1.50 | 1.50 – 1.60 | 1.60, 1.50, 1.50 | 0.75 | 3.20 |",
            "| 128 | 100 | 100 – 200 | 1280 | 2.00 | 1.80 – 2.10 | 2.00, 1.80, 2.10 | 1.00 | 4.00 |",
            "| 64 | 300 | 300 – 300 | 213 | 1.00 | 1.00 – 1.00 | 1.00 | 1.00 | 1.00 |",
            "| 64 | 200 | 200 – 200 | 320 | 1.50 | 1.50 – 1.50 | 1.50 | 0.75 | 1.00 |",
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        for (row, end) in rows.iter().zip(ends) {
            let line = line_of_devices(&work, row, &rows);
            assert!(line.trim_end().ends_with(end), "{line}");
        }
        Ok(())
    }
}
