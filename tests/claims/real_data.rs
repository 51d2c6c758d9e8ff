//! What is true of the real Fashion-MNIST. Without `FASHION_MNIST_DIR` these tests are listed as
//! ignored.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;

use crate::kit::{real_data, small};

pub fn trials() -> Vec<Trial> {
    let there = real_data().is_some();
    listed!(there, "FASHION_MNIST_DIR", lenet_learns, resnet18_learns)
}

fn folder() -> Option<dataset::Data> {
    real_data().map(dataset::Data::Dir)
}

/// From weights large enough to learn at once: the book's take a whole epoch to begin.
fn lenet_learns() -> Result<()> {
    let folder_of_init = tempfile::tempdir()?;
    let init = folder_of_init.path().join("init.safetensors");
    let mut rng = d2l::rng(0);
    let names = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"];
    let params = scratch::init_params(0)?.into_iter().zip(names);
    let params = params.map(|(p, name)| {
        let std = if name.starts_with('W') { 0.1 } else { 0.0 };
        Ok((name.to_owned(), d2l::normal(&mut rng, std, p.shape())?))
    });
    run::weights::save(&init, &params.collect::<Result<Vec<_>>>()?)?;
    let summary = scratch::program::train(&run::Options {
        data: folder(),
        init: Some(init),
        batch_size: Some(64),
        lr: Some(0.05),
        limit_train: Some(12_800),
        limit_test: Some(1_000),
        ..small(2)
    })?;
    ensure!(summary.test_acc[0] > 0.6, "{summary:?}");
    Ok(())
}

fn resnet18_learns() -> Result<()> {
    let summary = concise::train(&concise::Options::from(run::Options {
        data: folder(),
        batch_size: Some(32),
        lr: Some(0.05),
        limit_train: Some(640),
        limit_test: Some(200),
        epochs: 2,
        ..small(2)
    }))?;
    ensure!(summary.loss[1] < summary.loss[0], "{summary:?}");
    ensure!(summary.loss[1] < 1.8, "{summary:?}");
    Ok(())
}
