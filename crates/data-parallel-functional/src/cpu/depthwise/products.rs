//! The inner loop: sums in registers.

use crate::cpu::depthwise::axis::Tap;
use crate::cpu::vector::{VECTOR as STRIP, load};
use pulp::Simd;

/// The most sums side by side.
pub(super) const MOST: usize = 8;

/// Calls a method for a count that is known when it is compiled, from 1 to [`MOST`].
macro_rules! for_count {
    ($count:expr, $self:ident.$method:ident($($argument:expr),*)) => {
        match $count {
            1 => $self.$method::<S, 1>($($argument),*),
            2 => $self.$method::<S, 2>($($argument),*),
            3 => $self.$method::<S, 3>($($argument),*),
            4 => $self.$method::<S, 4>($($argument),*),
            5 => $self.$method::<S, 5>($($argument),*),
            6 => $self.$method::<S, 6>($($argument),*),
            7 => $self.$method::<S, 7>($($argument),*),
            _ => $self.$method::<S, 8>($($argument),*),
        }
    };
}
pub(super) use for_count;

/// Cuts `count` into parts of at most `most`, of nearly equal sizes: their first one and their size.
pub(super) fn parts(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |part| {
        let first = part * count / parts;
        (first, (part + 1) * count / parts - first)
    })
}

/// Adds, for each tap, its factor times R rows of N vectors of the source. The vectors lie side by side, the rows `row`
/// floats apart.
#[inline(always)]
pub(super) fn add_products<S: Simd, const R: usize, const N: usize>(
    simd: S,
    sums: &mut [[S::f32s; N]; R],
    taps: &[Tap],
    factors: &[f32],
    source: &[f32],
    row: usize,
) {
    for tap in taps {
        let factor = load(simd, &factors[tap.factor..][..S::F32_LANES]);
        for (r, sums) in sums.iter_mut().enumerate() {
            let vectors = &source[tap.source + r * row..][..(N - 1) * STRIP + S::F32_LANES];
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum = simd.mul_add_e_f32s(factor, load(simd, &vectors[n * STRIP..]), *sum);
            }
        }
    }
}
