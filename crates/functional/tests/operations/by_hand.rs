//! Numbers worked out by hand.

use crate::both::Both;
use crate::support::*;
use candle_core::{Device, Result, Tensor};
use functional::{Gradients, Value};

/// The value and the gradient under `up`, or that of the sum: by the operation and by its reference.
fn by_both(
    x: &Tensor,
    up: Option<Tensor>,
    network: impl Fn(&Both) -> Result<Both>,
) -> [[Vec<f32>; 2]; 2] {
    let x = variables(std::slice::from_ref(x)).unwrap();
    let y = network(&Both::new(&x[0]).unwrap()).unwrap();
    let up = up.unwrap_or_else(|| y.reference().ones_like().unwrap().detach());
    let theirs = reference_pass(&x, &y.reference(), &up).unwrap();
    let ours = pass(&x, &y.ours(), up).unwrap();
    [ours, theirs].map(|results| [values(&results[0]), values(&results[1])])
}

/// The book's LeNet pools 9×9 to 4×4; candle's own gradient shifts each row there.
#[test]
fn average_pooling_of_a_9_wide_row() {
    let x = tensor(vec![1.; 81], (1, 9, 9, 1));
    let columns = tensor((0..16).map(|i| (i % 4) as f32).collect(), (1, 4, 4, 1));
    for [_, rows] in by_both(&x, Some(columns), |x| x.avg_pool2d(2, 2)) {
        let expected = [0., 0., 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 0.];
        for row in rows.chunks(9).take(8) {
            assert_eq!(row, expected);
        }
        assert_eq!(rows[72..], [0.; 9]);
    }
}

/// As in PyTorch; candle's own ReLU gives 1 at 0.
#[test]
fn relu_at_zero_infinity_and_nan() {
    let x = [-1., 0., 2., f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
    for [y, gradient] in by_both(&tensor(x.to_vec(), 6), None, Both::relu) {
        assert_eq!(y[..5], [0., 0., 2., 0., f32::INFINITY]);
        assert!(y[5].is_nan());
        assert_eq!(gradient[..5], [0., 0., 1., 0., 1.]);
    }
}

#[test]
fn max_pooling_of_ties_and_nan() {
    let x = [3., 3., f32::NAN, 1., 0., 3., 9., f32::NEG_INFINITY];
    let x = tensor(x.to_vec(), (1, 2, 4, 1));
    for [y, gradient] in by_both(&x, None, |x| x.max_pool2d(2, 2)) {
        assert_eq!(y[0], 3.);
        assert!(y[1].is_nan());
        assert_eq!(gradient, [1., 0., 1., 0., 0., 0., 0., 0.]);
    }
}

/// Logits that overflow exp in f32.
#[test]
fn cross_entropy_of_large_logits() {
    let y_hat = tensor(vec![1000., 0., -1000., 1000.], (2, 2));
    let y = Tensor::new(&[0u32, 0], &Device::Cpu).unwrap();
    for [losses, gradient] in by_both(&y_hat, None, |y_hat| y_hat.cross_entropy(&y)) {
        assert_eq!(losses, [0., 2000.]);
        assert_eq!(gradient, [0., 0., -1., 1.]);
    }
}

/// The values 1, 2, 3, 6 have mean 3, biased variance 14 / 4, unbiased variance 14 / 3.
#[test]
fn running_statistics() -> Result<()> {
    let vars = variables(&[2., 1., 10., 2.].map(|v| tensor(vec![v], 1)))?;
    let [weight, bias, mean, var] = [&vars[0], &vars[1], &vars[2], &vars[3]];
    let x = Value::new(&tensor(vec![1., 2., 3., 6.], (2, 1, 2, 1)))?;
    // they move in a backward pass
    let norm = |train| -> Result<Vec<f32>> {
        let y = x.batch_norm2d(weight, bias, mean, var, train)?;
        let mut gradients = Gradients::new([("w", weight), ("b", bias)], usize::MAX)?;
        gradients.backward_with(&y.sum()?, with(None, &[&y]))?;
        Ok(values(&y.eval()?))
    };
    let expected = [-2f64, -1., 0., 3.].map(|d| d / (3.5f64 + 1e-5).sqrt() * 2. + 1.);
    assert_close("training", &norm(true)?, &expected, 1e-6);
    let (running_mean, running_var) = (9. + 0.3, 1.8 + 1.4 / 3.);
    assert_close("mean", &values(mean), &[running_mean], 1e-6);
    assert_close("variance", &values(var), &[running_var], 1e-6);
    let scale = 2. / (running_var + 1e-5).sqrt();
    let expected = [1., 2., 3., 6.].map(|v| (v - running_mean) * scale + 1.);
    assert_close("evaluation", &norm(false)?, &expected, 1e-6);
    assert_close("mean kept", &values(mean), &[running_mean], 1e-6);
    Ok(())
}
