//! Gradients where their owner wants them, and the steps that are taken with them.

use crate::support::{assert_refused, given, random, values};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Gradients, Sgd, Value};

fn var(shape: &[usize], seed: u64) -> Var {
    Var::from_tensor(&random(shape, seed)).unwrap()
}

fn flat(loss: &Value, params: &[&Var]) -> Vec<f32> {
    let params = params.iter().map(|p| ("", *p));
    let mut gradients = Gradients::new(params, usize::MAX).unwrap();
    gradients.backward(loss).unwrap();
    given(&mut gradients).concat()
}

#[test]
fn a_variable_that_is_no_parameter_changes_nothing() -> Result<()> {
    let (w, v) = (var(&[3, 3], 1), var(&[3, 3], 2));
    let loss = |w: &Tensor| {
        let y = Value::new(&random((2, 3), 3))?.linear(w, None)?.relu()?;
        y.linear(&v, None)?.sum()
    };
    let expected = flat(&loss(&w.as_detached_tensor())?, &[&v]);
    assert_eq!(flat(&loss(&w)?, &[&v]), expected);
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
    let twice = functional::backward(&loss, [(&w, &grad), (&w, &v)]);
    assert_refused("a parameter is given twice", twice);
    // nor can a parameter be written to, which backward reads
    let parameter = functional::backward(&loss, [(&w, &w), (&v, &grad)]);
    let expected = "a parameter and its gradient are the same tensor";
    assert_refused(expected, parameter);
    assert_eq!(values(&w), values(&random((3, 3), 1)));
    Ok(())
}

/// Three steps of `torch.optim.SGD` on p = (1, -2) with the gradients (0.5, 1), (0.25, -1), (2, 0.5):
/// tests/pytorch/sgd_steps.py prints them, here to six digits.
#[test]
fn sgd_takes_pytorchs_steps() -> Result<()> {
    let gradients = [[0.5f32, 1.], [0.25, -1.], [2., 0.5]];
    for ([lr, momentum, weight_decay], expected) in [
        ([0.1, 0., 0.], [[0.95, -2.1], [0.925, -2.], [0.725, -2.05]]),
        ([0.1, 0., 0.5], [[0.9, -2.], [0.83, -1.8], [0.5885, -1.76]]),
        (
            [0.1, 0.9, 0.],
            [[0.95, -2.1], [0.88, -2.09], [0.617, -2.131]],
        ),
        (
            [0.2, 0.5, 0.25],
            [[0.85, -2.1], [0.6825, -1.845], [0.164625, -1.72525]],
        ),
    ] {
        let sgd = Sgd {
            lr,
            momentum,
            weight_decay,
        };
        let p = Var::new(&[1f32, -2.], &Device::Cpu)?;
        let velocity = Tensor::zeros(2, DType::F32, &Device::Cpu)?;
        for (g, expected) in gradients.iter().zip(expected) {
            let sum: Vec<f32> = g.iter().map(|g| g * 8.).collect();
            let sum = Tensor::new(&sum[..], &Device::Cpu)?;
            sgd.step(&[&p], &[sum], 8, (momentum != 0.).then_some(&velocity))?;
            for (p, e) in values(&p).iter().zip(expected) {
                assert!((p - e).abs() < 1e-6, "{sgd:?}: {p}, expected {e}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_that_does_not_fit_is_an_error() -> Result<()> {
    let p = Var::zeros((2, 3), DType::F32, &Device::Cpu)?;
    let of = |len: usize| Tensor::ones(len, DType::F32, &Device::Cpu).unwrap();
    for (momentum, gradients, velocity, expected) in [
        (
            0.,
            2,
            None,
            "the parameters have [6] elements, the gradients [2]",
        ),
        (0.9, 6, None, "momentum needs a velocity"),
        (0.9, 6, Some(2), "velocity has 2, expected 6"),
    ] {
        let sgd = Sgd {
            momentum,
            ..Sgd::new(1.)
        };
        let velocity = velocity.map(of);
        let step = sgd.step(&[&p], &[of(gradients)], 1, velocity.as_ref());
        assert_refused(expected, step);
    }
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
