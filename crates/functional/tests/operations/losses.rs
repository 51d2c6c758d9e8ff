//! From a loss back to all parameters, and the sums of losses.

use crate::both::{Both, assert_both};
use crate::support::{assert_near, labels, random, values, variables};
use candle_core::{Result, Tensor};
use functional::{Gradients, Value, squared_error};

/// A small network up to its loss.
pub fn classifier(t: &[Tensor]) -> Result<Both> {
    let y = labels(7, 4, 11).to_device(t[0].device())?;
    let h = Both::new(&t[0])?.nhwc()?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
    let h = h.relu()?.avg_pool2d(2, 2)?.flatten()?;
    let h = h.linear(&t[3], Some(&t[4]))?.relu()?;
    h.matmul(&t[5], Some(&t[6]))?.cross_entropy(&y)?.sum()
}

/// Images and parameters.
pub fn inputs() -> Vec<Tensor> {
    let images: &[usize] = &[7, 1, 6, 6];
    let shapes = [images, &[3, 1, 3, 3], &[3], &[8, 12], &[8], &[8, 4], &[4]];
    let seeds = (0..).zip(shapes);
    seeds.map(|(seed, shape)| random(shape, seed)).collect()
}

#[test]
fn the_gradients_of_a_classifier() {
    assert_both(&inputs(), 1e-5, classifier);
}

/// The targets may be variables themselves: they are what is to be reached, and have no gradient.
#[test]
fn targets_have_no_gradient() -> Result<()> {
    let w = variables(&[random((5, 2), 1), random((5, 2), 2)])?;
    let loss = squared_error(&Value::new(&w[0])?, &w[1])?.sum()?;
    let mut gradients = Gradients::new([("y_hat", &w[0]), ("y", &w[1])], usize::MAX)?;
    gradients.allow_unused(true);
    gradients.backward(&loss)?;
    let of_both = gradients.values()?;
    let expected = w[0].as_tensor().sub(&w[1])?.detach();
    assert_near("y_hat", &values(&of_both[0]), &values(&expected), 1e-6);
    assert_eq!(values(&of_both[1]), [0.; 10]);
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
