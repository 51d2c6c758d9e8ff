//! Steps and epochs on a GPU beside PyTorch's, in turn.

use std::env;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Options;
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
    replicas: &'static [usize],
    /// PyTorch / ours, by mode.
    bars: &'static [(&'static str, Option<f64>)],
}

const COMPARISONS: [Comparison; 3] = [
    Comparison {
        what: "LeNet, batch 256, a whole epoch, images on the GPU",
        work: "lenet-256",
        how: Some("--epoch"),
        replicas: &[1],
        bars: &[("eager", Some(5.0))],
    },
    Comparison {
        what: "LeNet, batch 256, a step",
        work: "lenet-256",
        how: None,
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
        replicas: &[1, 2],
        bars: &[
            ("eager", Some(1.2)),
            ("compile", None),
            ("compile-bf16", None),
        ],
    },
];

/// The part of the report.
pub fn all(options: &Options) -> Result<String> {
    let script = Path::new("benches/pytorch_gpu.py");
    ensure!(
        script.is_file(),
        "{} is not here: start this in the project's folder",
        script.display()
    );
    let mut text = String::from("\n## Steps\n");
    for comparison in &COMPARISONS {
        text += &comparison.table(options, script)?;
    }
    Ok(text)
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
            args.extend(how);
            let name = format!("ours, {k} replica{s}");
            all.push(Contender::new(Family::Ours, &name, 1, &me).args(&args));
        }
        for (mode, _) in self.bars {
            let name = format!("PyTorch {mode}");
            let mut contender = Contender::new(Family::Pytorch, &name, 1, &options.python);
            contender = contender.args(&[&script, mode]);
            all.push(match how {
                Some(how) => contender.last_args(&[how]),
                None => contender,
            });
        }
        Ok(all)
    }

    fn table(&self, options: &Options, script: &Path) -> Result<String> {
        let work: Work = self.work.parse()?;
        let plan = Plan {
            rounds: options.rounds,
            seconds: f64::INFINITY,
            warm_up: if self.how.is_some() { 1 } else { 20 },
            most_steps: 2000,
            live_on: true,
        };
        let rows = measure(&work, &self.contenders(options, script, self.how)?, &plan)?;
        let alone = match self.how {
            Some(_) => vec![None; rows.len()],
            None => {
                let contenders = self.contenders(options, script, Some("--alone"))?;
                let alone = contenders.iter().map(|c| alone(c, &work).map(Some));
                alone.collect::<Result<_>>()?
            }
        };
        let ours = rows.first().context("nobody was measured")?;
        let mut text = format!(
            "\n### {}\n\n| | ms | from – to | this / ours | bar | MiB | host busy |\n\
             |---|--:|--:|--:|--:|--:|--:|\n",
            self.what
        );
        for (row, alone) in rows.iter().zip(alone) {
            self.line(&mut text, row, ours, alone);
        }
        let versions: Vec<&str> = rows.iter().map(|row| row.version.as_str()).collect();
        let _ = writeln!(
            text,
            "\n{}; {}",
            ours.version,
            versions.last().unwrap_or(&"")
        );
        Ok(text)
    }

    fn line(&self, text: &mut String, row: &Row, ours: &Row, alone: Option<[f64; 2]>) {
        let times = Summary::of(&row.times);
        let ratio = times.median / Summary::of(&ours.times).median;
        let name = &row.contender.name;
        let mode = |(mode, _): &&(&str, Option<f64>)| name == &format!("PyTorch {mode}");
        let bar = self.bars.iter().find(mode).and_then(|(_, bar)| *bar);
        let bar = bar.map_or(String::new(), |bar| format!("≥ {bar}"));
        let [mib, busy] = alone.map_or([String::new(), String::new()], |[mib, busy]| {
            [format!("{mib:.0}"), format!("{:.0}%", 100.0 * busy)]
        });
        let (min, max) = (times.min, times.max);
        let _ = writeln!(
            text,
            "| {name} | {:.4} | {min:.4} – {max:.4} | {} | {bar} | {mib} | {busy} |",
            times.median,
            short(ratio)
        );
    }
}

/// The MiB of the GPU that a contender takes when nobody else is there, and the share of the time for
/// which it keeps the host busy.
fn alone(contender: &Contender, work: &Work) -> Result<[f64; 2]> {
    let output = contender.command(work).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers = said.split_whitespace().map(str::parse);
    let numbers: Vec<f64> = numbers.collect::<Result<_, _>>().unwrap_or_default();
    let name = &contender.name;
    let why = String::from_utf8_lossy(&output.stderr);
    numbers
        .try_into()
        .map_err(|_| anyhow::anyhow!("{name} alone: {why}"))
}
