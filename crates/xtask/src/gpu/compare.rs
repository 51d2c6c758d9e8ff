//! Steps on GPU 0 beside PyTorch's and those of other builds, each program in a process of its own, in turns.

use std::env;

use anyhow::{Result, ensure};

use super::options::GpuOptions;
use super::report::Report;
use crate::bench::contender::Contender;
use crate::bench::rounds::{Effort, measure};
use crate::bench::stats::Summary;

/// PyTorch's contender, from the project's folder.
const SCRIPT: &str = "benches/pytorch_gpu.py";

/// A step, its precision, and the modes of PyTorch that are compared with it.
const STEPS: [(&str, &str, &[&str]); 3] = [
    ("lenet-256", "tf32", &["eager", "graph", "compile"]),
    ("resnet18-256", "tf32", &["eager", "eager-tuned", "compile"]),
    ("resnet18-256", "bf16", &["compile-bf16"]),
];

const EFFORT: Effort = Effort {
    rounds: 3,
    seconds: f64::INFINITY,
    warm_up: 20,
    least_steps: 1,
    most_steps: 2000,
    live_on: true,
};

pub fn all(options: &GpuOptions, report: &mut Report) -> Result<()> {
    let me = env::current_exe()?;
    for (step, precision, modes) in STEPS {
        let ours = |program, name: &str, replicas, how: &[&str]| {
            let args = [
                &[
                    "contend-gpu",
                    "--replicas",
                    replicas,
                    "--precision",
                    precision,
                ],
                how,
            ]
            .concat();
            Contender::new(name, 1, program, &args)
        };
        let mut contenders = vec![
            ours(&me, "k = 1", "1", &[]),
            ours(&me, "k = 2", "2", &[]),
            ours(
                &me,
                "k = 1, cuDNN's first choice of algorithms",
                "1",
                &["--deterministic"],
            ),
        ];
        for program in &options.with {
            contenders.push(ours(
                program,
                &format!("k = 1, {}", program.display()),
                "1",
                &[],
            ));
        }
        if let Some(python) = &options.python {
            for mode in modes {
                contenders.push(Contender::new(
                    &format!("PyTorch {mode}"),
                    1,
                    python,
                    &[SCRIPT, mode],
                ));
            }
        }
        // one that cannot do its first step has a row with its error, and the others are measured
        let mut able = Vec::new();
        for contender in contenders {
            match measure(
                &step.parse()?,
                std::slice::from_ref(&contender),
                &Effort {
                    rounds: 1,
                    ..EFFORT
                },
            ) {
                Ok(_) => able.push(contender),
                Err(error) => report.row(
                    &format!("{step}, {precision}, {}", contender.name),
                    &format!("{error:#}"),
                )?,
            }
        }
        let rows = measure(&step.parse()?, &able, &EFFORT)?;
        ensure!(!rows.is_empty(), "no program could do a step");
        for row in &rows {
            let ms = Summary::of(&row.times);
            let times = ms.median / rows[0].median();
            let what = format!("{step}, {precision}, {}", row.contender.name);
            let found = format!("{ms} ms, {times:.2} of the first row; {}", row.version);
            report.row(&what, &found)?;
        }
    }
    Ok(())
}
