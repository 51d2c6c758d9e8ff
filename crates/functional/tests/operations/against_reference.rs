//! Each operation equals its reference on random shapes, in the value and in all gradients.

use crate::reference;
use crate::support::{assert_near, assert_same, cases, labels, numbers, random, tensor, values};
use candle_core::{Device, Var};
use functional::Value;
use proptest::prelude::*;

/// Both sum in f32, in different orders, up to a few hundred products.
const TOLERANCE: f64 = 1e-5;

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn sum_and_mean((rows, columns) in (0usize..9, 1usize..9), seed in 0u64..1000) {
        let x = [random((rows, columns), seed)];
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.sum(), |t| reference::sum(&t[0]));
        let x = [random((rows + 1, columns), seed)]; // nothing has no mean
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.mean(), |t| reference::mean(&t[0]));
    }

    #[test]
    fn conv2d(
        (b, i, o) in (0usize..4, 1usize..6, 1usize..7),
        (kh, kw) in (1usize..5, 1usize..5),
        (more_h, more_w) in (0usize..9, 0usize..9),
        (stride, padding) in (1usize..4, 0usize..6),
        with_bias: bool,
        seed in 0u64..1000,
    ) {
        let (h, w) = ((kh + more_h).saturating_sub(2 * padding), (kw + more_w).saturating_sub(2 * padding));
        let (h, w) = (h.max(1), w.max(1));
        let mut inputs = vec![random((b, h, w, i), seed), random((o, i, kh, kw), seed + 1)];
        if with_bias {
            inputs.push(random(o, seed + 2));
        }
        assert_same(
            &inputs,
            TOLERANCE,
            |t| Value::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding),
            |t| reference::conv2d(&t[0], &t[1], t.get(2), stride, padding),
        );
    }

    /// Whole panels of channels, which Winograd's algorithm computes.
    #[test]
    fn conv2d_of_many_channels(
        (b, h, w) in (0usize..3, 1usize..10, 1usize..10),
        (i, o) in (1usize..3, 1usize..3),
        with_bias: bool,
        seed in 0u64..1000,
    ) {
        let (i, o) = (64 * i, 64 * o);
        let mut inputs = vec![random((b, h, w, i), seed), random((o, i, 3, 3), seed + 1)];
        if with_bias {
            inputs.push(random(o, seed + 2));
        }
        assert_same(
            &inputs,
            TOLERANCE,
            |t| Value::new(&t[0])?.conv2d(&t[1], t.get(2), 1, 1),
            |t| reference::conv2d(&t[0], &t[1], t.get(2), 1, 1),
        );
    }

    #[test]
    fn pooling(
        (b, c) in (0usize..4, 1usize..6),
        (kernel, stride) in (1usize..4, 1usize..4),
        (more_h, more_w) in (0usize..9, 0usize..9),
        seed in 0u64..1000,
    ) {
        let x = [random((b, kernel + more_h, kernel + more_w, c), seed)];
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.avg_pool2d(kernel, stride), |t| reference::avg_pool2d(&t[0], kernel, stride));
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.global_avg_pool2d(), |t| reference::global_avg_pool2d(&t[0]));
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.max_pool2d(kernel, stride), |t| reference::max_pool2d(&t[0], kernel, stride));
        // few different values: most windows have several maxima, and the first gets the gradient
        let ties = values(&x[0]).iter().map(|v| (v * 2.).round()).collect();
        let x = [tensor(ties, x[0].shape())];
        assert_same(&x, TOLERANCE, |t| Value::new(&t[0])?.max_pool2d(kernel, stride), |t| reference::max_pool2d(&t[0], kernel, stride));
    }

    #[test]
    fn orders((b, h, w, c) in (0usize..4, 1usize..6, 1usize..6, 1usize..6), seed in 0u64..1000) {
        let x = [random((b, h, w, c), seed)];
        assert_same(&x, 0., |t| Value::new(&t[0])?.nhwc(), |t| reference::nhwc(&t[0]));
        assert_same(&x, 0., |t| Value::new(&t[0])?.flatten(), |t| reference::flatten(&t[0]));
    }

    #[test]
    fn relu(n in 0usize..100, seed in 0u64..1000) {
        // every third value is exactly 0
        let x = numbers(n, seed).into_iter().enumerate().map(|(i, v)| if i % 3 == 0 { 0. } else { v });
        let x = [tensor(x.collect(), n)];
        assert_same(&x, 0., |t| Value::new(&t[0])?.relu(), |t| reference::relu(&t[0]));
    }

    #[test]
    fn linear((b, i, o) in (0usize..200, 1usize..40, 1usize..150), with_bias: bool, seed in 0u64..1000) {
        let mut inputs = vec![random((b, i), seed), random((o, i), seed + 1)];
        if with_bias {
            inputs.push(random(o, seed + 2));
        }
        assert_same(
            &inputs,
            TOLERANCE,
            |t| Value::new(&t[0])?.linear(&t[1], t.get(2)),
            |t| reference::linear(&t[0], &t[1], t.get(2)),
        );
        inputs[1] = inputs[1].t().unwrap().contiguous().unwrap();
        assert_same(
            &inputs,
            TOLERANCE,
            |t| Value::new(&t[0])?.matmul(&t[1], t.get(2)),
            |t| reference::matmul(&t[0], &t[1], t.get(2)),
        );
    }

    #[test]
    fn cross_entropy((b, c) in (0usize..150, 1usize..12), scale in 0.1f64..30., seed in 0u64..1000) {
        let y_hat = [(random((b, c), seed) * scale).unwrap()];
        let y = labels(b, c, seed + 1);
        assert_same(&y_hat, TOLERANCE, |t| functional::cross_entropy(&Value::new(&t[0])?, &y), |t| reference::cross_entropy(&t[0], &y));
    }

    #[test]
    fn squared_error((b, more) in (0usize..50, prop::collection::vec(1usize..4, 0..3)), seed in 0u64..1000) {
        let shape = [&[b], &more[..]].concat();
        let (y_hat, y) = ([random(&shape[..], seed)], random(&shape[..], seed + 1));
        assert_same(
            &y_hat,
            TOLERANCE,
            |t| functional::squared_error(&Value::new(&t[0])?, &y),
            |t| reference::squared_error(&t[0], &y),
        );
    }

    #[test]
    fn batch_norm2d(
        (b, h, w, c) in (1usize..5, 1usize..12, 1usize..12, 1usize..9),
        train: bool,
        seed in 0u64..1000,
    ) {
        prop_assume!(!train || b * h * w > 3); // of 2 values each is ±1: the gradient is rounding
        let inputs = [random((b, h, w, c), seed), random(c, seed + 1), random(c, seed + 2)];
        let running = || [Var::from_tensor(&random(c, seed + 3)).unwrap(), Var::ones(c, candle_core::DType::F32, &Device::Cpu).unwrap()];
        let (ours, theirs) = (running(), running());
        assert_same(
            &inputs,
            1e-4,
            |t| Value::new(&t[0])?.batch_norm2d(&t[1], &t[2], &ours[0], &ours[1], train),
            |t| reference::batch_norm2d(&t[0], &t[1], &t[2], &theirs[0], &theirs[1], train),
        );
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_near("running statistics", &values(ours), &values(theirs), TOLERANCE);
        }
    }
}
