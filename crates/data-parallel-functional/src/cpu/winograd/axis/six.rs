//! F(4, 3): four outputs of a kernel's row of three, from six inputs. The points are 0, ±√½, ±√2 and
//! ∞: their rounding errors are two to five times smaller than those of the usual 0, ±1, ±2 and ∞.

use super::{Axis, Lanes, Pairs, collect, evaluate, transforms};
use pulp::Simd;
use std::f32::consts::{FRAC_1_SQRT_2 as A, SQRT_2 as B};

/// Only the transforms of the weight apply the factors.
const WEIGHT: Pairs<2> = Pairs {
    powers: [[1., A, 0.5, 0.5 * A, 0.25], [1., B, 2., 2. * B, 4.]],
    factors: [-2. / 3., 1. / 6.],
};
const OUTPUT: Pairs<2> = WEIGHT.plain();

/// Inputs to points.
pub(in crate::cpu::winograd) struct OfInput;

impl Axis<6, 6> for OfInput {
    #[inline(always)]
    fn transform<S: Simd>(v: Lanes<S>, d: [S::f32s; 6]) -> [S::f32s; 6] {
        let even_a = v.fma(-2., d[2], d[4]);
        let odd_a = v.mul(A, v.fma(-2., d[1], d[3]));
        let even_b = v.fma(-0.5, d[2], d[4]);
        let odd_b = v.mul(B, v.fma(-0.5, d[1], d[3]));
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

transforms!(6, 3);
