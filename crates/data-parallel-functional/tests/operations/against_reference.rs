//! Each operation equals its reference on random shapes, in the value and in all gradients, and so do operations of
//! which some are computed as one.

use crate::both::{assert_both, assert_differences};
use crate::networks::{self, Case};
use crate::single;
use crate::support::cases;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Both sum in f32, in different orders, up to a few hundred products.
const TOLERANCE: f64 = 1e-5;

fn check(count: u32, tolerance: f64, networks: impl Strategy<Value = Case>) {
    let equal = |case: Case| {
        // otherwise rounding decides on which side of ReLU's edge a value is
        prop_assume!(case.is_away_from_edges());
        match case.smooth {
            true => assert_differences(&case.inputs, tolerance, &case.network),
            false => assert_both(&case.inputs, tolerance, &case.network),
        }
        Ok(())
    };
    TestRunner::new(cases(count)).run(&networks, equal).unwrap();
}

/// A test for each kind of network: how many random ones, and how far the two may be apart.
macro_rules! tests {
    ($($kind:ident($($which:literal),*): $count:literal, $tolerance:expr;)*) => {
        $(#[test]
        fn $kind() {
            check($count, $tolerance, networks::$kind($($which),*));
        })*
    };
}

tests! {
    conv2d(): 256, TOLERANCE;
    conv2d_of_many_channels(): 32, TOLERANCE;
    grouped_conv2d(): 128, TOLERANCE;
    conv_transpose2d(): 128, TOLERANCE;
    upsampling(): 256, TOLERANCE;
    convolution_relu_pooling(0, false): 256, TOLERANCE;
    linear(0): 256, TOLERANCE;
    batch_norm2d(): 256, 1e-4;
    norm_sum_relu(): 256, 1e-4;
    residual_block(): 256, 1e-4;
    pooling(0): 256, TOLERANCE;
    orders_sums_relu(0): 256, TOLERANCE;
    losses(0): 256, TOLERANCE;
    masked_losses(0): 256, TOLERANCE;
    modules(): 256, TOLERANCE;
    detached(): 64, TOLERANCE;
    tokens(): 256, 1e-4;
}

/// The same of single operations.
macro_rules! tests_of_single {
    ($($kind:ident: $count:literal, $tolerance:expr;)*) => {
        $(#[test]
        fn $kind() {
            check($count, $tolerance, single::$kind());
        })*
    };
}

tests_of_single! {
    of_elements: 256, TOLERANCE;
    of_two: 128, TOLERANCE;
    repeated: 256, TOLERANCE;
    parts: 256, TOLERANCE;
    norms: 256, 1e-4;
    attention: 48, 1e-4;
    rotations: 128, TOLERANCE;
    recurrent: 128, 1e-4;
}
