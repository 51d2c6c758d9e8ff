//! The steps of the chapter `seven-diffs` train to the same bits.

use std::sync::Arc;

use anyhow::{Result, ensure};
use candle_core::Var;
use concise::collective::{Algorithm, GroupOptions, Member, group};
use functional::{AdamW, Optimizer, Sgd};
use seven_diffs::{
    Job, flat, gradients_sharded, optimizer_sharded, overlap, page, parameters_sharded, parts,
    processes, sync_bn,
};

use crate::kit::formula_batch;

trials![
    each_step_has_the_bits_of_the_page,
    norms_over_the_minibatch_take_the_step_of_one_device,
];

/// Twenty steps, with sums in rank order.
fn job(optimizer: impl Optimizer + 'static, sizes: &[usize]) -> Result<Job> {
    let batches = (0..20).map(|i| Ok(formula_batch(i as u32, sizes[i % sizes.len()])?));
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

/// The bits of the parameters of each replica.
fn bits(replicas: impl IntoIterator<Item = Vec<Var>>) -> Result<Vec<Vec<u32>>> {
    let replica = |params: Vec<Var>| {
        let params = params.iter().map(|w| w.flatten_all()?.to_vec1::<f32>());
        let params = params.collect::<candle_core::Result<Vec<_>>>()?.concat();
        anyhow::Ok(params.into_iter().map(f32::to_bits).collect())
    };
    replicas.into_iter().map(replica).collect()
}

/// The parameters of sharded replicas, which each of them gathers.
fn gathered(replicas: Vec<parameters_sharded::Replica>) -> Result<Vec<Vec<Var>>> {
    seven_diffs::on_threads(replicas, |mut replica| {
        let layers = (0..replica.params.len()).map(|i| replica.gather(i));
        Ok(layers.collect::<Result<Vec<_>>>()?.concat())
    })
}

macro_rules! params {
    ($replicas:expr) => {
        bits($replicas?.into_iter().map(|replica| replica.params))?
    };
}

fn each_step_has_the_bits_of_the_page() -> Result<()> {
    let momentum = || Sgd {
        momentum: 0.9,
        ..Sgd::new(0.05)
    };
    for k in [2, 3, 4] {
        let jobs = [job(momentum(), &[11, 2, 9])?, job(AdamW::default(), &[8])?];
        for job in &jobs {
            let page = params!(page::train(job, k));
            let members = || -> Vec<Member> { group(k, job.group) };
            let steps = [
                ("flat", params!(flat::train(job, k))),
                ("parts", params!(parts::train(job, k))),
                ("overlap", params!(overlap::train(job, k))),
                ("processes", params!(processes::train(job, members()))),
                (
                    "optimizer",
                    params!(optimizer_sharded::train(job, members())),
                ),
                (
                    "gradients",
                    params!(gradients_sharded::train(job, members())),
                ),
                (
                    "parameters",
                    bits(gathered(parameters_sharded::train(job, members())?)?)?,
                ),
            ];
            ensure!(page.iter().all(|replica| *replica == page[0]));
            for (step, bits) in steps {
                ensure!(
                    bits == page,
                    "{step}, {k} replicas: other bits than the page's"
                );
            }
        }
    }
    Ok(())
}

fn norms_over_the_minibatch_take_the_step_of_one_device() -> Result<()> {
    let job = job(Sgd::new(0.05), &[12])?;
    let params = |k| -> Result<Vec<f32>> {
        let replica = sync_bn::train(&job, k)?.swap_remove(0);
        let params = replica
            .params
            .iter()
            .map(|w| Ok(w.flatten_all()?.to_vec1()?));
        Ok(params.collect::<Result<Vec<_>>>()?.concat())
    };
    let one = params(1)?;
    for k in [2, 3] {
        let apart = one.iter().zip(params(k)?).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        ensure!(apart < 1e-5, "{k} replicas: {apart}");
    }
    Ok(())
}
