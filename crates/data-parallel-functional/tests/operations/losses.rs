//! Targets, and the sums of losses.

use crate::support::{assert_near, random, values, variables};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Gradients, Value, binary_cross_entropy, masked_cross_entropy, squared_error};

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

/// What the mask hides may be anything, also a label that is no class, and has no gradient.
#[test]
fn padding_does_not_count() -> Result<()> {
    let y_hat = &variables(&[random((2, 3, 5), 1)])?[0];
    let y = Tensor::new(&[[1u32, 4, 0], [2, u32::MAX, 77]], y_hat.device())?;
    let mask = Tensor::new(&[[1f32, 0.5, 1.], [1., 0., 0.]], y_hat.device())?;
    let loss = masked_cross_entropy(&Value::new(y_hat)?, &y, &mask)?;
    let rows = |row: usize, of: usize| -> Result<f32> {
        let row = Value::new(&y_hat.get(row)?.narrow(0, of, 1)?)?;
        let label = if of == 1 { 4u32 } else { 0 };
        row.cross_entropy(&Tensor::new(&[label], y_hat.device())?)?
            .sum()?
            .eval()?
            .to_scalar()
    };
    let (half, last) = (0.5 * rows(0, 1)?, rows(0, 2)?);
    let row = Value::new(&y_hat.narrow(1, 0, 1)?.squeeze(1)?)?;
    let first = row
        .cross_entropy(&Tensor::new(&[1u32, 2], y_hat.device())?)?
        .eval()?;
    let first = values(&first);
    assert_near(
        "losses",
        &values(&loss.eval()?),
        &[first[0] + half + last, first[1]],
        1e-5,
    );
    let mut gradients = Gradients::new([("y_hat", y_hat)], usize::MAX)?;
    gradients.backward(&loss.sum()?)?;
    let gradient = gradients.values()?[0].reshape((6, 5))?;
    assert_eq!(values(&gradient.narrow(0, 4, 2)?), [0.; 10]);
    assert!(values(&gradient.narrow(0, 0, 4)?).iter().all(|g| *g != 0.));
    // of the second label half
    let whole = masked_cross_entropy(&Value::new(y_hat)?, &y, &mask.gt(0f32)?)?.sum()?;
    gradients.zero();
    gradients.backward(&whole)?;
    let of_whole = gradients.values()?[0].reshape((6, 5))?.get(1)?;
    assert_near(
        "half",
        &values(&(gradient.get(1)? * 2.)?),
        &values(&of_whole),
        1e-6,
    );
    Ok(())
}

/// A class that never comes has the logit −∞; where it is hidden it does not count.
#[test]
fn what_is_hidden_may_have_an_infinite_loss() -> Result<()> {
    let y_hat = Tensor::new(&[[[f32::NEG_INFINITY, 0.5, 1.5]; 2]], &Device::Cpu)?;
    let y_hat = Var::from_tensor(&y_hat)?;
    let y = Tensor::new(&[[1u32, 0]], &Device::Cpu)?;
    let mask = Tensor::new(&[[1f32, 0.]], &Device::Cpu)?;
    let loss = masked_cross_entropy(&Value::new(&y_hat)?, &y, &mask)?.sum()?;
    let mut gradients = Gradients::new([("y_hat", &y_hat)], usize::MAX)?;
    let loss = gradients.backward(&loss)?.to_scalar::<f32>()?;
    assert!((loss - (1. + 1f32.exp()).ln()).abs() < 1e-6, "{loss}");
    let of_both = values(&gradients.values()?[0]);
    assert!(
        of_both[1] < 0. && of_both[2] > 0. && of_both[3..] == [0.; 3],
        "{of_both:?}"
    );
    Ok(())
}

#[test]
fn a_mask_that_does_not_fit_is_named() -> Result<()> {
    let y_hat = Value::new(&random((2, 3, 5), 1))?;
    let y = Tensor::zeros((2, 3), DType::U32, &Device::Cpu)?;
    let says = |y: &Tensor, mask: &Tensor| {
        let error = masked_cross_entropy(&y_hat, y, mask).map(drop).unwrap_err();
        error.to_string()
    };
    let expected = "masked_cross_entropy: mask has shape [2], y [2, 3], expected the same";
    assert!(says(&y, &random(2, 1)).starts_with(expected));
    let floats = y.to_dtype(DType::F32)?;
    assert!(says(&floats, &random((2, 3), 1)).contains("y is f32, expected u32"));
    let too_large = (&y + 5.)?;
    assert!(says(&too_large, &random((2, 3), 1)).contains("label 5 of example 0 is too large"));
    Ok(())
}

/// Wherever it is, and with the others right. What rounding adds to 0 or 1 is fine.
#[test]
fn a_target_that_is_not_from_0_to_1_is_named() -> Result<()> {
    let losses = |dims: (usize, usize), at: usize, value: f32| {
        let mut targets = vec![0.5; dims.0 * dims.1];
        targets[at] = value;
        let y = Tensor::from_vec(targets, dims, &Device::Cpu)?;
        binary_cross_entropy(&Value::new(&random(dims, 1))?, &y)?.eval()
    };
    let expected = "binary_cross_entropy: y has the value ";
    for (dims, at, value, words) in [
        ((4, 1), 3, -1., "-1 in example 3; expected 0 to 1"),
        ((4, 3), 7, 2., "2 in example 2, element 1; expected 0 to 1"),
        (
            (2, 5000),
            9999,
            f32::NAN,
            "NaN in example 1, element 4999; expected 0 to 1",
        ),
        (
            (9000, 1),
            4096,
            f32::INFINITY,
            "inf in example 4096; expected 0 to 1",
        ),
    ] {
        let error = losses(dims, at, value).unwrap_err().to_string();
        assert!(error.contains(&format!("{expected}{words}")), "{error}");
    }
    for value in [0., 1., 1. + f32::EPSILON, -f32::EPSILON] {
        losses((4, 1), 2, value)?;
    }
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
