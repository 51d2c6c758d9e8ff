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
    ($($of:ident::$kind:ident($($which:literal),*): $count:literal, $tolerance:expr;)*) => {
        $(#[test]
        fn $kind() {
            check($count, $tolerance, $of::$kind($($which),*));
        })*
    };
}

tests! {
    networks::conv2d(): 256, TOLERANCE;
    networks::conv2d_of_many_channels(): 32, TOLERANCE;
    networks::grouped_conv2d(): 128, TOLERANCE;
    networks::conv_transpose2d(): 128, TOLERANCE;
    networks::upsampling(): 256, TOLERANCE;
    networks::convolution_relu_pooling(0, false): 256, TOLERANCE;
    networks::linear(0): 256, TOLERANCE;
    networks::batch_norm2d(): 256, 1e-4;
    networks::norm_sum_relu(): 256, 1e-4;
    networks::residual_block(): 256, 1e-4;
    networks::pooling(0): 256, TOLERANCE;
    networks::orders_sums_relu(0): 256, TOLERANCE;
    networks::losses(0): 256, TOLERANCE;
    networks::masked_losses(0): 256, TOLERANCE;
    networks::modules(): 256, TOLERANCE;
    networks::detached(): 64, TOLERANCE;
    networks::tokens(): 256, 1e-4;
    single::of_elements(): 256, TOLERANCE;
    single::of_two(): 128, TOLERANCE;
    single::repeated(): 256, 1e-4; // sums of up to 300,000 numbers
    single::parts(): 256, TOLERANCE;
    single::norms(): 256, 1e-4;
    single::attention(): 48, 1e-4;
    single::rotations(): 128, TOLERANCE;
    single::recurrent(): 128, 1e-4;
}
