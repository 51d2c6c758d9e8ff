//! What does not fit is refused by the operation and its twin alike, with both sides in the message.

use crate::support::{labels, random};
use candle_core::{DType, Device, Result, Tensor, Var};
use functional as fast;
use functional::plain;

fn assert_refused(expected: &str, results: [Result<Tensor>; 2]) {
    for result in results {
        let message = result.expect_err("an error").to_string();
        assert!(
            message.contains(expected),
            "{message:?} does not say {expected:?}"
        );
    }
}

#[test]
fn types() {
    let x = random((1, 4, 4, 2), 1).to_dtype(DType::F64).unwrap();
    let expected = "x is f64, expected f32";
    assert_refused(expected, [fast::relu(&x), plain::relu(&x)]);
    assert_refused(expected, [fast::flatten(&x), plain::flatten(&x)]);
    assert_refused(expected, [fast::nhwc(&x), plain::nhwc(&x)]);
    assert_refused(
        expected,
        [fast::avg_pool2d(&x, 2, 2), plain::avg_pool2d(&x, 2, 2)],
    );
    let w = random((1, 2, 2, 2), 1);
    assert_refused(
        "conv2d: x is f64, expected f32",
        [
            fast::conv2d(&x, &w, None, 1, 0),
            plain::conv2d(&x, &w, None, 1, 0),
        ],
    );
    let (y_hat, y) = (random((2, 3), 1), random(2, 2));
    assert_refused(
        "cross_entropy: y is f32, expected u32",
        [
            fast::cross_entropy(&y_hat, &y),
            plain::cross_entropy(&y_hat, &y),
        ],
    );
}

#[test]
fn conv2d() {
    let x = random((1, 4, 5, 3), 1);
    let check = |expected: &str, w: &Tensor, b: Option<&Tensor>, stride, padding| {
        let results = [
            fast::conv2d(&x, w, b, stride, padding),
            plain::conv2d(&x, w, b, stride, padding),
        ];
        assert_refused(expected, results);
    };
    let w = random((50, 20, 5, 5), 2);
    check("conv2d: x has 3 channels, weight has 20", &w, None, 1, 0);
    let w = random((2, 3, 7, 7), 2);
    check(
        "conv2d: kernel 7 is larger than x, 4 with padding 1",
        &w,
        None,
        1,
        1,
    );
    check("kernel 7 and stride 0 must be at least 1", &w, None, 0, 2);
    let w = random((2, 3, 1, 1), 2);
    let b = random(3, 3);
    check(
        "bias has shape [3], expected [2] for the 2 output channels",
        &w,
        Some(&b),
        1,
        0,
    );
    let w = random((2, 3), 2);
    check(
        "weight has shape [2, 3], expected (O, I, KH, KW)",
        &w,
        None,
        1,
        0,
    );
    let w = random((0, 3, 1, 1), 2);
    check("weight has shape [0, 3, 1, 1]", &w, None, 1, 0);
}

#[test]
fn images() {
    let x = random((2, 3), 1);
    let expected = "x has shape [2, 3], expected (B, H, W, C)";
    assert_refused(expected, [fast::flatten(&x), plain::flatten(&x)]);
    assert_refused(
        expected,
        [fast::max_pool2d(&x, 2, 2), plain::max_pool2d(&x, 2, 2)],
    );
    assert_refused(
        expected,
        [fast::global_avg_pool2d(&x), plain::global_avg_pool2d(&x)],
    );
    let x = random((1, 2, 2, 1), 1);
    assert_refused(
        "avg_pool2d: kernel 3 is larger than x, 2",
        [fast::avg_pool2d(&x, 3, 1), plain::avg_pool2d(&x, 3, 1)],
    );
    let x = random((1, 0, 2, 1), 1);
    assert_refused(
        "x has shape [1, 0, 2, 1], expected at least one pixel",
        [fast::global_avg_pool2d(&x), plain::global_avg_pool2d(&x)],
    );
}

#[test]
fn linear() {
    let (x, w) = (random((2, 5), 1), random((4, 3), 2));
    let expected = "linear: x has 5 features, weight (O, I) has 3; for a weight (I, O) use matmul";
    assert_refused(
        expected,
        [fast::linear(&x, &w, None), plain::linear(&x, &w, None)],
    );
    let (x, b) = (random((2, 3), 1), random(5, 3));
    assert_refused(
        "bias has shape [5], expected [4] for the 4 outputs of weight",
        [
            fast::linear(&x, &w, Some(&b)),
            plain::linear(&x, &w, Some(&b)),
        ],
    );
    let x = random(3, 1);
    assert_refused(
        "x has shape [3], weight [4, 3], expected (B, I) and (O, I)",
        [fast::linear(&x, &w, None), plain::linear(&x, &w, None)],
    );
}

#[test]
fn matmul() {
    let (x, w) = (random((2, 5), 1), random((3, 4), 2));
    let expected =
        "matmul: x has 5 columns, weight (I, O) has 3 rows; for a weight (O, I) use linear";
    assert_refused(
        expected,
        [fast::matmul(&x, &w, None), plain::matmul(&x, &w, None)],
    );
}

#[test]
fn labels_that_are_no_class() {
    let y_hat = random((3, 10), 1);
    let y = Tensor::new(&[0u32, 9, 10], &Device::Cpu).unwrap();
    assert_refused(
        "label 10 of example 2 is too large, y_hat has 10 classes",
        [
            fast::cross_entropy(&y_hat, &y),
            plain::cross_entropy(&y_hat, &y),
        ],
    );
    let y = labels(2, 10, 1);
    assert_refused(
        "y has shape [2], expected [3] for the 3 examples of y_hat",
        [
            fast::cross_entropy(&y_hat, &y),
            plain::cross_entropy(&y_hat, &y),
        ],
    );
}

#[test]
fn batch_norm2d() {
    let var = |n| Var::from_tensor(&random(n, 1)).unwrap();
    let (w, mean, running_var) = (random(4, 1), var(4), var(4));
    let check = |expected: &str, x: &Tensor, w: &Tensor, mean: &Var, train| {
        let results = [
            fast::batch_norm2d(x, w, w, mean, &running_var, train),
            plain::batch_norm2d(x, w, w, mean, &running_var, train),
        ];
        assert_refused(expected, results);
    };
    let x = random((1, 1, 1, 4), 1);
    check(
        "x has shape [1, 1, 1, 4], 1 values per channel",
        &x,
        &w,
        &mean,
        true,
    );
    let x = random((0, 7, 7, 4), 1);
    check(
        "x has shape [0, 7, 7, 4], 0 values per channel",
        &x,
        &w,
        &mean,
        true,
    );
    let x = random((1, 2, 2, 4), 1);
    check(
        "weight has shape [3], expected [4]",
        &x,
        &random(3, 1),
        &mean,
        true,
    );
    check(
        "running_mean has shape [5], expected [4]",
        &x,
        &w,
        &var(5),
        false,
    );
}
