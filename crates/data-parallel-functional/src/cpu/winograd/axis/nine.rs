//! Stride 2: four outputs of a kernel's row of three, from nine inputs. The outer weights meet inputs 0, 2, … 8: this is
//! F(4, 2), at the points 0, ±S, T and ∞. The middle weight meets inputs 1, 3, 5 and 7, which are points of their own.

use super::{Axis, Lanes};
use pulp::Simd;

/// With these points rounding errors are smaller than with 0, ±1, 2 and ∞, and than those of F(4, 3).
const S: f32 = 0.75;
const T: f32 = 2.;

/// Factors of the values at 0, S, −S and T. Only the transforms of the weight apply them.
const FACTORS: [f32; 4] = [
    1. / (S * S * T),
    1. / (2. * S * S * (S - T)),
    -1. / (2. * S * S * (S + T)),
    1. / (T * (T * T - S * S)),
];

/// Inputs to points.
pub(in crate::cpu::winograd) struct OfInput;

impl Axis<9, 9> for OfInput {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, d: [V::f32s; 9]) -> [V::f32s; 9] {
        let [a, b, c, e, f] = five(v, [d[0], d[2], d[4], d[6], d[8]]);
        [a, b, c, e, f, d[1], d[3], d[5], d[7]]
    }
}

/// Gradients of outputs to points, for the gradient of the input: pixels 1, 3, … have the outer weights, pixels 0, 2, …
/// the middle one.
pub(in crate::cpu::winograd) struct OfGradient;

impl Axis<5, 9> for OfGradient {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, d: [V::f32s; 5]) -> [V::f32s; 9] {
        let [a, b, c, e, f] = five(v, d);
        [a, b, c, e, f, d[0], d[1], d[2], d[3]]
    }
}

/// Points to gradients of inputs.
pub(in crate::cpu::winograd) struct ToInput;

impl Axis<9, 8> for ToInput {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, m: [V::f32s; 9]) -> [V::f32s; 8] {
        let y = four(v, m);
        [m[5], y[0], m[6], y[1], m[7], y[2], m[8], y[3]]
    }
}

/// Points to outputs.
pub(in crate::cpu::winograd) struct ToOutput;

impl Axis<9, 4> for ToOutput {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, m: [V::f32s; 9]) -> [V::f32s; 4] {
        let y = four(v, m);
        [
            v.add(y[0], m[5]),
            v.add(y[1], m[6]),
            v.add(y[2], m[7]),
            v.add(y[3], m[8]),
        ]
    }
}

/// Gradients of outputs to points, for the gradient of the weight.
pub(in crate::cpu::winograd) struct OfOutput;

impl Axis<4, 9> for OfOutput {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, d: [V::f32s; 4]) -> [V::f32s; 9] {
        let even = v.fma(S * S, d[2], d[0]);
        let odd = v.mul(S, v.fma(S * S, d[3], d[1]));
        let at_t = v.fma(T * T * T, d[3], v.fma(T * T, d[2], v.fma(T, d[1], d[0])));
        let [b, c] = [v.add(even, odd), v.sub(even, odd)];
        [d[0], b, c, at_t, d[3], d[0], d[1], d[2], d[3]]
    }
}

/// Weights to points. The last one is the middle weight's, four times.
pub(in crate::cpu::winograd) struct OfWeight;

impl Axis<3, 6> for OfWeight {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, g: [V::f32s; 3]) -> [V::f32s; 6] {
        let at = |factor: f32, p: f32| v.fma(factor * p, g[2], v.mul(factor, g[0]));
        let [a, b, c, e] = FACTORS;
        [v.mul(a, g[0]), at(b, S), at(c, -S), at(e, T), g[2], g[1]]
    }
}

/// Gradients at points to those of weights.
pub(in crate::cpu::winograd) struct ToWeight;

impl Axis<6, 3> for ToWeight {
    #[inline(always)]
    fn transform<V: Simd>(v: Lanes<V>, m: [V::f32s; 6]) -> [V::f32s; 3] {
        let [a, b, c, e] = FACTORS;
        let first = v.fma(e, m[3], v.fma(c, m[2], v.fma(b, m[1], v.mul(a, m[0]))));
        let last = v.fma(e * T, m[3], v.fma(-c * S, m[2], v.fma(b * S, m[1], m[4])));
        [first, m[5], last]
    }
}

/// Five inputs to the points of F(4, 2).
#[inline(always)]
fn five<V: Simd>(v: Lanes<V>, d: [V::f32s; 5]) -> [V::f32s; 5] {
    let [a, b, c, e] = [
        v.fma(-T, d[0], d[1]),
        v.fma(-T, d[1], d[2]),
        v.fma(-T, d[2], d[3]),
        v.fma(-T, d[3], d[4]),
    ];
    [
        v.fma(-S * S, a, c),
        v.fma(S, b, c),
        v.fma(-S, b, c),
        v.fma(-S * S, d[1], d[3]),
        v.fma(-S * S, b, e),
    ]
}

/// The points of F(4, 2) to four outputs.
#[inline(always)]
fn four<V: Simd>(v: Lanes<V>, m: [V::f32s; 9]) -> [V::f32s; 4] {
    let sum = v.add(m[1], m[2]);
    let difference = v.sub(m[1], m[2]);
    [
        v.add(m[0], v.add(sum, m[3])),
        v.fma(S, difference, v.mul(T, m[3])),
        v.fma(S * S, sum, v.mul(T * T, m[3])),
        v.fma(S * S * S, difference, v.fma(T * T * T, m[3], m[4])),
    ]
}
