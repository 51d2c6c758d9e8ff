//! Numbers worked out by hand, and batch statistics against f64.

use crate::support::{assert_close, numbers, tensor, values};
use candle_core::{Device, Tensor, Var};
use functional as fast;
use functional::plain;

/// The book's LeNet pools 9×9 to 4×4; candle's own gradient shifts each row there.
#[test]
fn average_pooling_of_a_9_wide_row() {
    for pool in [fast::avg_pool2d, plain::avg_pool2d] {
        let x = Var::from_tensor(&tensor(vec![1.; 81], (1, 9, 9, 1))).unwrap();
        let weights: Vec<f32> = (0..16).map(|i| (i % 4) as f32).collect();
        let weighted = pool(&x, 2, 2).unwrap() * tensor(weights, (1, 4, 4, 1));
        let grads = weighted.unwrap().sum_all().unwrap().backward().unwrap();
        let rows = values(grads.get(&x).unwrap());
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
    for relu in [fast::relu, plain::relu] {
        let x = [-1., 0., 2., f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        let x = Var::new(&x, &Device::Cpu).unwrap();
        let y = relu(&x).unwrap();
        let grads = values(y.backward().unwrap().get(&x).unwrap());
        assert_eq!(values(&y)[..5], [0., 0., 2., 0., f32::INFINITY]);
        assert!(values(&y)[5].is_nan());
        assert_eq!(grads[..5], [0., 0., 1., 0., 1.]);
    }
}

#[test]
fn max_pooling_of_ties_and_nan() {
    for pool in [fast::max_pool2d, plain::max_pool2d] {
        let x = [3., 3., f32::NAN, 1., 0., 3., 9., f32::NEG_INFINITY];
        let x = Var::from_tensor(&tensor(x.to_vec(), (1, 2, 4, 1))).unwrap();
        let y = pool(&x, 2, 2).unwrap();
        assert_eq!(values(&y)[0], 3.);
        assert!(values(&y)[1].is_nan());
        let grads = values(y.backward().unwrap().get(&x).unwrap());
        assert_eq!(grads, [1., 0., 1., 0., 0., 0., 0., 0.]);
    }
}

/// The values 1, 2, 3, 6 have mean 3, biased variance 14 / 4, unbiased variance 14 / 3.
#[test]
fn running_statistics() {
    for batch_norm2d in [fast::batch_norm2d, plain::batch_norm2d] {
        let vector = |v: f32| Tensor::new(&[v], &Device::Cpu).unwrap();
        let (mean, var) = (
            Var::from_tensor(&vector(10.)).unwrap(),
            Var::from_tensor(&vector(2.)).unwrap(),
        );
        let x = tensor(vec![1., 2., 3., 6.], (2, 1, 2, 1));
        let norm = |train| {
            let y = batch_norm2d(&x, &vector(2.), &vector(1.), &mean, &var, train).unwrap();
            values(&y)
        };
        let expected = [-2f64, -1., 0., 3.].map(|d| d / (3.5f64 + 1e-5).sqrt() * 2. + 1.);
        assert_close("training", &norm(true), &expected, 1e-6);
        let (running_mean, running_var) = (9. + 0.3, 1.8 + 1.4 / 3.);
        assert_close("mean", &values(&mean), &[running_mean], 1e-6);
        assert_close("variance", &values(&var), &[running_var], 1e-6);
        let scale = 2. / (running_var + 1e-5).sqrt();
        let expected = [1., 2., 3., 6.].map(|v| (v - running_mean) * scale + 1.);
        assert_close("evaluation", &norm(false), &expected, 1e-6);
        assert_close("mean kept", &values(&mean), &[running_mean], 1e-6);
    }
}

/// A mean far from 0, over more values than f32 can add one by one.
#[test]
fn batch_statistics_are_sound() {
    let (pixels, c) = (20_000, 3);
    let x: Vec<f32> = numbers(pixels * c, 1).iter().map(|v| 30. + v).collect();
    let column = |k: usize| x.iter().skip(k).step_by(c).map(|v| f64::from(*v));
    let mean: Vec<f64> = (0..c)
        .map(|k| column(k).sum::<f64>() / pixels as f64)
        .collect();
    let squares = |k: usize| column(k).map(|v| (v - mean[k]).powi(2)).sum::<f64>();
    let var: Vec<f64> = (0..c).map(|k| squares(k) / pixels as f64).collect();

    let input = tensor(x.clone(), (20, 100, 10, c));
    let [ones, zeros] = [1., 0.].map(|v| tensor(vec![v; c], c));
    let running = [&zeros, &zeros].map(|t| Var::from_tensor(t).unwrap());
    let y = fast::batch_norm2d(&input, &ones, &zeros, &running[0], &running[1], true).unwrap();
    let normal = |(i, v): (usize, &f32)| (f64::from(*v) - mean[i % c]) / (var[i % c] + 1e-5).sqrt();
    let expected: Vec<f64> = x.iter().enumerate().map(normal).collect();
    assert_close("y", &values(&y), &expected, 1e-5);
    let tenth: Vec<f64> = mean.iter().map(|m| m / 10.).collect();
    assert_close("mean", &values(&running[0]), &tenth, 1e-6);
    let tenth: Vec<f64> = var.iter().map(|v| v / 10. * 20_000. / 19_999.).collect();
    assert_close("variance", &values(&running[1]), &tenth, 1e-6);
}

/// Logits that overflow exp in f32.
#[test]
fn cross_entropy_of_large_logits() {
    for cross_entropy in [fast::cross_entropy, plain::cross_entropy] {
        let y_hat = Var::new(&[[1000f32, 0.], [-1000., 1000.]], &Device::Cpu).unwrap();
        let y = Tensor::new(&[0u32, 0], &Device::Cpu).unwrap();
        let loss = cross_entropy(&y_hat, &y).unwrap();
        assert_eq!(values(&loss), [0., 2000.]);
        let grads = loss.backward().unwrap();
        assert_eq!(values(grads.get(&y_hat).unwrap()), [0., 0., -1., 1.]);
    }
}
