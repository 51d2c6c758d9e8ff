//! Gradients where their owner wants them, and the steps that are taken with them.

use crate::support::{given, random, values};
use candle_core::{Device, Result, Tensor, Var};
use functional::{Expr, Gradients, Sgd};

fn var(shape: &[usize], seed: u64) -> Var {
    Var::from_tensor(&random(shape, seed)).unwrap()
}

/// What candle's own store has for the parameters, one after the other.
fn stored(loss: &Tensor, params: &[&Var]) -> Vec<f32> {
    let grads = loss.backward().unwrap();
    params
        .iter()
        .flat_map(|p| values(grads.get(p).expect("a gradient")))
        .collect()
}

fn flat(loss: &Tensor, params: &[&Var]) -> Vec<f32> {
    let params = params.iter().map(|p| ("", *p));
    let mut gradients = Gradients::new(params, usize::MAX).unwrap();
    gradients.backward(loss).unwrap();
    given(&mut gradients).concat()
}

#[test]
fn one_bucket_has_what_candles_store_has() -> Result<()> {
    let (w, b, v) = (var(&[4, 2, 3, 3], 1), var(&[4], 2), var(&[3, 4], 3));
    let x = random((2, 5, 5, 2), 4);
    let y = Expr::new(&x).conv2d(&w, Some(&b), 1, 1).relu();
    let loss = y.global_avg_pool2d().linear(&v, None).eval()?.sum_all()?;
    let params = [&v, &w, &b];
    assert_eq!(flat(&loss, &params), stored(&loss, &params));
    Ok(())
}

#[test]
fn parts_of_a_gradient_add_up_wherever_they_come_from() -> Result<()> {
    let (w, x) = (var(&[3, 3], 1), random((2, 3), 2));
    let ours = Expr::new(&x)
        .linear(&w, None)
        .relu()
        .linear(&w, None)
        .eval()?; // twice in one
    let again = functional::linear(&x, &w, None)?; // in another expression
    let theirs = x.matmul(&w.t()?)?; // in an operation of candle's
    let viewed = functional::linear(&x, &w.t()?, None)?; // through a view
    let loss = (((ours + again)? + theirs)? + viewed)?.sqr()?.sum_all()?;
    let (flat, stored) = (flat(&loss, &[&w]), stored(&loss, &[&w]));
    for (a, b) in flat.iter().zip(&stored) {
        assert!((a - b).abs() < 1e-4, "{flat:?} {stored:?}");
    }
    Ok(())
}

#[test]
fn a_parameter_without_a_gradient_is_named() -> Result<()> {
    let (w, unused) = (var(&[3, 3], 1), var(&[2], 2));
    let loss = functional::linear(&random((2, 3), 2), &w, None)?.sum_all()?;
    let mut gradients = Gradients::new([("w", &w), ("fc.bias", &unused)], 6)?;
    let error = gradients.backward(&loss).unwrap_err().to_string();
    assert!(
        error.contains("does not depend on the parameter fc.bias"),
        "{error}"
    );
    Ok(())
}

#[test]
fn buckets_on_several_threads_do_not_meet() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let w = var(&[5, 8], seed);
                for _ in 0..20 {
                    let y = functional::linear(&random((3, 8), seed + 9), &w, None).unwrap();
                    let loss = y.sqr().unwrap().sum_all().unwrap();
                    assert_eq!(flat(&loss, &[&w]), stored(&loss, &[&w]));
                }
            });
        }
    });
}

/// Three steps of `torch.optim.SGD` on p = (1, -2) with the gradients (0.5, 1), (0.25, -1), (2, 0.5):
/// tests/pytorch/sgd_steps.py prints them.
#[test]
fn sgd_takes_pytorchs_steps() -> Result<()> {
    let gradients = [[0.5f32, 1.], [0.25, -1.], [2., 0.5]];
    for (lr, momentum, weight_decay, expected) in [
        (
            0.1,
            0.0,
            0.0,
            [[0.95, -2.1], [0.925, -1.9999999], [0.725, -2.05]],
        ),
        (0.1, 0.0, 0.5, [[0.9, -2.0], [0.83, -1.8], [0.5885, -1.76]]),
        (
            0.1,
            0.9,
            0.0,
            [[0.95, -2.1], [0.88, -2.09], [0.617, -2.1309998]],
        ),
        (
            0.2,
            0.5,
            0.25,
            [[0.85, -2.1], [0.6825, -1.8449999], [0.164625, -1.7252499]],
        ),
    ] {
        let sgd = Sgd {
            lr,
            momentum,
            weight_decay,
        };
        let p = Var::new(&[1f32, -2.], &Device::Cpu)?;
        let mut velocity = [0f32; 2];
        for (g, expected) in gradients.iter().zip(expected) {
            let sum: Vec<f32> = g.iter().map(|g| g * 8.).collect();
            let velocity = (momentum != 0.).then_some(&mut velocity[..]);
            sgd.step(&p, &sum, 8, velocity)?;
            for (p, e) in values(&p).iter().zip(expected) {
                assert!((p - e).abs() < 1e-6, "{p}, expected {e}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_that_does_not_fit_is_an_error() -> Result<()> {
    let p = Var::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)?;
    let error = Sgd::new(1.).step(&p, &[1., 2.], 1, None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("param has 6 elements, the gradient 2"),
        "{error}"
    );
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::new(1.)
    };
    assert!(momentum.step(&p, &[1.; 6], 1, None).is_err());
    assert!(momentum.step(&p, &[1.; 6], 1, Some(&mut [0.; 2])).is_err());
    Ok(())
}
