//! From a loss back to all parameters, and the sums of losses.

use crate::both::Both;
use crate::support::{assert_near, labels, random, reference_pass, values, variables};
use candle_core::{Device, Result, Tensor, Var};
use functional::{Backward, Gradients, Value, cross_entropy, squared_error};

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
    let loss = losses(&w, device)?.ours.sum()?;
    let loss = functional::backward(&loss, w.iter().zip(&grads))?;
    Ok(std::iter::once(&loss)
        .chain(grads.iter().map(|g| g.as_tensor()))
        .map(values)
        .collect())
}

/// Loss and gradients by the reference.
pub fn reference_gradients() -> Result<Vec<Vec<f32>>> {
    let w = parameters(&Device::Cpu)?;
    let loss = losses(&w, &Device::Cpu)?.sum()?.reference;
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

/// A mean has the gradients of the sum, divided.
#[test]
fn the_mean_of_the_losses() -> Result<()> {
    let w = parameters(&Device::Cpu)?;
    let of_sum = gradients(&Device::Cpu)?;
    let mut gradients = Gradients::new(w.iter().map(|w| ("", w)), usize::MAX)?;
    let mean = gradients.backward(&losses(&w, &Device::Cpu)?.ours.mean()?)?;
    let of_mean = std::iter::once(mean).chain(gradients.values()?);
    for (of_mean, of_sum) in of_mean.zip(&of_sum) {
        let seventh: Vec<f32> = of_sum.iter().map(|v| v / 7.).collect();
        assert_near("loss and gradients", &values(&of_mean), &seventh, 1e-6);
    }
    Ok(())
}

/// The mean of all elements of all examples.
#[test]
fn the_squared_error_of_a_regression() -> Result<()> {
    let w = variables(&[random((2, 3), 1), random(2, 2)])?;
    let (x, y) = (random((5, 3), 3), random((5, 2), 4));
    let y_hat = Both::new(&x)?.linear(&w[0], Some(&w[1]))?;
    let mut gradients = Gradients::new([("weight", &w[0]), ("bias", &w[1])], usize::MAX)?;
    let loss = gradients.backward(&squared_error(&y_hat.ours, &y)?.mean()?)?;
    let theirs = (&y_hat.reference - &y)?.sqr()?.mean_all()?;
    assert_near("loss", &values(&loss), &values(&theirs), 1e-6);
    let grads = theirs.backward()?;
    for (ours, w) in gradients.values()?.iter().zip(&w) {
        let theirs = values(grads.get(w).expect("a gradient"));
        assert_near("gradient", &values(ours), &theirs, 1e-6);
    }
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

/// One is the loss; the losses of the examples, for instance, are other outputs of the same pass.
#[test]
fn the_losses_of_the_examples_beside_their_sum() -> Result<()> {
    let w = Var::from_tensor(&random((4, 5), 1))?;
    let y_hat = Value::new(&random((3, 5), 3))?.linear(&w, None)?;
    let losses = cross_entropy(&y_hat, &labels(3, 4, 4))?;
    let loss = losses.sum()?;
    let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
    let how = Backward {
        outputs: &[&losses, &y_hat],
        ..Backward::default()
    };
    let sum = values(&gradients.backward_with(&loss, how)?);
    let of_each = values(&losses.eval()?);
    let total: f64 = of_each.iter().map(|v| f64::from(*v)).sum();
    assert_eq!((sum.as_slice(), of_each.len()), (&[total as f32][..], 3));
    assert_eq!(values(&loss.eval()?), sum);
    assert_eq!(y_hat.eval()?.dims(), [3, 4]);
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
