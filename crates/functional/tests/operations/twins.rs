//! Each operation equals its plain twin on random shapes, in the value and in all gradients.

use crate::support::{assert_same, cases, labels, numbers, random, tensor, values};
use candle_core::{Device, Result, Tensor, Var};
use functional as fast;
use functional::plain;
use proptest::prelude::*;

/// Both sum in f32, in different orders, up to a few hundred products.
const TOLERANCE: f64 = 1e-5;

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn sum((rows, columns) in (0usize..9, 1usize..9), seed in 0u64..1000) {
        let x = [random((rows, columns), seed)];
        assert_same(&x, TOLERANCE, |t| fast::sum(&t[0]), |t| plain::sum(&t[0]));
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
            |t| fast::conv2d(&t[0], &t[1], t.get(2), stride, padding),
            |t| plain::conv2d(&t[0], &t[1], t.get(2), stride, padding),
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
            |t| fast::conv2d(&t[0], &t[1], t.get(2), 1, 1),
            |t| plain::conv2d(&t[0], &t[1], t.get(2), 1, 1),
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
        assert_same(&x, TOLERANCE, |t| fast::avg_pool2d(&t[0], kernel, stride), |t| plain::avg_pool2d(&t[0], kernel, stride));
        assert_same(&x, TOLERANCE, |t| fast::global_avg_pool2d(&t[0]), |t| plain::global_avg_pool2d(&t[0]));
        assert_same(&x, TOLERANCE, |t| fast::max_pool2d(&t[0], kernel, stride), |t| plain::max_pool2d(&t[0], kernel, stride));
        // few different values: most windows have several maxima, and the first gets the gradient
        let ties = values(&x[0]).iter().map(|v| (v * 2.).round()).collect();
        let x = [tensor(ties, x[0].shape())];
        assert_same(&x, TOLERANCE, |t| fast::max_pool2d(&t[0], kernel, stride), |t| plain::max_pool2d(&t[0], kernel, stride));
    }

    #[test]
    fn orders((b, h, w, c) in (0usize..4, 1usize..6, 1usize..6, 1usize..6), seed in 0u64..1000) {
        let x = [random((b, h, w, c), seed)];
        assert_same(&x, 0., |t| fast::nhwc(&t[0]), |t| plain::nhwc(&t[0]));
        assert_same(&x, 0., |t| fast::flatten(&t[0]), |t| plain::flatten(&t[0]));
    }

    #[test]
    fn relu(n in 0usize..100, seed in 0u64..1000) {
        // every third value is exactly 0
        let x = numbers(n, seed).into_iter().enumerate().map(|(i, v)| if i % 3 == 0 { 0. } else { v });
        let x = [tensor(x.collect(), n)];
        assert_same(&x, 0., |t| fast::relu(&t[0]), |t| plain::relu(&t[0]));
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
            |t| fast::linear(&t[0], &t[1], t.get(2)),
            |t| plain::linear(&t[0], &t[1], t.get(2)),
        );
        inputs[1] = inputs[1].t().unwrap().contiguous().unwrap();
        assert_same(
            &inputs,
            TOLERANCE,
            |t| fast::matmul(&t[0], &t[1], t.get(2)),
            |t| plain::matmul(&t[0], &t[1], t.get(2)),
        );
    }

    #[test]
    fn cross_entropy((b, c) in (0usize..150, 1usize..12), scale in 0.1f64..30., seed in 0u64..1000) {
        let y_hat = [(random((b, c), seed) * scale).unwrap()];
        let y = labels(b, c, seed + 1);
        assert_same(&y_hat, TOLERANCE, |t| fast::cross_entropy(&t[0], &y), |t| plain::cross_entropy(&t[0], &y));
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
            |t| fast::batch_norm2d(&t[0], &t[1], &t[2], &ours[0], &ours[1], train),
            |t| plain::batch_norm2d(&t[0], &t[1], &t[2], &theirs[0], &theirs[1], train),
        );
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_same(&[], TOLERANCE, |_| constant(ours), |_| constant(theirs));
        }
    }
}

/// A running statistic as the result of an operation without inputs.
fn constant(v: &Var) -> Result<Tensor> {
    Ok(v.as_tensor().clone())
}
