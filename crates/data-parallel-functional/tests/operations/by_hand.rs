//! Numbers worked out by hand.

use crate::both::Both;
use crate::support::*;
use candle_core::{Device, Result, Tensor};
use functional::Value;

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

/// Of a million elements: as many are kept as should be, in every bit of their place, and no two seeds agree.
#[test]
fn dropout_keeps_what_it_should() -> Result<()> {
    let n = 1 << 20;
    let ones = Value::new(&tensor(vec![1.; n], n))?;
    let kept = |p: f64, seed: u64| -> Result<Vec<f64>> {
        let y = values(&ones.dropout(p, seed)?.eval()?);
        let scale = (1. / (1. - p)) as f32;
        assert!(y.iter().all(|y| *y == 0. || *y == scale));
        Ok(y.iter().map(|y| f64::from(u8::from(*y > 0.))).collect())
    };
    let mean = |values: &mut dyn Iterator<Item = f64>, n: usize| values.sum::<f64>() / n as f64;
    // four standard deviations of a mean over `n`
    let near =
        |found: f64, p: f64, n: usize| (found - p).abs() < 4. * (p * (1. - p) / n as f64).sqrt();
    for (p, seed) in [(0.1, 0), (0.5, 1), (0.9, 1 << 40)] {
        let kept = kept(p, seed)?;
        assert!(near(mean(&mut kept.iter().copied(), n), 1. - p, n), "p {p}");
        for bit in 0..20 {
            let half = kept.iter().enumerate().filter(|(i, _)| i >> bit & 1 == 1);
            let half = mean(&mut half.map(|(_, kept)| *kept), n / 2);
            assert!(near(half, 1. - p, n / 2), "p {p}, bit {bit}: {half}");
        }
        for apart in [1, 2, 7, 64, 1024] {
            let both = kept.iter().zip(&kept[apart..]).map(|(a, b)| a * b);
            let both = mean(&mut both.into_iter(), n - apart);
            let is_near = near(both, (1. - p) * (1. - p), n - apart);
            assert!(is_near, "p {p}, {apart} apart: {both}");
        }
    }
    let half = kept(0.5, 0)?;
    for seed in [1, 2, 3, 1 << 32, 1 << 40, u64::MAX] {
        let same = kept(0.5, seed)?.into_iter().zip(&half);
        let same = mean(&mut same.map(|(a, b)| f64::from(u8::from(a == *b))), n);
        assert!(near(same, 0.5, n), "seed {seed}: {same}");
    }
    Ok(())
}
