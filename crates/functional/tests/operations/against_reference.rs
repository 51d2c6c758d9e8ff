//! Each operation equals its reference on random shapes, in the value and in all gradients, and so do operations of
//! which some are computed as one.

use crate::both::{assert_both, assert_differences};
use crate::networks::{self, Case};
use crate::support::cases;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Both sum in f32, in different orders, up to a few hundred products.
const TOLERANCE: f64 = 1e-5;

fn check(tolerance: f64, networks: impl Strategy<Value = Case>) {
    check_some(256, tolerance, networks);
}

fn check_some(count: u32, tolerance: f64, networks: impl Strategy<Value = Case>) {
    let equal = |case: Case| {
        let away = case.is_away_from_edges();
        prop_assume!(
            away,
            "rounding decides on which side of ReLU's edge a value is"
        );
        match case.smooth {
            true => assert_differences(&case.inputs, tolerance, &case.network),
            false => assert_both(&case.inputs, tolerance, &case.network),
        }
        Ok(())
    };
    TestRunner::new(cases(count)).run(&networks, equal).unwrap();
}

#[test]
fn conv2d() {
    check(TOLERANCE, networks::conv2d());
}

#[test]
fn conv2d_of_many_channels() {
    check_some(32, TOLERANCE, networks::conv2d_of_many_channels());
}

#[test]
fn convolution_relu_pooling() {
    check(TOLERANCE, networks::convolution_relu_pooling(0));
}

#[test]
fn linear() {
    check(TOLERANCE, networks::linear(0));
}

#[test]
fn batch_norm2d() {
    check(1e-4, networks::batch_norm2d());
}

#[test]
fn norm_sum_relu() {
    check(1e-4, networks::norm_sum_relu());
}

#[test]
fn residual_block() {
    check(1e-4, networks::residual_block());
}

#[test]
fn pooling() {
    check(TOLERANCE, networks::pooling(0));
}

#[test]
fn orders_sums_relu() {
    check(TOLERANCE, networks::orders_sums_relu(0));
}

#[test]
fn losses() {
    check(TOLERANCE, networks::losses(0));
}

#[test]
fn modules() {
    check(TOLERANCE, networks::modules());
}
