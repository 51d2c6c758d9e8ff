//! Winograd's algorithm along one axis: a tile of inputs and a kernel's weights become the values of
//! polynomials at some points, their products are the values of the product, and the outputs are
//! read from those. The points are 0, some pairs ±p, others in [`nine`], and ∞, where the value is the last coefficient.

pub(super) mod eight;
pub(super) mod nine;
pub(super) mod six;

use super::lanes::Lanes;
use pulp::Simd;

/// A transform along one axis of a tile. (A type with a function that is always inlined: a function passed along is
/// compiled without the vector instructions, and so is a closure without `#[inline(always)]`.)
pub(super) trait Axis<const N: usize, const M: usize> {
    fn transform<S: Simd>(v: Lanes<S>, d: [S::f32s; N]) -> [S::f32s; M];

    /// Transforms each of N rows, and returns the columns, which are to be transformed next. The rows are asked for one by
    /// one: all together do not fit into the registers.
    #[inline(always)]
    fn rows<S: Simd>(v: Lanes<S>, row: impl Fn(usize) -> [S::f32s; N]) -> [[S::f32s; N]; M] {
        let mut columns = [[v.zero(); N]; M];
        for (r, row) in (0..N).map(row).enumerate() {
            for (c, value) in Self::transform(v, row).into_iter().enumerate() {
                columns[c][r] = value;
            }
        }
        columns
    }
}

/// The powers of the positive point of each pair, from the 0th on, and a factor for its values.
struct Pairs<const P: usize> {
    powers: [[f32; 5]; P],
    factors: [f32; P],
}

impl<const P: usize> Pairs<P> {
    /// Without factors.
    const fn plain(&self) -> Self {
        Self {
            powers: self.powers,
            factors: [1.; P],
        }
    }
}

/// The values at the points of a polynomial with coefficients `c`.
#[inline(always)]
fn evaluate<S: Simd, const P: usize, const R: usize, const N: usize>(
    v: Lanes<S>,
    pairs: &Pairs<P>,
    c: [S::f32s; R],
) -> [S::f32s; N] {
    let mut values = [c[0]; N];
    for (i, (powers, factor)) in pairs.powers.iter().zip(pairs.factors).enumerate() {
        let mut even = v.mul(factor, c[0]);
        let mut odd = v.mul(factor * powers[1], c[1]);
        for k in (2..R).step_by(2) {
            even = v.fma(factor * powers[k], c[k], even);
        }
        for k in (3..R).step_by(2) {
            odd = v.fma(factor * powers[k], c[k], odd);
        }
        values[2 * i + 1] = v.add(even, odd);
        values[2 * i + 2] = v.sub(even, odd);
    }
    values[N - 1] = c[R - 1];
    values
}

/// The transpose of [`evaluate`].
#[inline(always)]
fn collect<S: Simd, const P: usize, const R: usize, const N: usize>(
    v: Lanes<S>,
    pairs: &Pairs<P>,
    values: [S::f32s; N],
) -> [S::f32s; R] {
    let mut c = [v.zero(); R];
    c[0] = values[0];
    c[R - 1] = values[N - 1];
    for (i, (powers, factor)) in pairs.powers.iter().zip(pairs.factors).enumerate() {
        let plus = values[2 * i + 1];
        let minus = values[2 * i + 2];
        let sum = v.add(plus, minus);
        let difference = v.sub(plus, minus);
        for (k, c) in c.iter_mut().enumerate() {
            let part = if k % 2 == 0 { sum } else { difference };
            *c = v.fma(factor * powers[k], part, *c);
        }
    }
    c
}

/// The transforms to and from the points that constants `OUTPUT` and `WEIGHT` give: for tiles of four outputs, and
/// kernels with rows of `$weights` weights.
macro_rules! transforms {
    ($points:literal, $weights:literal) => {
        transforms!(ToOutput, "Points to outputs.", $points => 4, collect, &OUTPUT);
        transforms!(OfOutput, "Gradients of outputs to points.", 4 => $points, evaluate, &OUTPUT);
        transforms!(OfWeight, "Weights to points.", $weights => $points, evaluate, &WEIGHT);
        transforms!(ToWeight, "Gradients at points to those of weights.", $points => $weights, collect, &WEIGHT);
    };
    ($name:ident, $doc:literal, $n:literal => $m:literal, $by:ident, $pairs:expr) => {
        #[doc = $doc]
        pub(in crate::cpu::winograd) struct $name;

        impl Axis<$n, $m> for $name {
            #[inline(always)]
            fn transform<S: Simd>(v: Lanes<S>, from: [S::f32s; $n]) -> [S::f32s; $m] {
                $by(v, $pairs, from)
            }
        }
    };
}
use transforms;
