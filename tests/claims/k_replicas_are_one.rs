//! k replicas compute what one computes: whatever k, and whether k divides the minibatch or not.

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;
use concise::layers::Sequential;
use concise::{DataParallel, Initializer};
use d2l::Param;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::kit::{copies, cpus, formula_batch, formula_tensor, largest_difference};

trials![
    split_batch_deals_out_every_example_once_and_in_order,
    equal_weights_give_the_pages_split,
    allreduce_gives_every_device_the_sum,
    one_step_of_k_replicas_is_that_of_one,
    get_params_makes_real_copies,
];

fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) -> Result<()> {
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let ran = runner.run(&strategy, test);
    ran.map_err(|e| anyhow::anyhow!("{e}"))
}

/// LeNet's parameters with weights large enough for every path to matter.
pub fn params() -> Result<Vec<Tensor>> {
    let zeros = scratch::init_params(0)?;
    let drawn = zeros.iter().enumerate();
    let drawn = drawn.map(|(i, p)| formula_tensor(i as u32, 0.1, p.dims()));
    Ok(drawn.collect::<candle_core::Result<_>>()?)
}

fn replicas(k: usize) -> Result<Vec<Vec<Param>>> {
    Ok(copies(&params()?, k)?)
}

fn split_batch_deals_out_every_example_once_and_in_order() -> Result<()> {
    check(200, (0usize..40, 1usize..7), |(n, k)| {
        let x = Tensor::arange(0f32, n as f32, &Device::Cpu)?;
        let y = Tensor::arange(0u32, n as u32, &Device::Cpu)?;
        let (x_shards, y_shards) = scratch::split_batch(&x, &y, &cpus(k))?;
        prop_assert_eq!(x_shards.len(), k);
        let dealt = y_shards.iter().flat_map(|y| y.to_vec1::<u32>().unwrap());
        prop_assert_eq!(dealt.collect::<Vec<_>>(), (0..n as u32).collect::<Vec<_>>());
        for (x, y) in x_shards.iter().zip(&y_shards) {
            let x = x.to_dtype(DType::U32)?;
            let [x, y] = [&x, y].map(|t| t.to_vec1::<u32>().unwrap());
            prop_assert_eq!(x, y);
        }
        Ok(())
    })
}

fn equal_weights_give_the_pages_split() -> Result<()> {
    check(200, (0usize..300, 1usize..9, 0.01f64..10.0), |(n, k, w)| {
        let x = Tensor::arange(0f32, n as f32, &Device::Cpu)?;
        let (by_hand, _) = scratch::split_batch(&x, &x, &cpus(k))?;
        let no_layers = |_: VarBuilder<'_>| Ok(Sequential::new()); // its outputs are the shards
        let net = DataParallel::new(&cpus(k), Initializer::Layers, 0, no_layers).unwrap();
        net.set_split(&vec![w; k]).unwrap();
        let weighed = net.forward_shards(&x).unwrap();
        let by_hand: Vec<_> = by_hand
            .iter()
            .filter(|shard| shard.elem_count() > 0)
            .collect();
        prop_assert_eq!(by_hand.len(), weighed.len());
        for (a, b) in by_hand.into_iter().zip(&weighed) {
            let [a, b] = [a, b].map(|t| t.to_vec1::<f32>().unwrap());
            prop_assert_eq!(a, b);
        }
        Ok(())
    })
}

fn allreduce_gives_every_device_the_sum() -> Result<()> {
    check(100, (1usize..6, 1usize..30), |(k, n)| {
        let values = |i: usize| formula_tensor(i as u32, 1.0, &[n]);
        let data = (0..k).map(|i| Var::from_tensor(&values(i)?));
        let data = data.collect::<candle_core::Result<Vec<Var>>>()?;
        let mut sum = values(0)?;
        for i in 1..k {
            sum = (sum + values(i)?)?;
        }
        scratch::allreduce(&data)?;
        for d in &data {
            prop_assert_eq!(largest_difference(d, &sum)?, 0.0);
        }
        Ok(())
    })
}

/// With fewer examples than devices, some devices have none.
fn one_step_of_k_replicas_is_that_of_one() -> Result<()> {
    for n in [256, 13, 8, 3, 2, 1] {
        let (x, y) = formula_batch(0, n)?;
        let step = |k: usize| -> Result<Vec<Param>> {
            let mut device_params = replicas(k)?;
            scratch::train_batch(&x, &y, &device_params, &cpus(k), 0.05)?;
            Ok(device_params.swap_remove(k - 1))
        };
        let one = step(1)?;
        for k in [2, 3, 4] {
            for (i, (a, b)) in one.iter().zip(&step(k)?).enumerate() {
                let difference = largest_difference(a, b)?;
                ensure!(difference <= 1e-6, "n = {n}, k = {k}, {i}: {difference}");
            }
        }
    }
    Ok(())
}

fn get_params_makes_real_copies() -> Result<()> {
    let device_params = replicas(2)?;
    let before = device_params[1][0].copy()?;
    let (x, y) = formula_batch(0, 4)?;
    scratch::train_batch(&x, &y, &device_params[..1], &cpus(1), 0.5)?;
    ensure!(largest_difference(&device_params[0][0], &before)? > 0.0);
    ensure!(largest_difference(&device_params[1][0], &before)? == 0.0);
    Ok(())
}
