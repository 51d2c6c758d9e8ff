//! Winograd's F(4×4, 3×3) along one axis. The points are 0, ±√½, ±√2 and ∞, whose rounding errors
//! are two to five times smaller than those of the usual 0, ±1, ±2 and ∞.

use super::lanes::Lanes;
use pulp::Simd;
use std::f32::consts::{FRAC_1_SQRT_2 as A, SQRT_2 as B};

/// A transform along one axis of a tile. (A type with a function that is always inlined: a closure
/// or a function passed along is compiled without the vector instructions.)
pub(super) trait Axis<const N: usize, const M: usize> {
    fn transform<S: Simd>(v: Lanes<S>, d: [S::f32s; N]) -> [S::f32s; M];

    /// Transforms each row, and returns the columns, which are to be transformed next.
    #[inline(always)]
    fn rows<S: Simd>(v: Lanes<S>, rows: [[S::f32s; N]; N]) -> [[S::f32s; N]; M] {
        let mut columns = [[v.zero(); N]; M];
        for (r, row) in rows.into_iter().enumerate() {
            for (c, value) in Self::transform(v, row).into_iter().enumerate() {
                columns[c][r] = value;
            }
        }
        columns
    }
}

/// Inputs to points.
pub(super) struct OfInput;

impl Axis<6, 6> for OfInput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, d: [S::f32s; 6]) -> [S::f32s; 6] {
        let (even_a, odd_a) = (v.fma(-2., d[2], d[4]), v.mul(A, v.fma(-2., d[1], d[3])));
        let (even_b, odd_b) = (v.fma(-0.5, d[2], d[4]), v.mul(B, v.fma(-0.5, d[1], d[3])));
        [
            v.add(d[0], v.fma(-2.5, d[2], d[4])),
            v.add(even_a, odd_a),
            v.sub(even_a, odd_a),
            v.add(even_b, odd_b),
            v.sub(even_b, odd_b),
            v.add(d[1], v.fma(-2.5, d[3], d[5])),
        ]
    }
}

/// Points to outputs.
pub(super) struct ToOutput;

impl Axis<6, 4> for ToOutput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, m: [S::f32s; 6]) -> [S::f32s; 4] {
        let (sum_a, difference_a) = (v.add(m[1], m[2]), v.sub(m[1], m[2]));
        let (sum_b, difference_b) = (v.add(m[3], m[4]), v.sub(m[3], m[4]));
        [
            v.add(m[0], v.add(sum_a, sum_b)),
            v.fma(B, difference_b, v.mul(A, difference_a)),
            v.fma(2., sum_b, v.mul(0.5, sum_a)),
            v.fma(2. * B, difference_b, v.fma(0.5 * A, difference_a, m[5])),
        ]
    }
}

/// Gradients of outputs to points: the transpose of [`ToOutput`].
pub(super) struct OfOutput;

impl Axis<4, 6> for OfOutput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, y: [S::f32s; 4]) -> [S::f32s; 6] {
        let even_a = v.fma(0.5, y[2], y[0]);
        let odd_a = v.fma(0.5 * A, y[3], v.mul(A, y[1]));
        let even_b = v.fma(2., y[2], y[0]);
        let odd_b = v.fma(2. * B, y[3], v.mul(B, y[1]));
        [
            y[0],
            v.add(even_a, odd_a),
            v.sub(even_a, odd_a),
            v.add(even_b, odd_b),
            v.sub(even_b, odd_b),
            y[3],
        ]
    }
}

/// The scale of the points ±√½ and ±√2, which is the weight's to bear.
const SCALE_A: f32 = -2. / 3.;
const SCALE_B: f32 = 1. / 6.;

/// Weights to points.
pub(super) struct OfWeight;

impl Axis<3, 6> for OfWeight {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, w: [S::f32s; 3]) -> [S::f32s; 6] {
        let even_a = v.fma(SCALE_A * 0.5, w[2], v.mul(SCALE_A, w[0]));
        let odd_a = v.mul(SCALE_A * A, w[1]);
        let even_b = v.fma(SCALE_B * 2., w[2], v.mul(SCALE_B, w[0]));
        let odd_b = v.mul(SCALE_B * B, w[1]);
        [
            w[0],
            v.add(even_a, odd_a),
            v.sub(even_a, odd_a),
            v.add(even_b, odd_b),
            v.sub(even_b, odd_b),
            w[2],
        ]
    }
}

/// Gradients at points to those of weights: the transpose of [`OfWeight`].
pub(super) struct ToWeight;

impl Axis<6, 3> for ToWeight {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, u: [S::f32s; 6]) -> [S::f32s; 3] {
        let (sum_a, difference_a) = (v.add(u[1], u[2]), v.sub(u[1], u[2]));
        let (sum_b, difference_b) = (v.add(u[3], u[4]), v.sub(u[3], u[4]));
        [
            v.add(u[0], v.fma(SCALE_A, sum_a, v.mul(SCALE_B, sum_b))),
            v.fma(SCALE_A * A, difference_a, v.mul(SCALE_B * B, difference_b)),
            v.fma(SCALE_A * 0.5, sum_a, v.fma(SCALE_B * 2., sum_b, u[5])),
        ]
    }
}
