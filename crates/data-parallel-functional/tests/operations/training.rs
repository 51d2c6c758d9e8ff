//! Gradients where their owner wants them, and the steps that are taken with them.

use crate::support::{assert_refused, in_one_bucket, random, values};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Bucket, BucketMemory, Gradients, OptimizerState, Part, Sgd, Update, Value};

fn var(shape: &[usize], seed: u64) -> Var {
    Var::from_tensor(&random(shape, seed)).unwrap()
}

#[test]
fn a_variable_that_is_no_parameter_changes_nothing() -> Result<()> {
    let (w, v) = (var(&[3, 3], 1), var(&[3, 3], 2));
    let loss = |w: &Tensor| {
        let y = Value::new(&random((2, 3), 3))?.linear(w, None)?.relu()?;
        y.linear(&v, None)?.sum()
    };
    let params = std::slice::from_ref(&v);
    let expected = in_one_bucket(&loss(&w.as_detached_tensor())?, params);
    assert_eq!(in_one_bucket(&loss(&w)?, params), expected);
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

#[test]
fn a_step_that_does_not_fit_is_an_error() -> Result<()> {
    let p = Var::zeros((2, 3), DType::F32, &Device::Cpu)?;
    let step = functional::sgd(&[&p], &[random(2, 1)], 1., 1);
    assert_refused("the parameters have [6] elements, the gradients [2]", step);
    let itself = functional::sgd(&[&p], &[p.as_tensor().clone()], 1., 1);
    assert_refused("a parameter and its gradient are the same tensor", itself);
    let refused = |expected: &str, sgd: Sgd, mut state: OptimizerState, len: usize| {
        let how = Update {
            lr: 1.,
            rates: &[1.],
            max_norm: None,
            examples: 1.,
        };
        let step = state.step(&sgd, &[("p", &p)], &[bucket(len)], how);
        assert_refused(expected, step);
    };
    let (mut ahead, mut momentum) = (Sgd::new(1.), Sgd::new(1.));
    (ahead.nesterov, momentum.momentum) = (true, 0.9);
    let new = OptimizerState::default;
    refused("nesterov needs a momentum", ahead, new(), 6);
    let numbers = Update {
        lr: 1.,
        rates: &[1.],
        max_norm: None,
        examples: 1.,
    };
    for (expected, how) in [
        (
            "Update: lr is NaN",
            Update {
                lr: f64::NAN,
                ..numbers
            },
        ),
        (
            "Update: a rate is -1",
            Update {
                rates: &[-1.],
                ..numbers
            },
        ),
        (
            "Update: max_norm is 0",
            Update {
                max_norm: Some(0.),
                ..numbers
            },
        ),
        (
            "Update: examples is 0",
            Update {
                examples: 0.,
                ..numbers
            },
        ),
    ] {
        let step = new().step(&momentum, &[("p", &p)], &[bucket(6)], how);
        assert_refused(expected, step);
    }
    let expected = "p has 6 elements, the sum of its gradients 5";
    refused(expected, momentum, new(), 5);
    let of_another = "the optimizer's state is that of another optimizer or network";
    let floats = vec![BucketMemory::Floats(vec![0.; 5])];
    for state in [floats, vec![]] {
        let state = OptimizerState::new(vec![state], vec![1]);
        refused(of_another, momentum, state, 6);
    }
    Ok(())
}

/// Of one parameter.
fn bucket(len: usize) -> Bucket {
    let part = Part {
        parameter: 0,
        range: 0..len,
    };
    Bucket {
        index: 0,
        parts: [part].into(),
        values: BucketMemory::Floats(vec![1.; len]),
    }
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
