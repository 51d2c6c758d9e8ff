//! Steps on GPU 0 beside PyTorch's and those of other builds, each program in a process of its own, in turns.

use std::env;
use std::slice::from_ref;

use anyhow::{Result, ensure};

use super::options::GpuOptions;
use super::report::Report;
use crate::bench::contender::Contender;
use crate::bench::rounds::{Effort, measure};
use crate::bench::stats::Summary;
use crate::bench::work::Work;

/// PyTorch's contender, from the project's folder.
const SCRIPT: &str = "benches/pytorch_gpu.py";

/// A step, its precision, and the modes of PyTorch that are compared with it.
const STEPS: [(&str, &str, &[&str]); 3] = [
    ("lenet-256", "tf32", &["eager", "graph", "compile"]),
    ("resnet18-256", "tf32", &["eager", "eager-tuned", "compile"]),
    ("resnet18-256", "bf16", &["compile-bf16"]),
];

fn effort(rounds: usize) -> Effort {
    Effort {
        rounds,
        seconds: f64::INFINITY,
        warm_up: 20,
        least_steps: 1,
        most_steps: 2000,
        live_on: true,
    }
}

pub fn all(options: &GpuOptions, report: &mut Report) -> Result<()> {
    for (step, precision, modes) in STEPS {
        let work: Work = step.parse()?;
        let what = |contender: &Contender| format!("{step}, {precision}, {}", contender.name);
        // one that cannot do its first step has a row with its error, and the others are measured
        let mut able = Vec::new();
        for contender in contenders(options, precision, modes)? {
            match measure(&work, from_ref(&contender), &effort(1)) {
                Ok(_) => able.push(contender),
                Err(error) => report.row(&what(&contender), &format!("{error:#}"))?,
            }
        }
        let rows = measure(&work, &able, &effort(3))?;
        ensure!(!rows.is_empty(), "no program could do a step");
        for row in &rows {
            let ms = Summary::of(&row.times);
            let times = ms.median / rows[0].median();
            let found = format!("{ms} ms, {times:.2} of the first row; {}", row.version);
            report.row(&what(&row.contender), &found)?;
        }
    }
    Ok(())
}

/// This program first.
fn contenders(options: &GpuOptions, precision: &str, modes: &[&str]) -> Result<Vec<Contender>> {
    let me = env::current_exe()?;
    let ours = |program, name: &str, how: &[&str]| {
        let args = ["contend", "--device", "cuda", "--precision", precision];
        Contender::new(name, 1, program, &[&args, how].concat())
    };
    let one = ["--replicas", "1"];
    let first_choice = ["--replicas", "1", "--deterministic"];
    let mut all = vec![
        ours(&me, "k = 1", &one),
        ours(&me, "k = 2", &["--replicas", "2"]),
        ours(
            &me,
            "k = 1, cuDNN's first choice of algorithms",
            &first_choice,
        ),
    ];
    for program in &options.with {
        all.push(ours(
            program,
            &format!("k = 1, {}", program.display()),
            &one,
        ));
    }
    for (python, mode) in options
        .python
        .iter()
        .flat_map(|p| modes.iter().map(move |m| (p, m)))
    {
        let name = format!("PyTorch {mode}");
        all.push(Contender::new(&name, 1, python, &[SCRIPT, mode]));
    }
    Ok(all)
}
