//! The arithmetic of one sample, window by window.

use crate::cpu::vector::{Aligned, VECTOR, load, store};
use crate::descriptors::convolution::Geometry;
use pulp::{Simd, WithSimd};

/// The weights as the kernels read them.
pub(super) struct Weights {
    /// The channels as whole vectors, the longest that there are.
    pub(super) wide: usize,
    /// A row of `wide` channels for each tap.
    pub(super) taps: Aligned,
    /// The bias, as wide.
    pub(super) bias: Vec<f32>,
}

impl Weights {
    pub(super) fn new(g: &Geometry, weight: &[f32], bias: Option<&[f32]>) -> Self {
        let wide = g.out_channels.next_multiple_of(VECTOR);
        let mut taps = Aligned::zeros(g.taps() * wide);
        for (o, weight) in weight.chunks_exact(g.taps()).enumerate() {
            for (tap, w) in weight.iter().enumerate() {
                taps[tap * wide + o] = *w;
            }
        }
        let mut padded = vec![0.; wide];
        if let Some(bias) = bias {
            padded[..bias.len()].copy_from_slice(bias);
        }
        Self {
            wide,
            taps,
            bias: padded,
        }
    }
}

/// One image, and the sizes.
#[derive(Clone, Copy)]
pub(super) struct Sample<'a> {
    pub(super) x: &'a [f32],
    pub(super) weights: &'a Weights,
    pub(super) width: usize,
    pub(super) kernel: usize,
    pub(super) channels: usize,
    /// Floats of a line of y.
    pub(super) y_line: usize,
}

/// Calls `run` for the channels, two vectors at a time and then one, with the kernel's sizes as constants.
macro_rules! each_vector {
    ($self:ident, $simd:ident, [$($three:literal),+], [$($five:literal),+]) => {
        let wide = $self.sample.channels.next_multiple_of(S::F32_LANES);
        for c in (0..wide).step_by(2 * S::F32_LANES) {
            match ($self.sample.kernel, wide - c > S::F32_LANES) {
                (3, true) => $self.run::<S, $($three),+, 2>($simd, c),
                (3, false) => $self.run::<S, $($three),+, 1>($simd, c),
                (_, true) => $self.run::<S, $($five),+, 2>($simd, c),
                (_, false) => $self.run::<S, $($five),+, 1>($simd, c),
            }
        }
    };
}

/// A sample's y.
pub(super) struct Forward<'a> {
    pub(super) sample: Sample<'a>,
    pub(super) y: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        each_vector!(self, simd, [3], [5]);
    }
}

impl Forward<'_> {
    /// N vectors of channels, from channel `c` on.
    #[inline(always)]
    fn run<S: Simd, const K: usize, const N: usize>(&mut self, simd: S, c: usize) {
        let zero = simd.splat_f32s(0.);
        let quarter = simd.splat_f32s(0.25);
        let sample = self.sample;
        let row = sample.width;
        let channels = sample.channels;
        for (line, y) in self.y.chunks_exact_mut(sample.y_line).enumerate() {
            for (column, y) in y.chunks_exact_mut(channels).enumerate() {
                let x = &sample.x[2 * (line * row + column)..];
                let z = convolve::<S, K, N>(simd, x, row, sample.weights, c);
                for n in 0..N {
                    let mut sum = zero;
                    for z in &z {
                        // NaN stays
                        let cut = simd.less_than_or_equal_f32s(z[n], zero);
                        sum = simd.add_f32s(sum, simd.select_f32s(cut, zero, z[n]));
                    }
                    let first = channels.min(c + n * S::F32_LANES);
                    store(simd, &mut y[first..], simd.mul_f32s(sum, quarter));
                }
            }
        }
    }
}

/// Approximate number of windows that are summed before they are added to the others: long sums in f32 are inexact.
const BLOCK: usize = 256;

/// A sample's part of the gradients, added to the sums.
pub(super) struct SampleGradient<'a> {
    pub(super) sample: Sample<'a>,
    pub(super) dy: &'a [f32],
    pub(super) dw: &'a mut [f32],
    pub(super) db: &'a mut [f32],
}

impl WithSimd for SampleGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        each_vector!(self, simd, [3, 9], [5, 25]);
    }
}

impl SampleGradient<'_> {
    /// N vectors of channels, from channel `c` on, of a kernel K × K of T taps.
    #[inline(always)]
    fn run<S: Simd, const K: usize, const T: usize, const N: usize>(&mut self, simd: S, c: usize) {
        let zero = simd.splat_f32s(0.);
        let quarter = simd.splat_f32s(0.25);
        let sample = self.sample;
        let row = sample.width;
        let channels = sample.channels;
        let lines = (BLOCK * channels / sample.y_line).max(1);
        for (block, dy) in self.dy.chunks(lines * sample.y_line).enumerate() {
            let mut dw = [[zero; N]; T];
            let mut db = [zero; N];
            for (i, dy) in dy.chunks_exact(sample.y_line).enumerate() {
                let line = block * lines + i;
                for (column, dy) in dy.chunks_exact(channels).enumerate() {
                    let x = &sample.x[2 * (line * row + column)..];
                    let mut z = convolve::<S, K, N>(simd, x, row, sample.weights, c);
                    for n in 0..N {
                        let first = channels.min(c + n * S::F32_LANES);
                        let of_pixel = simd.mul_f32s(load(simd, &dy[first..]), quarter);
                        for z in &mut z {
                            let cut = simd.less_than_or_equal_f32s(z[n], zero);
                            z[n] = simd.select_f32s(cut, zero, of_pixel);
                            db[n] = simd.add_f32s(db[n], z[n]);
                        }
                    }
                    add_products::<S, K, T, N>(simd, x, row, &z, &mut dw);
                }
            }
            for n in 0..N {
                let c = c + n * S::F32_LANES;
                for (tap, dw) in dw.iter().enumerate() {
                    add(simd, &mut self.dw[tap * sample.weights.wide + c..], dw[n]);
                }
                add(simd, &mut self.db[c..], db[n]);
            }
        }
    }
}

#[inline(always)]
fn add<S: Simd>(simd: S, to: &mut [f32], vector: S::f32s) {
    store(simd, to, simd.add_f32s(load(simd, to), vector));
}

/// The convolution at the four pixels of a window, which begins with `x`.
#[inline(always)]
fn convolve<S: Simd, const K: usize, const N: usize>(
    simd: S,
    x: &[f32],
    row: usize,
    weights: &Weights,
    c: usize,
) -> [[S::f32s; N]; 4] {
    let wide = weights.wide;
    let lanes = S::F32_LANES;
    let taps = &weights.taps[c..(K * K - 1) * wide + c + N * lanes];
    assert!(x.len() > K * row + K, "a window out of range");
    let mut start = [simd.splat_f32s(0.); N];
    for (n, start) in start.iter_mut().enumerate() {
        *start = load(simd, weights.bias.get(c + n * lanes..).unwrap_or_default());
    }
    let mut z = [start; 4];
    for tap in 0..K * K {
        let (w, _) = S::as_simd_f32s(&taps[tap * wide..][..N * lanes]);
        for (q, z) in z.iter_mut().enumerate() {
            // Safety: at most row K and column K of the window, in range by the assertion.
            let number = unsafe { *x.get_unchecked((tap / K + q / 2) * row + tap % K + q % 2) };
            let pixel = simd.splat_f32s(number);
            for n in 0..N {
                z[n] = simd.mul_add_e_f32s(pixel, w[n], z[n]);
            }
        }
    }
    z
}

/// Adds to each tap what the window's pixels see there, times their gradients.
#[inline(always)]
fn add_products<S: Simd, const K: usize, const T: usize, const N: usize>(
    simd: S,
    x: &[f32],
    row: usize,
    dz: &[[S::f32s; N]; 4],
    dw: &mut [[S::f32s; N]; T],
) {
    assert!(x.len() > K * row + K, "a window out of range");
    for (tap, dw) in dw.iter_mut().enumerate() {
        for (q, dz) in dz.iter().enumerate() {
            // Safety: as in `convolve`.
            let number = unsafe { *x.get_unchecked((tap / K + q / 2) * row + tap % K + q % 2) };
            let pixel = simd.splat_f32s(number);
            for n in 0..N {
                dw[n] = simd.mul_add_e_f32s(pixel, dz[n], dw[n]);
            }
        }
    }
}
