//! An expression, in which operations become one, equals its operations one by one.

use crate::support::{assert_same, cases, coarse, random, values};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Expr, plain};
use proptest::prelude::*;

const TOLERANCE: f64 = 1e-4;

fn assert_expression(inputs: &[Tensor], expr: impl Fn(&[Tensor]) -> Expr) {
    assert_same(
        inputs,
        TOLERANCE,
        |t| expr(t).eval(),
        |t| plain::eval(&expr(t)),
    );
}

fn statistics(c: usize) -> [Var; 2] {
    let ones = Var::ones(c, DType::F32, &Device::Cpu).unwrap();
    [Var::from_tensor(&random(c, 9)).unwrap(), ones]
}

/// Batch norm with running statistics of its own: their changes are not checked.
fn norm(x: Expr, t: &[Tensor], train: bool) -> Expr {
    let [mean, var] = statistics(t[0].dim(0).unwrap());
    x.batch_norm2d(&t[0], &t[1], &mean, &var, train)
}

/// Whether ReLU cuts the same values off however they are rounded.
fn away_from_zero(expr: &Expr) -> bool {
    let y = plain::eval(expr).unwrap();
    values(&y).iter().all(|v| v.abs() > 1e-5)
}

/// The running mean sees a convolution's bias, which the batch's own mean takes out again.
#[test]
fn a_bias_before_batch_norm_moves_the_running_mean() {
    let inputs = [random((3, 7, 6, 5), 1), random((8, 5, 3, 3), 1)];
    let inputs = [&inputs[..], &[2, 3, 4].map(|seed| random(8, seed))].concat();
    let (ours, theirs) = (statistics(8), statistics(8));
    let expr = |t: &[Tensor], [mean, var]: &[Var; 2]| {
        let y = Expr::new(&t[0]).conv2d(&t[1], Some(&t[2]), 1, 1);
        y.batch_norm2d(&t[3], &t[4], mean, var, true).relu()
    };
    assert_same(
        &inputs,
        TOLERANCE,
        |t| expr(t, &ours).eval(),
        |t| plain::eval(&expr(t, &theirs)),
    );
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_same(&[], 1e-5, |_| ours.copy(), |_| theirs.copy());
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn convolution_relu_pooling(
        (b, i, o) in (0usize..4, 1usize..6, 1usize..40),
        (kh, kw) in (1usize..6, 1usize..6),
        (more_h, more_w) in (0usize..13, 0usize..13),
        (stride, padding, pool) in (1usize..3, 0usize..2, 1usize..4),
        (relu, with_bias) in any::<(bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let (h, w) = (kh + more_h + (pool - 1) * stride, kw + more_w + (pool - 1) * stride);
        let mut inputs = vec![coarse((b, h, w, i), seed), coarse((o, i, kh, kw), seed + 1)];
        if with_bias {
            inputs.push(coarse(o, seed + 2));
        }
        assert_expression(&inputs, |t| {
            let y = Expr::new(&t[0]).conv2d(&t[1], t.get(2), stride, padding);
            let y = if relu { y.relu() } else { y };
            y.avg_pool2d(pool, pool)
        });
    }

    #[test]
    fn linear_relu((b, i, o) in (0usize..100, 1usize..40, 1usize..80), seed in 0u64..1000) {
        let inputs = [coarse((b, i), seed), coarse((o, i), seed + 1), coarse(o, seed + 2)];
        assert_expression(&inputs, |t| Expr::new(&t[0]).linear(&t[1], Some(&t[2])).relu());
    }

    #[test]
    fn norm_sum_relu(
        (b, h, w, c) in (2usize..5, 1usize..9, 2usize..9, 1usize..70),
        (train, shortcut, relu, first) in any::<(bool, bool, bool, bool)>(),
        seed in 0u64..1000,
    ) {
        let x = || random((b, h, w, c), seed);
        let inputs = [x(), random(c, seed + 1), random(c, seed + 2), random((b, h, w, c), seed + 3)];
        let inputs = if shortcut { &inputs[..] } else { &inputs[..3] };
        let sum = |t: &[Tensor]| {
            let y = norm(Expr::new(&t[0]), &t[1..], train);
            match t.get(3) {
                Some(other) if first => Expr::new(other) + y,
                Some(other) => y + Expr::new(other),
                None => y,
            }
        };
        prop_assume!(!relu || away_from_zero(&sum(inputs)));
        assert_expression(inputs, |t| if relu { sum(t).relu() } else { sum(t) });
    }

    /// A block of the residual network; it reads its input twice. With a 1 × 1 convolution in the shortcut
    /// it goes from 3 channels to `o`, without one from `o` to `o`.
    #[test]
    fn residual_block(
        (b, h, w, o) in (2usize..4, 2usize..8, 2usize..8, 2usize..9),
        (with_conv, train) in any::<(bool, bool)>(),
        stride in 1usize..3,
        seed in 0u64..1000,
    ) {
        let (i, stride) = if with_conv { (3, stride) } else { (o, 1) };
        let mut inputs = vec![random((b, h, w, i), seed)];
        for (n, shape) in [(o, i), (o, o)].into_iter().enumerate() {
            let seed = seed + 10 * n as u64;
            inputs.push(random((shape.0, shape.1, 3, 3), seed + 1));
            inputs.extend([2, 3].map(|n| random(o, seed + n)));
        }
        if with_conv {
            inputs.push(random((o, i, 1, 1), seed + 5));
        }
        let first = |t: &[Tensor]| {
            norm(Expr::new(&t[0]).conv2d(&t[1], None, stride, 1), &t[2..], train)
        };
        let sum = |t: &[Tensor]| {
            let x = Expr::new(&t[0]);
            let y = norm(x.clone().conv2d(&t[1], None, stride, 1), &t[2..], train).relu();
            let y = norm(y.conv2d(&t[4], None, 1, 1), &t[5..], train);
            let x = match t.get(7) {
                Some(w) => x.conv2d(w, None, stride, 0),
                None => x,
            };
            y + x
        };
        prop_assume!(away_from_zero(&first(&inputs)) && away_from_zero(&sum(&inputs)));
        assert_expression(&inputs, |t| sum(t).relu());
    }
}

#[test]
fn a_value_that_is_read_often_gets_all_its_gradient() {
    let x = [random((2, 3, 4, 5), 1)];
    let twice = |t: &[Tensor]| Expr::new(&t[0]) + Expr::new(&t[0]);
    assert_expression(&x, twice);
    assert_expression(&x, |t| twice(t).relu());
    assert_expression(&x, |t| {
        let y = Expr::new(&t[0]).relu();
        (y.clone() + y.clone()).relu() + y.clone().max_pool2d(1, 1) + y
    });
    let inputs = [random((2, 3, 4, 5), 1), random(5, 2), random(5, 3)];
    assert_expression(&inputs, |t| {
        let y = norm(Expr::new(&t[0]), &t[1..], true);
        (y.clone() + Expr::new(&t[0])).relu() + y
    });
}

#[test]
fn the_books_lenet() -> Result<()> {
    let inputs = [
        coarse((3, 1, 28, 28), 1),
        coarse((20, 1, 3, 3), 2),
        coarse(20, 3),
        coarse((50, 20, 5, 5), 4),
        // the second convolution's sums are multiples of 1/2048, which Winograd's algorithm rounds
        coarse(50, 5).affine(1., 1. / 4096.)?,
        coarse((128, 800), 6),
        coarse(128, 7),
    ];
    assert_expression(&inputs, |t| {
        let first = Expr::new(&t[0]).nhwc().conv2d(&t[1], Some(&t[2]), 1, 0);
        let second = first
            .relu()
            .avg_pool2d(2, 2)
            .conv2d(&t[3], Some(&t[4]), 1, 0);
        let vectors = second.relu().avg_pool2d(2, 2).flatten();
        vectors.linear(&t[5], Some(&t[6])).relu()
    });
    Ok(())
}

/// The mean takes the bias out again, so its gradient is zero but for rounding.
#[test]
fn a_bias_before_batch_norm_gets_a_gradient_of_zeros() -> Result<()> {
    let bias = Var::from_tensor(&random(3, 3))?;
    let (x, w) = (random((2, 5, 5, 2), 1), random((3, 2, 3, 3), 2));
    let y = Expr::new(&x).conv2d(&w, Some(&bias), 1, 1);
    let y = norm(y, &[random(3, 4), random(3, 5)], true).eval()?;
    let grads = y.sqr()?.sum_all()?.backward()?;
    assert_eq!(values(grads.get(&bias).expect("a gradient")), [0.; 3]);
    Ok(())
}

#[test]
fn running_statistics_move_once_an_evaluation() -> Result<()> {
    let (x, c) = (random((2, 3, 3, 2), 1), random(2, 2));
    let [mean, var] = statistics(2);
    let y = Expr::new(&x).batch_norm2d(&c, &c, &mean, &var, true);
    let before = values(&mean);
    let once = (y.clone() + y).relu();
    assert_eq!(values(&mean), before, "nothing is computed before eval");
    once.eval()?;
    let [plain_mean, plain_var] = statistics(2);
    plain::batch_norm2d(&x, &c, &c, &plain_mean, &plain_var, true)?;
    for (ours, theirs) in [(mean, plain_mean), (var, plain_var)] {
        for (a, b) in values(&ours).iter().zip(values(&theirs)) {
            assert!((a - b).abs() < 1e-6);
        }
    }
    Ok(())
}

/// Images of one channel need no other order; everything else is as it always is.
#[test]
fn images_of_one_channel() -> Result<()> {
    let images = random((2, 1, 3, 5), 1);
    let inputs = [images];
    assert_expression(&inputs, |t| Expr::new(&t[0]).nhwc());
    assert_expression(&inputs, |t| {
        let x = Expr::new(&t[0]).nhwc();
        x.clone().relu() + x
    });
    let views = [random((2, 1, 5, 3), 1)];
    let view = |t: &[Tensor]| Expr::new(&t[0].transpose(2, 3).unwrap()).nhwc().relu();
    assert_expression(&views, view);
    let tracked = Var::from_tensor(&inputs[0])?;
    let evaluated = functional::no_grad(|| functional::nhwc(&tracked))?;
    assert!(!evaluated.track_op());
    let bytes = inputs[0].to_dtype(DType::U8)?;
    assert!(functional::nhwc(&bytes).is_err() && plain::nhwc(&bytes).is_err());
    Ok(())
}

/// Two batch norms that share running statistics move them in their order.
#[test]
fn statistics_that_two_layers_share() -> Result<()> {
    let (a, b, c) = (
        random((2, 3, 3, 2), 1),
        random((2, 3, 3, 2), 2),
        random(2, 3),
    );
    let moved = |eval: fn(&Expr) -> Result<Tensor>| -> Result<Vec<f32>> {
        let [mean, var] = statistics(2);
        let norm = |x: &Tensor| Expr::new(x).batch_norm2d(&c, &c, &mean, &var, true);
        eval(&(norm(&a) + norm(&b)))?;
        Ok(values(&mean))
    };
    let (ours, theirs) = (moved(Expr::eval)?, moved(plain::eval)?);
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a - b).abs() < 1e-6, "{ours:?} {theirs:?}");
    }
    Ok(())
}

#[test]
fn pooling_of_no_images_is_refused() {
    let (x, w) = (random((2, 3), 1), random((4, 3), 2));
    let pooled = Expr::new(&x).linear(&w, None).avg_pool2d(1, 1);
    assert!(pooled.eval().is_err() && plain::eval(&pooled).is_err());
    let x = random((2, 3, 3, 0), 1);
    let [mean, var] = statistics(0);
    let empty = random(0, 1);
    for train in [true, false] {
        let y = Expr::new(&x).batch_norm2d(&empty, &empty, &mean, &var, train);
        assert!(y.eval().is_err() && plain::eval(&y).is_err());
    }
}

#[test]
fn a_sum_of_two_shapes_is_refused() {
    let (x, other) = (random((2, 3), 1), random((3, 2), 2));
    let sum = Expr::new(&x) + Expr::new(&other);
    for error in [sum.eval(), plain::eval(&sum)] {
        let message = error.expect_err("an error").to_string();
        assert!(
            message.contains("x has shape [2, 3], other [3, 2]"),
            "{message}"
        );
    }
}
