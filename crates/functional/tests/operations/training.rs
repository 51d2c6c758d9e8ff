//! Gradients where their owner wants them, and the steps that are taken with them.

use crate::both::Both;
use crate::support::{assert_near, assert_refused, given, random, reference_pass, values};
use candle_core::{Device, Result, Tensor, Var};
use functional::{Gradients, Sgd, Value};

fn var(shape: &[usize], seed: u64) -> Var {
    Var::from_tensor(&random(shape, seed)).unwrap()
}

/// The gradients of the parameters by the reference, one after the other.
fn stored(loss: &Tensor, params: &[&Var]) -> Vec<f32> {
    let params: Vec<Var> = params.iter().map(|p| (*p).clone()).collect();
    let one = Tensor::new(1f32, &Device::Cpu).unwrap();
    let results = reference_pass(&params, loss, &one).unwrap();
    results[1..].iter().flat_map(values).collect()
}

fn flat(loss: &Value, params: &[&Var]) -> Vec<f32> {
    let params = params.iter().map(|p| ("", *p));
    let mut gradients = Gradients::new(params, usize::MAX).unwrap();
    gradients.backward(loss).unwrap();
    given(&mut gradients).concat()
}

#[test]
fn one_bucket_has_the_gradients_one_after_the_other() -> Result<()> {
    let (w, b, v) = (var(&[4, 2, 3, 3], 1), var(&[4], 2), var(&[3, 4], 3));
    let x = Both::new(&random((2, 5, 5, 2), 4))?;
    let y = x.conv2d(&w, Some(&b), 1, 1)?.relu()?;
    let loss = y.global_avg_pool2d()?.linear(&v, None)?.sum()?;
    let params = [&v, &w, &b];
    let expected = stored(&loss.reference, &params);
    assert_near("gradients", &flat(&loss.ours, &params), &expected, 1e-5);
    // as they are where each goes to a variable of its own
    let grads = [&v, &w, &b].map(|p| var(p.dims(), 5));
    functional::backward(&loss.ours, params.into_iter().zip(&grads))?;
    let grads: Vec<Vec<f32>> = grads.iter().map(|g| values(g)).collect();
    assert_eq!(grads.concat(), flat(&loss.ours, &params));
    Ok(())
}

#[test]
fn parts_of_a_gradient_add_up_wherever_they_come_from() -> Result<()> {
    let (w, x) = (var(&[3, 3], 1), Both::new(&random((2, 3), 2))?);
    let twice = x.linear(&w, None)?.relu()?.linear(&w, None)?; // one after the other
    let again = x.linear(&w, None)?; // in another operation
    let weight = w.as_tensor().clone();
    let theirs = x.candle(move |x| x.matmul(&weight.t()?))?; // in an operation of candle's
    let viewed = x.linear(&w.t()?, None)?; // through a view
    let before = Both::new(&(w.narrow(0, 0, 2)? * 2.)?)?; // and in one of candle's before
    let sum = twice
        .plus(&again)?
        .plus(&theirs)?
        .plus(&viewed)?
        .plus(&before)?;
    let loss = sum.candle(Tensor::sqr)?.sum()?;
    let expected = stored(&loss.reference, &[&w]);
    assert_near("gradient", &flat(&loss.ours, &[&w]), &expected, 1e-5);
    Ok(())
}

#[test]
fn a_variable_that_is_no_parameter_changes_nothing() -> Result<()> {
    let (w, v) = (var(&[3, 3], 1), var(&[3, 3], 2));
    let loss = |w: &Tensor| {
        let y = Value::new(&random((2, 3), 3))?.linear(w, None)?.relu()?;
        y.linear(&v, None)?.sum()
    };
    assert_eq!(
        flat(&loss(&w)?, &[&v]),
        flat(&loss(&w.as_detached_tensor())?, &[&v])
    );
    Ok(())
}

#[test]
#[should_panic(expected = "a parameter is given twice")]
fn a_parameter_is_given_once() {
    let w = var(&[3, 3], 1);
    let _ = Gradients::new([("w", &w), ("again", &w)], usize::MAX);
}

#[test]
fn a_gradient_has_a_memory_of_its_own() -> Result<()> {
    let (w, v, grad) = (var(&[3, 3], 1), var(&[3, 3], 2), var(&[3, 3], 3));
    let y = Value::new(&random((2, 3), 4))?.linear(&w, None)?;
    let loss = y.linear(&v, None)?.sum()?;
    let expected = "the memory of a gradient has 0 elements, expected 9: give it its own";
    let shared = functional::backward(&loss, [(&w, &grad), (&v, &grad)]);
    assert_refused(expected, shared);
    // which has its numbers still
    assert_eq!(values(&grad), values(&random((3, 3), 3)));
    // nor can a parameter be written to, which backward reads
    let parameter = functional::backward(&loss, [(&w, &w), (&v, &grad)]);
    assert_refused(
        "a parameter and its gradient are the same tensor",
        parameter,
    );
    assert_eq!(values(&w), values(&random((3, 3), 1)));
    Ok(())
}

#[test]
fn buckets_on_several_threads_do_not_meet() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                let w = var(&[5, 8], seed);
                let x = random((3, 8), seed + 9);
                let of = || {
                    let y = Both::new(&x)?.linear(&w, None)?;
                    y.candle(Tensor::sqr)?.sum()
                };
                let expected = stored(&of().unwrap().reference, &[&w]);
                for _ in 0..20 {
                    let actual = flat(&of().unwrap().ours, &[&w]);
                    assert_near("gradient", &actual, &expected, 1e-5);
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
        let velocity = Tensor::zeros(2, candle_core::DType::F32, &Device::Cpu)?;
        for (g, expected) in gradients.iter().zip(expected) {
            let sum: Vec<f32> = g.iter().map(|g| g * 8.).collect();
            let sum = Tensor::new(&sum[..], &Device::Cpu)?;
            sgd.step(&[&p], &[sum], 8, (momentum != 0.).then_some(&velocity))?;
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
    let of = |len: usize| Tensor::ones(len, candle_core::DType::F32, &Device::Cpu);
    let error = Sgd::new(1.).step(&[&p], &[of(2)?], 1, None).unwrap_err();
    let expected = "the parameters have [6] elements, the gradients [2]";
    assert!(error.to_string().contains(expected), "{error}");
    let momentum = Sgd {
        momentum: 0.9,
        ..Sgd::new(1.)
    };
    let error = momentum.step(&[&p], &[of(6)?], 1, None).unwrap_err();
    assert!(
        error.to_string().contains("momentum needs a velocity"),
        "{error}"
    );
    let short = of(2)?;
    let error = momentum
        .step(&[&p], &[of(6)?], 1, Some(&short))
        .unwrap_err();
    assert!(
        error.to_string().contains("velocity has 2, expected 6"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_parameter_has_one_gradient() -> Result<()> {
    let (w, first, second) = (var(&[3, 3], 1), var(&[3, 3], 2), var(&[3, 3], 3));
    let loss = Value::new(&random((2, 3), 4))?.linear(&w, None)?.sum()?;
    let twice = functional::backward(&loss, [(&w, &first), (&w, &second)]);
    assert_refused("a parameter is given twice", twice);
    Ok(())
}

#[test]
fn labels_are_those_that_were_checked() -> Result<()> {
    let y_hat = Value::new(&random((2, 3), 1))?;
    let labels = Var::new(&[0u32, 2], &Device::Cpu)?;
    let loss = functional::cross_entropy(&y_hat, &labels)?;
    let expected = functional::cross_entropy(&y_hat, &labels.copy()?)?.eval()?;
    labels.set(&Tensor::new(&[7u32, 7], &Device::Cpu)?)?;
    assert_eq!(values(&loss.eval()?), values(&expected));
    Ok(())
}

#[test]
fn the_loss_keeps_its_shape() -> Result<()> {
    let w = Var::new(&[3f32], &Device::Cpu)?;
    let loss = Value::new(&w)?;
    let l = functional::backward(&loss, [(&w, &var(&[1], 2))])?;
    assert_eq!((l.dims(), values(&loss.eval()?)), (&[1][..], vec![3.]));
    Ok(())
}
