//! When a graph is recorded, and which inputs get gradients.

use crate::support::{labels, random};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::no_grad;

/// Every operation once, on tracked inputs.
fn every_operation() -> Result<Vec<Tensor>> {
    let var = |shape: &[usize]| Var::from_tensor(&random(shape, 1));
    let (x, c) = (var(&[2, 4, 4, 3])?, var(&[3])?);
    let (w, two, m) = (var(&[2, 3, 2, 2])?, var(&[2])?, var(&[2, 3])?);
    let statistics = Var::ones(3, DType::F32, &Device::Cpu)?;
    let labels = labels(2, 3, 1);
    macro_rules! all {
        ($of:ident) => {
            vec![
                $of::nhwc(&x)?,
                $of::flatten(&x)?,
                $of::conv2d(&x, &w, Some(&two), 1, 0)?,
                $of::conv2d(&x, &w, None, 1, 0)?,
                $of::relu(&x)?,
                $of::avg_pool2d(&x, 2, 2)?,
                $of::max_pool2d(&x, 2, 2)?,
                $of::global_avg_pool2d(&x)?,
                $of::linear(&m, &m, Some(&two))?,
                $of::linear(&m.t()?, &m.t()?, None)?,
                $of::matmul(&m.t()?, &m, None)?,
                $of::batch_norm2d(&x, &c, &c, &statistics, &statistics, false)?,
                $of::cross_entropy(&m, &labels)?,
            ]
        };
    }
    use functional::plain;
    let mut results = all!(functional);
    results.extend(all!(plain));
    Ok(results)
}

fn all_tracked() -> bool {
    every_operation().unwrap().iter().all(Tensor::track_op)
}

fn none_tracked() -> bool {
    !every_operation().unwrap().iter().any(Tensor::track_op)
}

#[test]
fn no_grad_records_nothing_and_nests() {
    assert!(all_tracked());
    no_grad(|| {
        assert!(none_tracked());
        assert!(no_grad(none_tracked));
        assert!(none_tracked(), "the inner one ended the outer one");
    });
    assert!(all_tracked());
}

#[test]
fn no_grad_is_of_this_thread_only() {
    let elsewhere = || std::thread::spawn(all_tracked).join().unwrap();
    assert!(no_grad(elsewhere));
}

#[test]
fn a_panic_restores_recording_and_budget() {
    let panicking = || no_grad(|| functional::threads::with_budget(7, || panic!("on purpose")));
    let _ = std::panic::catch_unwind(panicking).expect_err("a panic");
    assert!(all_tracked());
    assert_ne!(functional::threads::budget(), 7);
}

/// candle keeps whatever gradient an operation returns, so what is absent was not returned.
#[test]
fn an_untracked_input_gets_no_gradient() {
    let (images, w) = (random((2, 5, 5, 3), 1), random((4, 3, 2, 2), 2));
    let (weight, bias) = (
        Var::from_tensor(&w).unwrap(),
        Var::from_tensor(&random(4, 3)).unwrap(),
    );
    let y = functional::conv2d(&images, &weight, Some(&bias), 1, 0).unwrap();
    let grads = y.backward().unwrap();
    assert!(grads.get(&images).is_none());
    assert!(grads.get(&weight).is_some() && grads.get(&bias).is_some());

    let x = Var::from_tensor(&images).unwrap();
    let grads = functional::conv2d(&x, &w, None, 1, 0)
        .unwrap()
        .backward()
        .unwrap();
    assert!(grads.get(&w).is_none());
    assert!(grads.get(&x).is_some());

    let (x, w) = (random((2, 3), 1), random((4, 3), 2));
    let y = functional::linear(&x, &w, Some(&bias)).unwrap();
    let grads = y.backward().unwrap();
    assert!(grads.get(&x).is_none() && grads.get(&w).is_none());
    assert!(grads.get(&bias).is_some());
}
