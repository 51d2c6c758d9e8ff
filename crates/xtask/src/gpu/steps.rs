//! Steps and epochs on a GPU beside PyTorch's, in turn.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

use super::facts;
use super::options::{GpuOptions, Report};
use crate::bench::contender::Contender;
use crate::bench::rounds::{Effort, Row, measure};
use crate::bench::stats::{Summary, short};
use crate::bench::work::Work;

/// PyTorch's contender, from the project's folder.
const SCRIPT: &str = "benches/pytorch_gpu.py";

/// A comparison: ours beside the modes of PyTorch.
struct Comparison {
    what: &'static str,
    work: &'static str,
    /// `steps` or `epochs`.
    how: &'static str,
    /// Of ours.
    precision: &'static str,
    /// Numbers of replicas of ours, and the bar for this / ours.
    replicas: &'static [(usize, &'static str)],
    /// The modes of PyTorch, and the bar for each.
    modes: &'static [(&'static str, &'static str)],
}

const ONE_AND_TWO: &[(usize, &str)] = &[(1, ""), (2, "≤ 1.1")];

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        what: "LeNet, batch 256, a whole epoch, images on the GPU",
        work: "lenet-256",
        how: "epochs",
        precision: "tf32",
        replicas: &[(1, "")],
        modes: &[("eager", "≥ 5")],
    },
    Comparison {
        what: "LeNet, batch 256, a step",
        work: "lenet-256",
        how: "steps",
        precision: "tf32",
        replicas: ONE_AND_TWO,
        modes: &[("eager", ""), ("graph", "≥ 1"), ("compile", "≥ 1")],
    },
    Comparison {
        what: "ResNet-18, batch 256, TF32, a step",
        work: "resnet18-256",
        how: "steps",
        precision: "tf32",
        replicas: ONE_AND_TWO,
        modes: &[("eager", "≥ 1.2"), ("eager-tuned", ""), ("compile", "")],
    },
    Comparison {
        what: "ResNet-18, batch 256, bf16, a step",
        work: "resnet18-256",
        how: "steps",
        precision: "bf16",
        replicas: ONE_AND_TWO,
        modes: &[("compile-bf16", "≥ 1")],
    },
];

/// Measures everything, and adds each table to the report as soon as it is complete. The row of a contender
/// that cannot start has its error message.
pub fn all(options: &GpuOptions, report: &mut Report) -> Result<()> {
    ensure!(
        Path::new(SCRIPT).is_file(),
        "{SCRIPT} is not here: start this in the project's folder"
    );
    report.add("\n## Steps\n")?;
    let ceilings = Ceilings::measure(&options.python);
    match &ceilings {
        Ok(of) => report.add(&of.said())?,
        Err(error) => report.add(&format!("\nThe ceilings are unknown: {error:#}\n"))?,
    }
    for comparison in &COMPARISONS {
        report.add(&comparison.table(options, ceilings.as_ref().ok())?)?;
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
    fn measure(python: &Path) -> Result<Self> {
        let [copy, tf32, bf16] = numbers(Command::new(python).args([SCRIPT, "ceilings"]))?;
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

    /// The shares of the matrix rate and of the copy that a step of this many milliseconds reaches.
    fn shares(&self, work: &Work, precision: &str, milliseconds: f64) -> String {
        let (rate, size) = match precision {
            "bf16" => (self.bf16, 2),
            _ => (self.tf32, 4),
        };
        let seconds = milliseconds / 1e3;
        let matrix = work.flops().map_or("–".to_owned(), |flops| {
            format!("{:.1}%", 100.0 * flops / seconds / (rate * 1e12))
        });
        let copy = work.bytes(size).map_or("–".to_owned(), |bytes| {
            format!("{:.1}%", 100.0 * bytes / seconds / (self.copy * 1e9))
        });
        format!("{matrix}, {copy}")
    }
}

impl Comparison {
    /// The contenders, each with its bar.
    fn contenders(&self, python: &Path, how: &str) -> Result<Vec<(Contender, &'static str)>> {
        let me = env::current_exe()?;
        let ours = self.replicas.iter().map(|&(k, bar)| {
            let s = if k == 1 { "" } else { "s" };
            let name = format!("ours, {k} replica{s}");
            let k = k.to_string();
            let args = [
                "contend-gpu",
                "--replicas",
                &k,
                "--precision",
                self.precision,
                how,
            ];
            (Contender::new(&name, 1, &me, &args), bar)
        });
        let theirs = self.modes.iter().map(|&(mode, bar)| {
            let name = format!("PyTorch {mode}");
            let args = [SCRIPT, mode, how];
            (Contender::new(&name, 1, python, &args), bar)
        });
        Ok(ours.chain(theirs).collect())
    }

    fn table(&self, options: &GpuOptions, ceilings: Option<&Ceilings>) -> Result<String> {
        let is_epoch = self.how == "epochs";
        let work: Work = self.work.parse()?;
        let effort = Effort {
            rounds: options.rounds,
            seconds: f64::INFINITY,
            warm_up: if is_epoch { 1 } else { 20 },
            least_steps: 1,
            most_steps: 2000,
            live_on: true,
        };
        let mut text = format!(
            "\n### {}\n\n| | ms | from – to | this / ours | bar | matrix, copy | MiB | host busy, ms |\n\
             |---|--:|--:|--:|--:|--:|--:|--:|\n",
            self.what
        );
        // a contender that cannot start has a row with its error, and is not timed
        let mut able = Vec::new();
        let mut found = Vec::new();
        let mut unable = String::new();
        let [all, singles] = [self.how, "alone"].map(|how| self.contenders(&options.python, how));
        for ((contender, bar), (single, _)) in all?.into_iter().zip(singles?) {
            match alone(&single, &work) {
                Ok(numbers) => {
                    able.push(contender);
                    found.push((bar, numbers));
                }
                Err(error) => unable += &format!("| {} | {error:#} |\n", contender.name),
            }
        }
        let rows = measure(&work, &able, &effort)?;
        let ours = rows
            .iter()
            .find(|row| row.contender.name == "ours, 1 replica")
            .context("ours could not start")?;
        for (row, (bar, [mib, busy])) in rows.iter().zip(found) {
            let shares = match ceilings {
                Some(of) if !is_epoch => of.shares(&work, self.precision, row.median()),
                _ => String::new(), // an epoch is more than its steps
            };
            text += &format!(
                "| {} | {} | {shares} | {mib:.0} | {busy:.3} |\n",
                times(row, ours),
                bar
            );
        }
        let theirs = rows.last().map_or("", |row| row.version.as_str());
        Ok(text + &unable + &format!("\n{}; {theirs}\n", ours.version))
    }
}

/// The first cells of a row.
fn times(row: &Row, ours: &Row) -> String {
    let Summary {
        median, min, max, ..
    } = Summary::of(&row.times);
    let name = &row.contender.name;
    let ratio = short(median / ours.median());
    format!("{name} | {median:.4} | {min:.4} – {max:.4} | {ratio}")
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
    let numbers: Vec<f64> = said
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.lines().last().unwrap_or("no error message");
    numbers.try_into().map_err(|_| anyhow!("{last}"))
}
