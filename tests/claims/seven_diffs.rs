//! The steps of the chapter `seven-diffs` train to the same bits.

use std::ffi::OsString;
use std::ops::Deref;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use candle_core::{Tensor, Var};
use data_parallel::collective::{Algorithm, GroupOptions, group};
use functional::{AdamW, Optimizer, Sgd};
use seven_diffs::{
    Job, Minibatch, flat, gradients_sharded, optimizer_sharded, overlap, page, parameters_sharded,
    parts, processes, program, sync_bn,
};

use crate::kit::{copies, cpus, formula_batch, sgd, succeeds};

trials![
    the_first_step_is_the_page,
    each_step_has_the_bits_of_the_page,
    norms_over_the_minibatch_take_the_step_of_one_device,
    a_replica_keeps_what_the_formula_says,
];

/// The program of the chapter, as a process of this binary.
pub fn run(args: &[OsString]) -> ExitCode {
    let args: Vec<String> = args
        .iter()
        .map(|arg| arg.to_string_lossy().into())
        .collect();
    let memory = || [crate::MEMORY.allocated(), crate::MEMORY.max_allocated()];
    match program::run(&args, memory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Twenty steps, with sums in rank order.
fn job(optimizer: impl Optimizer + 'static, sizes: &[usize]) -> Result<Job> {
    let batches = (0..20).map(|i| {
        let (x, y) = formula_batch(i as u32, sizes[i % sizes.len()])?;
        Ok(Minibatch { x, y })
    });
    Ok(Job {
        params: scratch::init_params(0)?,
        batches: batches.collect::<Result<_>>()?,
        optimizer: Arc::new(optimizer),
        bucket_len: 30_000,
        group: GroupOptions {
            algorithm: Algorithm::Star,
            ..GroupOptions::default()
        },
    })
}

/// The numbers of a replica's parameters, one parameter after the other.
fn numbers(params: &[impl Deref<Target = Tensor>]) -> Result<Vec<f32>> {
    let params = params.iter().map(|w| w.flatten_all()?.to_vec1::<f32>());
    Ok(params.collect::<candle_core::Result<Vec<_>>>()?.concat())
}

/// Their bits, of each replica.
fn bits(replicas: impl IntoIterator<Item = Vec<Var>>) -> Result<Vec<Vec<u32>>> {
    let replica = |params: Vec<Var>| {
        let numbers = numbers(&params)?.into_iter();
        anyhow::Ok(numbers.map(f32::to_bits).collect())
    };
    replicas.into_iter().map(replica).collect()
}

macro_rules! params {
    ($replicas:expr) => {
        bits($replicas?.into_iter().map(|replica| replica.params))?
    };
}

/// With the page's optimizer, which has no state.
fn the_first_step_is_the_page() -> Result<()> {
    let job = job(Sgd::new(0.05), &[11, 2, 9])?;
    for k in [2, 3, 4] {
        let device_params = copies(&job.params, k)?;
        for batch in &job.batches {
            scratch::train_batch(&batch.x, &batch.y, &device_params, &cpus(k), 0.05)?;
        }
        let step = page::train(&job, k)?.swap_remove(0).params;
        let same = numbers(&device_params[0])? == numbers(&step)?;
        ensure!(same, "{k} devices: the first step is not the page's");
    }
    Ok(())
}

fn each_step_has_the_bits_of_the_page() -> Result<()> {
    for k in [2, 3, 4] {
        let with_momentum = job(sgd(0.05, 0.9), &[11, 2, 9])?;
        let jobs = [with_momentum, job(AdamW::default(), &[8])?];
        for job in &jobs {
            let page = params!(page::train(job, k));
            ensure!(page.iter().all(|replica| *replica == page[0]));
            let mut numbers = page[0].iter().map(|bits| f32::from_bits(*bits));
            ensure!(page[0].len() == 129_068 && numbers.all(f32::is_finite));
            let same = |step: &str, bits: Vec<Vec<u32>>| {
                ensure!(
                    bits == page,
                    "{step}, {k} replicas: other bits than the page's"
                );
                Ok(())
            };
            same("flat", params!(flat::train(job, k)))?;
            same("parts", params!(parts::train(job, k)))?;
            same("overlap", params!(overlap::train(job, k)))?;
            let members = || group(k, job.group);
            same("processes", params!(processes::train(job, members())))?;
            let replicas = optimizer_sharded::train(job, members());
            same("optimizer", params!(replicas))?;
            let replicas = gradients_sharded::train(job, members());
            same("gradients", params!(replicas))?;
            let replicas = parameters_sharded::train(job, members())?;
            same("parameters", bits(program::gathered(replicas)?)?)?;
        }
    }
    Ok(())
}

fn norms_over_the_minibatch_take_the_step_of_one_device() -> Result<()> {
    let job = job(Sgd::new(0.05), &[12])?;
    let params = |k| numbers(&sync_bn::train(&job, k)?.swap_remove(0).params);
    let one = params(1)?;
    for k in [2, 3] {
        let apart = one.iter().zip(params(k)?).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        ensure!(apart < 1e-5, "{k} replicas: {apart}");
    }
    Ok(())
}

/// While nothing runs: parameters, gradients and a momentum, whole or one part of `k`.
fn a_replica_keeps_what_the_formula_says() -> Result<()> {
    for (stage, step) in program::STEPS[5..].iter().enumerate() {
        for k in [1, 2, 4, 8] {
            let [said, _] = succeeds("seven-diffs", &format!("memory {step} {k}"))?;
            let bytes = said.split_whitespace().map(str::parse);
            let bytes: Vec<f64> = bytes.collect::<Result<_, _>>()?;
            let [gradients, params, state, together, _peak] = bytes[..] else {
                bail!("{said}")
            };
            let whole = 516_272.0;
            let part = |sharded| if sharded { whole / k as f64 } else { whole };
            for (what, counted, expected) in [
                ("parameters", params, part(stage >= 3)),
                ("gradients", gradients, part(stage >= 2)),
                ("state", state, part(stage >= 1)),
                ("together", together, program::formula(stage, k, whole)),
            ] {
                let is_near = (counted / expected - 1.0).abs() < 0.03;
                ensure!(is_near, "{step}, {k}: {what} {counted}, not {expected}");
            }
        }
    }
    Ok(())
}
