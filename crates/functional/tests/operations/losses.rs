//! Targets, and the sums of losses.

use crate::support::{assert_near, random, values, variables};
use candle_core::{Result, Tensor};
use functional::{Gradients, Value, squared_error};

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
