//! Functions that loops are vectorized with, and sums in lanes. They are of additions and products alone, so their bits are
//! the same on every system.

/// e^x with an error of at most 2 units in the last place, from −87 to 88; 0 below −87.7, and its value at 88 above.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.; // 1.5 · 2²³: a number of this size has no fraction
    // at −88 the power of two is 2⁻¹²⁷, whose bits are those of 0
    let x = x.clamp(-88., 88.);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts, so that r is exact
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let mut y = 1.987_569_1e-4;
    for term in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        y = y * r + term;
    }
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits() - 127) << 23;
    (y * r * r + r + 1.) * f32::from_bits(power)
}

/// The natural logarithm of a number from 2⁻¹²⁶ on, with an error of about 1 unit in the last place.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // x = m · 2ⁿ, where m is from √½ to √2
    let above = x
        .to_bits()
        .wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (above as i32) >> 23;
    let r = f32::from_bits(x.to_bits().wrapping_sub((exponent as u32) << 23)) - 1.;
    let n = exponent as f32;
    let mut y = 7.037_683_6e-2;
    for term in [
        -0.115_146_1,
        0.116_769_99,
        -0.124_201_41,
        0.142_493_23,
        -0.166_680_58,
        0.200_007_15,
        -0.249_999_94,
        0.333_333_3,
    ] {
        y = y * r + term;
    }
    let squared = r * r;
    let tail = y * r * squared - n * 2.121_944_4e-4 - 0.5 * squared;
    let y = r + tail + n * 0.693_359_4;
    // infinity and NaN stay
    if x < f32::INFINITY { y } else { x }
}

/// ln(1 + x) of a number from 0 to 1.
#[inline(always)]
pub(crate) fn ln_1p(x: f32) -> f32 {
    let sum = 1. + x;
    // what the sum has lost, to first order
    ln(sum) + (x - (sum - 1.)) / sum
}

/// Φ(x) and φ(x): the distribution function of the normal distribution within 4e-7, and its density.
///
/// Abramowitz and Stegun, 7.1.26.
#[inline(always)]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    let density = exp(-0.5 * x * x);
    let t = 1. / (1. + 0.231_641_9 * x.abs());
    let mut y = 1.061_405_4;
    for term in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        y = y * t + term;
    }
    let tail = 0.5 * density * t * y;
    (if x < 0. { tail } else { 1. - tail }, 0.398_942_3 * density)
}

/// 1 / (1 + e⁻ˣ), with an error of at most 4 units in the last place.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1. / (1. + exp(-x))
}

/// The hyperbolic tangent, with an error of at most 3 units in the last place: a polynomial near 0 (Cephes' `tanhf`), where
/// the difference of two powers would be inexact.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let squared = x * x;
    let mut near = -5.704_988_7e-3;
    for term in [2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8] {
        near = near * squared + term;
    }
    let near = near * squared * x + x;
    let far = (1. - 2. / (exp(2. * x.abs()) + 1.)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// Lanes of a sum: as many as a vector has.
const LANES: usize = 16;

/// The sum of `f(i)` for each `i` below `n`, always in the same order.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let mut i = 0;
    while i + LANES <= n {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(i + lane);
        }
        i += LANES;
    }
    for i in i..n {
        lanes[i % LANES] += f(i);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_normal_are_near() {
        for i in -8700..8800 {
            let x = i as f32 / 100.;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.4e-7, "exp({x}): {error:e}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!((exp(-1e9), exp(f32::NEG_INFINITY), exp(0.)), (0., 0., 1.));
        // Φ(1), Φ(−2) and Φ(0.1), from tables
        for (x, exact) in [(1., 0.841_344_8), (-2., 0.022_750_132), (0.1, 0.539_827_8)] {
            let ours = normal(x).0;
            assert!((ours - exact).abs() < 2e-7, "Φ({x}) = {ours}");
        }
        assert_eq!(sum(35, |i| i as f32), 595.);
    }

    /// The distance in units in the last place.
    fn units(ours: f32, exact: f64) -> f64 {
        let unit = f64::from(f32::EPSILON) * 2f64.powi(exact.abs().log2().floor() as i32);
        (f64::from(ours) - exact).abs() / unit
    }

    #[test]
    fn sigmoid_and_tanh_are_near() {
        for i in (-86_000..100_000).filter(|i| *i != 0) {
            let x = i as f32 / 1000.;
            let error = units(tanh(x), f64::from(x).tanh());
            assert!(error < 3., "tanh({x}): {error} units in the last place");
            let error = units(sigmoid(x), 1. / (1. + f64::from(-x).exp()));
            assert!(error < 4., "sigmoid({x}): {error} units in the last place");
        }
        assert_eq!(
            [tanh(0.), tanh(1e-30), tanh(-1e30), tanh(1e30)],
            [0., 1e-30, -1., 1.]
        );
        assert_eq!((sigmoid(0.), sigmoid(1e30)), (0.5, 1.));
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn logarithms_are_near() {
        let mut bits = f32::MIN_POSITIVE.to_bits();
        while bits < f32::INFINITY.to_bits() {
            let x = f32::from_bits(bits);
            if x != 1. {
                let error = units(ln(x), f64::from(x).ln());
                assert!(error < 1.1, "ln({x}): {error} units in the last place");
            }
            let x = x / f32::MAX;
            if x > f32::MIN_POSITIVE {
                let error = units(ln_1p(x), f64::from(x).ln_1p());
                assert!(error < 2.1, "ln_1p({x}): {error} units in the last place");
            }
            bits += 1237;
        }
        assert_eq!((ln(1.), ln_1p(0.)), (0., 0.));
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(f32::NAN).is_nan() && ln_1p(f32::NAN).is_nan());
    }
}
