//! The program: runs a step, or counts the memory of a step's replicas.

use std::num::NonZeroUsize;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use candle_core::Var;
use collective::{GroupOptions, Member, group};
use functional::{Gradients, Sgd};

use crate::{
    Job, Minibatch, flat, gradients_sharded, on_threads, optimizer_sharded, overlap, page,
    parameters_sharded, parts, processes, sync_bn,
};

/// The steps by name; [`processes`] and the later ones can have replicas in several processes.
pub const STEPS: [&str; 9] = [
    "page",
    "flat",
    "parts",
    "overlap",
    "sync_bn",
    "processes",
    "optimizer_sharded",
    "gradients_sharded",
    "parameters_sharded",
];

const USAGE: &str = "give a step, the number of replicas and of minibatches, as in `overlap 2 20`; or `memory`. The steps";

/// Bytes of the whole process: allocated now, and the most so far.
pub type Memory = fn() -> [usize; 2];

/// Runs the program.
///
/// # Errors
/// If the arguments are no step, or the step fails.
pub fn run(args: &[String], memory: Memory) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["memory"] => table(),
        ["memory", step, k] => {
            println!("{}", count(step, number(k)?, memory)?);
            Ok(())
        }
        [step, k, minibatches] => train(step, number(k)?, number(minibatches)?),
        [step, k] => train(step, number(k)?, 20),
        [step] => train(step, 2, 20),
        _ => bail!("{USAGE}: {}", STEPS.join(", ")),
    }
}

fn number(text: &str) -> Result<usize> {
    let number = text.parse::<NonZeroUsize>();
    Ok(number
        .with_context(|| format!("{text:?} is not a number above 0"))?
        .get())
}

/// Random minibatches, and SGD with momentum.
///
/// # Errors
/// If there is no memory left.
pub fn job(minibatches: usize, examples: usize) -> Result<Job> {
    let rng = &mut d2l::rng(1);
    let batch = |_| {
        let x = d2l::uniform(rng, 0.0, 1.0, (examples, 1, 28, 28))?;
        let y = d2l::uniform(rng, 0.0, 10.0, examples)?.to_dtype(candle_core::DType::U32)?;
        Ok(Minibatch { x, y })
    };
    Ok(Job {
        params: scratch::init_params(0)?,
        batches: (0..minibatches).map(batch).collect::<Result<_>>()?,
        optimizer: Arc::new(Sgd {
            momentum: 0.9,
            ..Sgd::new(0.05)
        }),
        bucket_len: 30_000,
        group: GroupOptions::default(),
    })
}

/// The members of this process: all, or its `k` of those in all processes that `mpirun` started.
fn members(job: &Job, k: usize) -> Result<Vec<Member>> {
    #[cfg(feature = "mpi")]
    return Ok(collective::group_in(
        collective::mpi::process_group(None)?,
        k,
        job.group,
    )?);
    #[cfg(not(feature = "mpi"))]
    Ok(group(k, job.group))
}

fn train(step: &str, k: usize, minibatches: usize) -> Result<()> {
    let job = job(minibatches, 64)?;
    d2l::share_cores(None, k);
    let members = || members(&job, k);
    let start = Instant::now();
    macro_rules! params {
        ($replicas:expr) => {
            $replicas?.swap_remove(0).params
        };
    }
    let params: Vec<Var> = match step {
        "page" => params!(page::train(&job, k)),
        "flat" => params!(flat::train(&job, k)),
        "parts" => params!(parts::train(&job, k)),
        "overlap" => params!(overlap::train(&job, k)),
        "sync_bn" => params!(sync_bn::train(&job, k)),
        "processes" => params!(processes::train(&job, members()?)),
        "optimizer_sharded" => params!(optimizer_sharded::train(&job, members()?)),
        "gradients_sharded" => params!(gradients_sharded::train(&job, members()?)),
        "parameters_sharded" => gathered(parameters_sharded::train(&job, members()?)?)?.remove(0),
        _ => bail!("there is no step {step:?}; {USAGE}: {}", STEPS.join(", ")),
    };
    let ms = start.elapsed().as_secs_f64() * 1e3 / minibatches as f64;
    let squares = |w: &Var| w.sqr()?.sum_all()?.to_scalar::<f32>();
    let squares: Vec<f32> = params.iter().map(squares).collect::<Result<_, _>>()?;
    println!("{step}, {k} replicas: {minibatches} steps of {ms:.1} ms, |w|² {squares:?}");
    #[cfg(feature = "mpi")]
    collective::mpi::finish()?;
    Ok(())
}

/// The whole parameters of sharded replicas: each gathers all layers.
///
/// # Errors
/// If a replica of another process has failed.
pub fn gathered(replicas: Vec<parameters_sharded::Replica>) -> Result<Vec<Vec<Var>>> {
    on_threads(replicas, |mut replica| {
        let layers = (0..replica.params.len()).map(|i| replica.gather(i));
        Ok(layers.collect::<Result<Vec<_>>>()?.concat())
    })
}

/// Bytes of one replica: gradients, parameters, optimizer state and all together when nothing runs, and all at the peak.
fn count(step: &str, k: usize, memory: Memory) -> Result<String> {
    macro_rules! bytes {
        ($train:expr, $replica:ident => $free_gradients:expr) => {{
            let [before, _] = memory();
            let mut replicas = $train?;
            functional::empty_cache(); // what the next step would use again
            let [rest, peak] = memory().map(|bytes| bytes - before);
            let mut all = vec![memory()[0]];
            for $replica in &mut replicas {
                $free_gradients;
            }
            all.push(memory()[0]);
            for replica in &mut replicas {
                replica.params.clear();
            }
            all.push(memory()[0]);
            for replica in &mut replicas {
                replica.optimizer.forget();
            }
            all.push(memory()[0]);
            let freed = all.windows(2).map(|pair| pair[0] - pair[1]);
            freed.chain([rest, peak]).collect::<Vec<_>>()
        }};
    }
    let job = job(3, 4 * k)?;
    let members = || group(k, job.group);
    let bytes = match step {
        "processes" => bytes!(processes::train(&job, members()), r => r.gradients = none()),
        "optimizer_sharded" => {
            bytes!(optimizer_sharded::train(&job, members()), r => r.gradients = none())
        }
        "gradients_sharded" => {
            bytes!(gradients_sharded::train(&job, members()), r => r.sums.clear())
        }
        "parameters_sharded" => {
            bytes!(parameters_sharded::train(&job, members()), r => r.sums.clear())
        }
        _ => bail!(
            "memory is counted of {}, not of {step:?}",
            STEPS[5..].join(", ")
        ),
    };
    let of_one = bytes.iter().map(|bytes| (bytes / k).to_string());
    Ok(of_one.collect::<Vec<_>>().join(" "))
}

fn none() -> Gradients {
    let none: [(&str, &Var); 0] = [];
    Gradients::new(none, 0).expect("it needs no memory")
}

/// The memory of all sharded steps, each counted in a process of its own: the peak is that of the whole process.
fn table() -> Result<()> {
    println!("kB of one replica       k  parameters  gradients  state  together  formula   peak");
    let params: usize = scratch::init_params(0)?
        .iter()
        .map(|w| w.elem_count() * 4)
        .sum();
    for (stage, step) in STEPS[5..].iter().enumerate() {
        for k in [1, 2, 4, 8] {
            let child = Command::new(std::env::current_exe()?)
                .args(["memory", step, &k.to_string()])
                .stderr(Stdio::inherit())
                .output()?;
            let said = String::from_utf8(child.stdout)?;
            let bytes = said
                .split_whitespace()
                .map(|bytes| Ok(bytes.parse::<usize>()? as f64 / 1e3));
            let kb: Vec<f64> = bytes.collect::<Result<_>>()?;
            let [g, w, state, rest, peak] = kb[..] else {
                bail!("{step} {k}: {said}")
            };
            let formula = formula(stage, k, params as f64 / 1e3);
            println!(
                "{step:20} {k:4} {w:11.1} {g:10.1} {state:6.1} {rest:9.1} {formula:8.1} {peak:6.0}"
            );
        }
    }
    Ok(())
}

/// Numbers of a replica while nothing runs: parameters, gradients and a momentum, each whole or one part of `k`.
pub fn formula(stage: usize, k: usize, params: f64) -> f64 {
    let sharded = stage as f64;
    (3.0 - sharded) * params + sharded * params / k as f64
}
