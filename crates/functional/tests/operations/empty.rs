//! A batch of no examples: empty results, and gradients of zeros for the parameters.

use crate::support::{labels, random, run, values};
use candle_core::{Result, Tensor};
use functional as fast;
use functional::plain;

type Op<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

fn assert_empty(dims: &[usize], inputs: &[Tensor], ops: [Op; 2]) {
    for op in ops {
        let results = run(inputs, op).unwrap();
        assert_eq!(results[0].dims(), dims);
        for (gradient, input) in results[1..].iter().zip(inputs) {
            assert_eq!(gradient.dims(), input.dims());
            assert!(values(gradient).iter().all(|g| *g == 0.));
        }
    }
}

#[test]
fn conv2d() {
    let inputs = [
        random((0, 28, 28, 1), 1),
        random((20, 1, 3, 3), 2),
        random(20, 3),
    ];
    assert_empty(
        &[0, 26, 26, 20],
        &inputs,
        [&|t| fast::conv2d(&t[0], &t[1], Some(&t[2]), 1, 0), &|t| {
            plain::conv2d(&t[0], &t[1], Some(&t[2]), 1, 0)
        }],
    );
    let pointwise = [random((0, 14, 14, 8), 1), random((4, 8, 1, 1), 2)];
    assert_empty(
        &[0, 14, 14, 4],
        &pointwise,
        [&|t| fast::conv2d(&t[0], &t[1], None, 1, 0), &|t| {
            plain::conv2d(&t[0], &t[1], None, 1, 0)
        }],
    );
}

#[test]
fn relu_pooling_and_orders() {
    let x = [random((0, 9, 9, 5), 1)];
    assert_empty(
        &[0, 9, 9, 5],
        &x,
        [&|t| fast::relu(&t[0]), &|t| plain::relu(&t[0])],
    );
    assert_empty(
        &[0, 4, 4, 5],
        &x,
        [&|t| fast::avg_pool2d(&t[0], 2, 2), &|t| {
            plain::avg_pool2d(&t[0], 2, 2)
        }],
    );
    assert_empty(
        &[0, 4, 4, 5],
        &x,
        [&|t| fast::max_pool2d(&t[0], 2, 2), &|t| {
            plain::max_pool2d(&t[0], 2, 2)
        }],
    );
    assert_empty(
        &[0, 5],
        &x,
        [&|t| fast::global_avg_pool2d(&t[0]), &|t| {
            plain::global_avg_pool2d(&t[0])
        }],
    );
    assert_empty(
        &[0, 405],
        &x,
        [&|t| fast::flatten(&t[0]), &|t| plain::flatten(&t[0])],
    );
    assert_empty(
        &[0, 9, 5, 9],
        &x,
        [&|t| fast::nhwc(&t[0]), &|t| plain::nhwc(&t[0])],
    );
    let images = [random((0, 1, 28, 28), 1)];
    assert_empty(
        &[0, 28, 28, 1],
        &images,
        [&|t| fast::nhwc(&t[0]), &|t| plain::nhwc(&t[0])],
    );
}

#[test]
fn linear_and_cross_entropy() {
    let inputs = [random((0, 8), 1), random((3, 8), 2), random(3, 3)];
    assert_empty(
        &[0, 3],
        &inputs,
        [&|t| fast::linear(&t[0], &t[1], Some(&t[2])), &|t| {
            plain::linear(&t[0], &t[1], Some(&t[2]))
        }],
    );
    let y = labels(0, 10, 1);
    assert_empty(
        &[0],
        &[random((0, 10), 1)],
        [&|t| fast::cross_entropy(&t[0], &y), &|t| {
            plain::cross_entropy(&t[0], &y)
        }],
    );
}
