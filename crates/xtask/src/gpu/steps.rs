//! Steps and epochs on a GPU beside PyTorch's, in turn.

use std::env;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

use super::{Options, facts};
use crate::bench::contender::{Contender, Family};
use crate::bench::rounds::{Plan, Row, measure};
use crate::bench::stats::{Summary, short};
use crate::bench::work::Work;

/// A comparison: ours beside the modes of PyTorch, and the bar for each of these.
struct Comparison {
    what: &'static str,
    work: &'static str,
    /// `--epoch`, or nothing.
    how: Option<&'static str>,
    /// Of ours.
    precision: &'static str,
    replicas: &'static [usize],
    /// PyTorch / ours, by mode.
    bars: &'static [(&'static str, Option<f64>)],
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        what: "LeNet, batch 256, a whole epoch, images on the GPU",
        work: "lenet-256",
        how: Some("--epoch"),
        precision: "tf32",
        replicas: &[1],
        bars: &[("eager", Some(5.0))],
    },
    Comparison {
        what: "LeNet, batch 256, a step",
        work: "lenet-256",
        how: None,
        precision: "tf32",
        replicas: &[1, 2],
        bars: &[
            ("eager", None),
            ("graph", Some(1.0)),
            ("compile", Some(1.0)),
        ],
    },
    Comparison {
        what: "ResNet-18, batch 256, TF32, a step",
        work: "resnet18-256",
        how: None,
        precision: "tf32",
        replicas: &[1, 2],
        bars: &[
            ("eager", Some(1.2)),
            ("eager-tuned", None),
            ("compile", None),
        ],
    },
    Comparison {
        what: "ResNet-18, batch 256, bf16, a step",
        work: "resnet18-256",
        how: None,
        precision: "bf16",
        replicas: &[1, 2],
        bars: &[("compile-bf16", Some(1.0))],
    },
];

/// Measures everything, and adds each table to the report as soon as it is complete. The row of a contender
/// that cannot start has its error message.
pub fn all(options: &Options, found: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let script = Path::new("benches/pytorch_gpu.py");
    ensure!(
        script.is_file(),
        "{} is not here: start this in the project's folder",
        script.display()
    );
    found("\n## Steps\n")?;
    let ceilings = Ceilings::measure(&options.python, script);
    match &ceilings {
        Ok(of) => found(&of.said())?,
        Err(error) => found(&format!("\nThe ceilings are unknown: {error:#}\n"))?,
    }
    for comparison in &COMPARISONS {
        found(&comparison.table(options, script, ceilings.as_ref().ok())?)?;
    }
    Ok(())
}

/// The most that the GPU does, as PyTorch measures it.
struct Ceilings {
    /// GB/s of a copy, reads and writes.
    copy: f64,
    /// TFLOP/s of large matrices.
    tf32: f64,
    bf16: f64,
}

impl Ceilings {
    fn measure(python: &Path, script: &Path) -> Result<Self> {
        let [copy, tf32, bf16] = numbers(Command::new(python).arg(script).arg("ceilings"))?;
        Ok(Self { copy, tf32, bf16 })
    }

    fn said(&self) -> String {
        let Self { copy, tf32, bf16 } = self;
        format!(
            "\nCeilings: a copy moves {copy:.0} GB/s; a product of large matrices reaches {tf32:.0} TFLOP/s in TF32 \
             and {bf16:.0} in bf16. The column \"matrix, copy\" has the shares of these rates that a step reaches. \
             The first counts the FLOPs of the convolutions and linear layers. The second counts the least bytes: \
             the output of each layer and its gradient, written and read once, and the parameters, moved five \
             times.\n"
        )
    }

    /// The shares of the matrix rate and of the copy that a step of so many milliseconds reaches.
    fn shares(&self, work: &Work, precision: &str, milliseconds: f64) -> String {
        let (rate, size) = match precision {
            "bf16" => (self.bf16, 2),
            _ => (self.tf32, 4),
        };
        let seconds = milliseconds / 1e3;
        let matrix = work.flops() / seconds / (rate * 1e12);
        let copy = work.bytes(size) / seconds / (self.copy * 1e9);
        format!("{:.1}%, {:.1}%", 100.0 * matrix, 100.0 * copy)
    }
}

impl Comparison {
    fn contenders(
        &self,
        options: &Options,
        script: &Path,
        how: Option<&str>,
    ) -> Result<Vec<Contender>> {
        let me = env::current_exe()?;
        let script = script.to_string_lossy().into_owned();
        let mut all = Vec::new();
        for k in self.replicas {
            let (count, s) = (k.to_string(), if *k == 1 { "" } else { "s" });
            let mut args = vec!["contend-gpu", "--replicas", &count];
            args.extend(["--precision", self.precision]);
            args.extend(how);
            let name = format!("ours, {k} replica{s}");
            all.push(Contender::new(Family::Ours, &name, 1, &me).args(&args));
        }
        for (mode, _) in self.bars {
            let name = format!("PyTorch {mode}");
            let contender = Contender::new(Family::Pytorch, &name, 1, &options.python);
            let contender = contender.args(&[&script, mode]);
            all.push(contender.last_args(how.as_slice()));
        }
        Ok(all)
    }

    fn table(
        &self,
        options: &Options,
        script: &Path,
        ceilings: Option<&Ceilings>,
    ) -> Result<String> {
        let work: Work = self.work.parse()?;
        let plan = Plan {
            rounds: options.rounds,
            seconds: f64::INFINITY,
            warm_up: if self.how.is_some() { 1 } else { 20 },
            most_steps: 2000,
            live_on: true,
        };
        let mut text = format!(
            "\n### {}\n\n| | ms | from – to | this / ours | bar | matrix, copy | MiB | host busy, ms |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|\n",
            self.what
        );
        // a contender that cannot start has a row with its error, and is not timed
        let (mut able, mut unable) = (Vec::new(), Vec::new());
        for contender in self.contenders(options, script, Some("--alone"))? {
            match alone(&contender, &work) {
                Ok(found) => able.push((contender.name, found)),
                Err(error) => unable.push(format!("| {} | {error:#} |\n", contender.name)),
            }
        }
        let mut contenders = self.contenders(options, script, self.how)?;
        contenders.retain(|c| able.iter().any(|(name, _)| *name == c.name));
        let rows = measure(&work, &contenders, &plan)?;
        let ours = rows.iter().find(|row| is_one_replica(row));
        let ours = ours.context("ours could not start")?;
        for (row, (_, alone)) in rows.iter().zip(&able) {
            // an epoch is more than its steps
            let ceilings = ceilings.filter(|_| self.how.is_none());
            self.line(&mut text, (row, ours), *alone, (&work, ceilings));
        }
        unable.iter().for_each(|line| text += line);
        let theirs = rows.last().map_or("", |row| row.version.as_str());
        let _ = writeln!(text, "\n{}; {theirs}", ours.version);
        Ok(text)
    }

    fn line(
        &self,
        text: &mut String,
        (row, ours): (&Row, &Row),
        [mib, busy]: [f64; 2],
        (work, ceilings): (&Work, Option<&Ceilings>),
    ) {
        let times = Summary::of(&row.times);
        let ratio = times.median / Summary::of(&ours.times).median;
        let name = &row.contender.name;
        let mode = |(mode, _): &&(&str, Option<f64>)| name == &format!("PyTorch {mode}");
        let bar = match name.starts_with("ours, 2") {
            true => "≤ 1.1".to_owned(),
            false => {
                let bar = self.bars.iter().find(mode).and_then(|(_, bar)| *bar);
                bar.map_or(String::new(), |bar| format!("≥ {bar}"))
            }
        };
        let shares = ceilings.map(|of| of.shares(work, self.precision, times.median));
        let (min, max) = (times.min, times.max);
        let _ = writeln!(
            text,
            "| {name} | {:.4} | {min:.4} – {max:.4} | {} | {bar} | {} | {mib:.0} | {busy:.3} |",
            times.median,
            short(ratio),
            shares.unwrap_or_default()
        );
    }
}

/// Whether it is a step of ours with one replica.
fn is_one_replica(row: &Row) -> bool {
    row.contender.family == Family::Ours && row.contender.name.starts_with("ours, 1")
}

/// The MiB of the GPU that a contender takes when it runs alone, and the milliseconds for which a step
/// keeps the host busy.
fn alone(contender: &Contender, work: &Work) -> Result<[f64; 2]> {
    let before = facts::used_mib()?;
    let [mib, busy] = numbers(&mut contender.command(work))?;
    Ok([mib - before, busy])
}

/// The `N` numbers that a program prints; if it prints anything else, its last line on stderr is the error.
fn numbers<const N: usize>(program: &mut Command) -> Result<[f64; N]> {
    let output = program.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = said.split_whitespace().map(str::parse);
    let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().unwrap_or_default();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().last().unwrap_or("no error message");
    numbers.try_into().map_err(|_| anyhow!("{last}"))
}
