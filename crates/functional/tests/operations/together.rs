//! Operations that are computed together, of which some become one, equal the reference's one by one.

use crate::both::{Both, assert_both};
use crate::support::{assert_near, cases, coarse, random, values, variables};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Gradients, Value};
use proptest::prelude::*;

const TOLERANCE: f64 = 1e-4;

fn statistics(c: usize) -> [Var; 2] {
    let ones = Var::ones(c, DType::F32, &Device::Cpu).unwrap();
    [Var::from_tensor(&random(c, 9)).unwrap(), ones]
}

/// Batch norm with running statistics of its own: their changes are not checked.
fn norm(x: &Both, t: &[Tensor], train: bool) -> Result<Both> {
    let c = t[0].dim(0)?;
    let running = [statistics(c), statistics(c)];
    x.batch_norm2d(&t[0], &t[1], &running, train)
}

/// Whether ReLU cuts the same values off however they are rounded.
fn away_from_zero(x: Result<Both>) -> bool {
    values(&x.unwrap().reference).iter().all(|v| v.abs() > 1e-5)
}

/// The running mean sees a convolution's bias, which the batch's own mean takes out again.
#[test]
fn a_bias_before_batch_norm_moves_the_running_mean() {
    let inputs = [random((3, 7, 6, 5), 1), random((8, 5, 3, 3), 1)];
    let inputs = [&inputs[..], &[2, 3, 4].map(|seed| random(8, seed))].concat();
    let running = [statistics(8), statistics(8)];
    let before = values(&running[0][0]);
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 1)?;
        y.batch_norm2d(&t[3], &t[4], &running, true)?.relu()
    });
    assert_ne!(values(&running[0][0]), before);
    for (ours, theirs) in running[0].iter().zip(&running[1]) {
        assert_near("running statistics", &values(ours), &values(theirs), 1e-5);
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
        assert_both(&inputs, TOLERANCE, |t| {
            let y = Both::new(&t[0])?.conv2d(&t[1], t.get(2), stride, padding)?;
            let y = if relu { y.relu()? } else { y };
            y.avg_pool2d(pool, pool)
        });
    }

    #[test]
    fn linear_relu((b, i, o) in (0usize..100, 1usize..40, 1usize..80), seed in 0u64..1000) {
        let mut inputs = [coarse((b, i), seed), coarse((o, i), seed + 1), coarse(o, seed + 2)];
        assert_both(&inputs, TOLERANCE, |t| Both::new(&t[0])?.linear(&t[1], Some(&t[2]))?.relu());
        inputs[1] = coarse((i, o), seed + 3);
        assert_both(&inputs, TOLERANCE, |t| Both::new(&t[0])?.matmul(&t[1], Some(&t[2]))?.relu());
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
            let y = norm(&Both::new(&t[0])?, &t[1..], train)?;
            match t.get(3) {
                Some(other) if first => Both::new(other)?.plus(&y),
                Some(other) => y.plus(&Both::new(other)?),
                None => Ok(y),
            }
        };
        prop_assume!(!relu || away_from_zero(sum(inputs)));
        assert_both(inputs, TOLERANCE, |t| if relu { sum(t)?.relu() } else { sum(t) });
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
            norm(&Both::new(&t[0])?.conv2d(&t[1], None, stride, 1)?, &t[2..], train)
        };
        let sum = |t: &[Tensor]| {
            let x = Both::new(&t[0])?;
            let y = norm(&x.conv2d(&t[1], None, stride, 1)?, &t[2..], train)?.relu()?;
            let y = norm(&y.conv2d(&t[4], None, 1, 1)?, &t[5..], train)?;
            let x = match t.get(7) {
                Some(w) => x.conv2d(w, None, stride, 0)?,
                None => x,
            };
            y.plus(&x)
        };
        prop_assume!(away_from_zero(first(&inputs)) && away_from_zero(sum(&inputs)));
        assert_both(&inputs, TOLERANCE, |t| sum(t)?.relu());
    }
}

#[test]
fn a_value_that_is_read_often_gets_all_its_gradient() {
    let x = [random((2, 3, 4, 5), 1)];
    let twice = |t: &[Tensor]| Both::new(&t[0])?.plus(&Both::new(&t[0])?);
    assert_both(&x, TOLERANCE, twice);
    assert_both(&x, TOLERANCE, |t| twice(t)?.relu());
    assert_both(&x, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.relu()?;
        y.plus(&y)?.relu()?.plus(&y.max_pool2d(1, 1)?)?.plus(&y)
    });
    let inputs = [random((2, 3, 4, 5), 1), random(5, 2), random(5, 3)];
    assert_both(&inputs, TOLERANCE, |t| {
        let y = norm(&Both::new(&t[0])?, &t[1..], true)?;
        y.plus(&Both::new(&t[0])?)?.relu()?.plus(&y)
    });
}

/// An operation is part of another only where nothing else reads what lies between them.
#[test]
fn what_lies_between_may_be_read_elsewhere() {
    let x = || coarse((3, 9, 8, 4), 1);
    let inputs = [x(), coarse((6, 4, 3, 3), 2), coarse(6, 3)];
    // the convolution before its ReLU, and the ReLU before its pooling
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
        y.relu()?.avg_pool2d(2, 2)?.plus(&y.max_pool2d(2, 2)?)
    });
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?.relu()?;
        y.avg_pool2d(2, 2)?.plus(&y.max_pool2d(2, 2)?)
    });
    // the convolution before its batch norm, whose bias is not left out then
    let inputs = [&inputs[..], &[random(6, 4), random(6, 5)]].concat();
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
        norm(&y, &t[3..], true)?.plus(&y)
    });
    let inputs = [coarse((5, 7), 1), coarse((4, 7), 2)];
    assert_both(&inputs, TOLERANCE, |t| {
        let y = Both::new(&t[0])?.linear(&t[1], None)?;
        y.relu()?.plus(&y)
    });
}

fn lenet() -> Vec<Tensor> {
    vec![
        coarse((3, 1, 28, 28), 1),
        coarse((20, 1, 3, 3), 2),
        coarse(20, 3),
        coarse((50, 20, 5, 5), 4),
        // the second convolution's sums are multiples of 1/2048, which Winograd's algorithm rounds
        coarse(50, 5).affine(1., 1. / 4096.).unwrap(),
        coarse((128, 800), 6),
        coarse(128, 7),
    ]
}

#[test]
fn the_books_lenet() {
    assert_both(&lenet(), TOLERANCE, |t| {
        let first = Both::new(&t[0])?.nhwc()?.conv2d(&t[1], Some(&t[2]), 1, 0)?;
        let first = first.relu()?.avg_pool2d(2, 2)?;
        let second = first.conv2d(&t[3], Some(&t[4]), 1, 0)?;
        let vectors = second.relu()?.avg_pool2d(2, 2)?.flatten()?;
        vectors.linear(&t[5], Some(&t[6]))?.relu()
    });
}

/// The mean takes the bias out again, so its gradient is zero but for rounding.
#[test]
fn a_bias_before_batch_norm_gets_a_gradient_of_zeros() -> Result<()> {
    let bias = Var::from_tensor(&random(3, 3))?;
    let (x, w) = (random((2, 5, 5, 2), 1), random((3, 2, 3, 3), 2));
    let y = Value::new(&x)?.conv2d(&w, Some(&bias), 1, 1)?;
    let [mean, var] = statistics(3);
    let y = y.batch_norm2d(&random(3, 4), &random(3, 5), &mean, &var, true)?;
    let loss = functional::squared_error(&y, &random((2, 5, 5, 3), 6))?.sum()?;
    let grad = Var::from_tensor(&random(3, 7))?;
    functional::backward(&loss, [(&bias, &grad)])?;
    assert_eq!(values(&grad), [0.; 3]);
    Ok(())
}

#[test]
fn running_statistics_move_once_a_pass_however_often_the_norm_is_read() -> Result<()> {
    let (x, c) = (random((2, 3, 3, 2), 1), variables(&[random(2, 2)])?);
    let running = [statistics(2), statistics(2)];
    let y = Both::new(&x)?.batch_norm2d(&c[0], &c[0], &running, true)?;
    let loss = y.plus(&y)?.relu()?.sum()?.ours;
    Gradients::new([("c", &c[0])], usize::MAX)?.backward(&loss)?;
    for (ours, theirs) in running[0].iter().zip(&running[1]) {
        assert_near("running statistics", &values(ours), &values(theirs), 1e-6);
    }
    Ok(())
}

/// Images of one channel need no other order; everything else is as it always is.
#[test]
fn images_of_one_channel() {
    let inputs = [random((2, 1, 3, 5), 1)];
    assert_both(&inputs, TOLERANCE, |t| Both::new(&t[0])?.nhwc());
    assert_both(&inputs, TOLERANCE, |t| {
        let x = Both::new(&t[0])?.nhwc()?;
        x.relu()?.plus(&x)
    });
    assert_both(&inputs, TOLERANCE, |t| {
        let x = Both::new(&t[0])?;
        let there_and_back = x.nhwc()?.flatten()?;
        there_and_back.relu()
    });
    let views = [random((2, 1, 5, 3), 1)];
    assert_both(&views, TOLERANCE, |t| {
        Both::new(&t[0].transpose(2, 3)?)?.nhwc()?.relu()
    });
}

/// Two batch norms that share running statistics move them in their order.
#[test]
fn statistics_that_two_layers_share() -> Result<()> {
    let [a, b] = [1, 2].map(|seed| random((2, 3, 3, 2), seed));
    let c = variables(&[random(2, 3)])?;
    let running = [statistics(2), statistics(2)];
    let norm = |x: &Tensor| Both::new(x)?.batch_norm2d(&c[0], &c[0], &running, true);
    let sum = norm(&a)?.plus(&norm(&b)?)?;
    Gradients::new([("c", &c[0])], usize::MAX)?.backward(&sum.sum()?.ours)?;
    for (ours, theirs) in running[0].iter().zip(&running[1]) {
        assert_near("running statistics", &values(ours), &values(theirs), 1e-6);
    }
    Ok(())
}
