//! Functions that loops are vectorized with, and sums in lanes.

/// e^x with an error of about 1 unit in the last place, from −87 to 88; beyond that, its value at the end.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.; // 1.5 · 2²³: a number of this size has no fraction
    let x = x.clamp(-87., 88.);
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

/// Lanes of a sum: as many as a vector has.
const LANES: usize = 16;

/// The sum of `f(i)` for each `i` below `n`, always in the same order.
#[inline(always)]
pub(crate) fn sum(n: usize, f: impl Fn(usize) -> f32) -> f32 {
    let (mut lanes, mut i) = ([0f32; LANES], 0);
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
        assert!(exp(f32::NAN).is_nan() && exp(-1e9) < 1e-37);
        // Φ(1), Φ(−2) and Φ(0.1), from tables
        for (x, exact) in [(1., 0.841_344_8), (-2., 0.022_750_132), (0.1, 0.539_827_8)] {
            let ours = normal(x).0;
            assert!((ours - exact).abs() < 2e-7, "Φ({x}) = {ours}");
        }
        assert_eq!(sum(35, |i| i as f32), 595.);
    }
}
