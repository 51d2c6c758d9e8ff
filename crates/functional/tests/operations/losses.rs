//! From a loss back to all parameters, and the sums of losses.

use crate::both::Both;
use crate::support::{assert_near, labels, random, reference_pass, values, variables};
use candle_core::{Device, Result, Tensor, Var};
use functional::{Gradients, Value, squared_error};

/// The parameters of a small network on `device`.
fn parameters(device: &Device) -> Result<Vec<Var>> {
    let shapes: [&[usize]; 6] = [&[3, 1, 3, 3], &[3], &[8, 12], &[8], &[8, 4], &[4]];
    let numbered = shapes.iter().enumerate();
    let w: Vec<Tensor> = numbered
        .map(|(i, shape)| random(*shape, i as u64))
        .collect();
    let there = w
        .iter()
        .map(|w| w.to_device(device))
        .collect::<Result<Vec<_>>>()?;
    variables(&there)
}

fn losses(w: &[Var], device: &Device) -> Result<Both> {
    let (x, y) = (random((7, 1, 6, 6), 10), labels(7, 4, 11));
    let h = Both::new(&x.to_device(device)?)?.nhwc()?;
    let h = h
        .conv2d(&w[0], Some(&w[1]), 1, 0)?
        .relu()?
        .avg_pool2d(2, 2)?;
    let h = h.flatten()?.linear(&w[2], Some(&w[3]))?.relu()?;
    h.matmul(&w[4], Some(&w[5]))?
        .cross_entropy(&y.to_device(device)?)
}

/// Loss and gradients of the network on `device`.
pub fn gradients(device: &Device) -> Result<Vec<Vec<f32>>> {
    let w = parameters(device)?;
    let grads: Vec<Var> = w
        .iter()
        .map(|w| Var::from_tensor(&w.ones_like()?))
        .collect::<Result<_>>()?;
    let loss = losses(&w, device)?.ours().sum()?;
    let loss = functional::backward(&loss, w.iter().zip(&grads))?;
    Ok(std::iter::once(&loss)
        .chain(grads.iter().map(|g| g.as_tensor()))
        .map(values)
        .collect())
}

/// Loss and gradients by the reference.
pub fn reference_gradients() -> Result<Vec<Vec<f32>>> {
    let w = parameters(&Device::Cpu)?;
    let loss = losses(&w, &Device::Cpu)?.sum()?.reference();
    let one = Tensor::new(1f32, &Device::Cpu)?;
    let results = reference_pass(&w, &loss, &one)?;
    Ok(results.iter().map(values).collect())
}

#[test]
fn the_gradients_of_a_classifier() -> Result<()> {
    let (ours, theirs) = (gradients(&Device::Cpu)?, reference_gradients()?);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_near("loss and gradients", ours, theirs, 1e-5);
    }
    assert!(
        ours.iter().flatten().all(|v| *v != 1.),
        "every gradient was written"
    );
    Ok(())
}

/// The targets may be variables themselves: they are what is to be reached, and have no gradient.
#[test]
fn targets_have_no_gradient() -> Result<()> {
    let w = variables(&[random((5, 2), 1), random((5, 2), 2)])?;
    let loss = squared_error(&Value::new(&w[0])?, &w[1])?.sum()?;
    let mut gradients = Gradients::new([("y_hat", &w[0]), ("y", &w[1])], usize::MAX)?;
    gradients.allow_unused(true);
    gradients.backward(&loss)?;
    let [y_hat, y] = &gradients.values()?[..] else {
        unreachable!()
    };
    let expected = w[0].as_tensor().sub(&w[1])?.detach();
    assert_near("y_hat", &values(y_hat), &values(&expected), 1e-6);
    assert_eq!(values(y), [0.; 10]);
    Ok(())
}

#[test]
fn a_sum_and_a_mean_are_exact() -> Result<()> {
    let x = random((1000, 100), 5);
    let sum = |x: &Tensor| Value::new(x)?.sum()?.eval()?.to_scalar::<f32>();
    let mean = |x: &Tensor| Value::new(x)?.mean()?.eval()?.to_scalar::<f32>();
    let expected: f64 = values(&x).iter().map(|v| f64::from(*v)).sum();
    assert_eq!(sum(&x)?, expected as f32);
    assert_eq!(mean(&x)?, (expected / 100_000.) as f32);
    assert_eq!(sum(&x.t()?)?, expected as f32);
    assert_eq!(sum(&random((0, 3), 5))?, 0.);
    Ok(())
}
