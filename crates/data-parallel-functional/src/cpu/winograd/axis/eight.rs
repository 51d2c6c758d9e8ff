//! F(4, 5): four outputs of a kernel's row of five, from eight inputs. The points are 0, ±1, ±½, ±2
//! and ∞.

use super::{Axis, Lanes, Pairs, collect, evaluate, transforms};
use pulp::Simd;

/// The factors are the weight's to bear.
const WEIGHT: Pairs<3> = Pairs {
    powers: [
        [1.; 5],
        [1., 0.5, 0.25, 0.125, 0.0625],
        [1., 2., 4., 8., 16.],
    ],
    factors: [-2. / 9., 32. / 45., 1. / 90.],
};
const OUTPUT: Pairs<3> = WEIGHT.plain();

/// Inputs to points.
pub(in crate::cpu::winograd) struct OfInput;

impl Axis<8, 8> for OfInput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, d: [S::f32s; 8]) -> [S::f32s; 8] {
        let even = [
            v.fma(-4.25, d[4], v.add(d[2], d[6])),
            v.fma(-5., d[4], v.fma(4., d[2], d[6])),
            v.fma(-1.25, d[4], v.fma(0.25, d[2], d[6])),
        ];
        let odd = [
            v.fma(-4.25, d[3], v.add(d[1], d[5])),
            v.mul(0.5, v.fma(-5., d[3], v.fma(4., d[1], d[5]))),
            v.mul(2., v.fma(-1.25, d[3], v.fma(0.25, d[1], d[5]))),
        ];
        [
            v.fma(5.25, v.sub(d[4], d[2]), v.sub(d[0], d[6])),
            v.add(even[0], odd[0]),
            v.sub(even[0], odd[0]),
            v.add(even[1], odd[1]),
            v.sub(even[1], odd[1]),
            v.add(even[2], odd[2]),
            v.sub(even[2], odd[2]),
            v.fma(5.25, v.sub(d[3], d[5]), v.sub(d[7], d[1])),
        ]
    }
}

/// Gradients at points to those of inputs: the transpose of [`OfInput`].
pub(in crate::cpu::winograd) struct ToInput;

impl Axis<8, 8> for ToInput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, m: [S::f32s; 8]) -> [S::f32s; 8] {
        let even = [v.add(m[1], m[2]), v.add(m[3], m[4]), v.add(m[5], m[6])];
        let odd = [
            v.sub(m[1], m[2]),
            v.mul(0.5, v.sub(m[3], m[4])),
            v.mul(2., v.sub(m[5], m[6])),
        ];
        [
            m[0],
            v.sub(low(v, odd), m[7]),
            v.fma(-5.25, m[0], low(v, even)),
            v.fma(5.25, m[7], middle(v, odd)),
            v.fma(5.25, m[0], middle(v, even)),
            v.fma(-5.25, m[7], high(v, odd)),
            v.sub(high(v, even), m[0]),
            m[7],
        ]
    }
}

/// The shares of ±1, ±½ and ±2 in inputs 1 or 2, 3 or 4, and 5 or 6.
#[inline(always)]
fn low<S: Simd>(v: Lanes<S>, p: [S::f32s; 3]) -> S::f32s {
    v.fma(0.25, p[2], v.fma(4., p[1], p[0]))
}

#[inline(always)]
fn middle<S: Simd>(v: Lanes<S>, p: [S::f32s; 3]) -> S::f32s {
    v.fma(-1.25, p[2], v.fma(-5., p[1], v.mul(-4.25, p[0])))
}

#[inline(always)]
fn high<S: Simd>(v: Lanes<S>, p: [S::f32s; 3]) -> S::f32s {
    v.add(p[2], v.add(p[1], p[0]))
}

transforms!(8, 5);
