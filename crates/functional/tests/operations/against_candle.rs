//! The reference, and so the operations, equal candle's own where candle's are right: square convolutions, pooling of
//! sizes that are multiples of the kernel (of the maximum not the gradient), cross-entropy from its log-sum-exp.

use crate::support::{assert_results, cases, labels, random, run, upstream, variables};
use crate::support::{reference_pass, tensors};
use candle_core::{D, Result, Tensor};
use functional::Value;
use proptest::prelude::*;

fn nchw(x: &Tensor) -> Result<Tensor> {
    x.permute((0, 3, 1, 2))?.contiguous()
}

fn nhwc(x: &Tensor) -> Result<Tensor> {
    x.permute((0, 2, 3, 1))?.contiguous()
}

fn assert_same(
    inputs: &[Tensor],
    ours: impl Fn(&[Tensor]) -> Result<Value>,
    theirs: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let vars = variables(inputs).unwrap();
    let y = theirs(&tensors(&vars)).unwrap();
    let theirs = reference_pass(&vars, &y, &upstream(y.dims())).unwrap();
    assert_results(&run(inputs, ours).unwrap(), &theirs, 1e-5);
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn conv2d(
        (b, size, i, o) in (1usize..4, 5usize..12, 1usize..5, 1usize..5),
        (kernel, stride, padding) in (1usize..4, 1usize..3, 0usize..3),
        seed in 0u64..1000,
    ) {
        assert_same(
            &[random((b, size, size, i), seed), random((o, i, kernel, kernel), seed + 1)],
            |t| Value::new(&t[0])?.conv2d(&t[1], None, stride, padding),
            |t| nhwc(&nchw(&t[0])?.conv2d(&t[1], padding, stride, 1, 1)?),
        );
    }

    #[test]
    fn pooling((b, c, n, kernel) in (1usize..4, 1usize..5, 1usize..5, 1usize..4), seed in 0u64..1000) {
        let x = [random((b, n * kernel, n * kernel, c), seed)];
        assert_same(
            &x,
            |t| Value::new(&t[0])?.avg_pool2d(kernel, kernel),
            |t| nhwc(&nchw(&t[0])?.avg_pool2d(kernel)?),
        );
        // of the maximum the value only: candle's gradient is too small by kernel², because it
        // multiplies with the maxima's share of the window instead of dividing by their number
        assert_same(
            &[],
            |_| Value::new(&x[0])?.max_pool2d(kernel, kernel),
            |_| nhwc(&nchw(&x[0])?.max_pool2d(kernel)?),
        );
    }

    #[test]
    fn cross_entropy((b, c) in (1usize..20, 2usize..12), seed in 0u64..1000) {
        let y = labels(b, c, seed + 1);
        assert_same(
            &[random((b, c), seed)],
            |t| functional::cross_entropy(&Value::new(&t[0])?, &y),
            |t| {
                let at_label = t[0].gather(&y.unsqueeze(1)?, 1)?.squeeze(1)?;
                t[0].log_sum_exp(D::Minus1)? - at_label
            },
        );
    }
}
