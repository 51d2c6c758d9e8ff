//! Numbers worked out by hand.

use crate::both::Both;
use crate::support::*;
use candle_core::{Device, Result, Tensor};

/// The value and the gradient of its sum: by the operation and by its reference.
fn by_both(x: &Tensor, network: impl Fn(&Both) -> Result<Both>) -> [[Vec<f32>; 2]; 2] {
    let x = variables(std::slice::from_ref(x)).unwrap();
    let y = network(&Both::new(&x[0]).unwrap()).unwrap();
    let up = y.reference().ones_like().unwrap().detach();
    let theirs = reference_pass(&x, &y.reference(), &up).unwrap();
    let ours = pass(&x, &y.ours(), up).unwrap();
    [ours, theirs].map(|results| [values(&results[0]), values(&results[1])])
}

/// As in PyTorch; candle's own ReLU gives 1 at 0.
#[test]
fn relu_at_zero_infinity_and_nan() {
    let x = [-1., 0., 2., f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
    for [y, gradient] in by_both(&tensor(x.to_vec(), 6), Both::relu) {
        assert_eq!(y[..5], [0., 0., 2., 0., f32::INFINITY]);
        assert!(y[5].is_nan());
        assert_eq!(gradient[..5], [0., 0., 1., 0., 1.]);
    }
}

#[test]
fn max_pooling_of_ties_and_nan() {
    let x = [3., 3., f32::NAN, 1., 0., 3., 9., f32::NEG_INFINITY];
    let x = tensor(x.to_vec(), (1, 2, 4, 1));
    for [y, gradient] in by_both(&x, |x| x.max_pool2d(2, 2)) {
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
    for [losses, gradient] in by_both(&y_hat, |y_hat| y_hat.cross_entropy(&y)) {
        assert_eq!(losses, [0., 2000.]);
        assert_eq!(gradient, [0., 0., -1., 1.]);
    }
}
