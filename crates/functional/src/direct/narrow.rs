//! The narrow channels of the convolution: dot products along the runs of x.

use super::Direct;
use super::pack::Weights;
use super::vector::load;
use pulp::{Simd, WithSimd};

/// Pixels and channels whose sums are in registers at once.
const PIXELS: usize = 4;
const CHANNELS: usize = 2;

/// z's narrow channels.
pub(super) fn convolve<S: Simd>(d: &Direct, simd: S, x: &[f32], weights: &Weights, z: &mut [f32]) {
    simd.vectorize(Tiles { d, x, weights, z });
}

struct Tiles<'a> {
    d: &'a Direct,
    x: &'a [f32],
    weights: &'a Weights,
    z: &'a mut [f32],
}

impl WithSimd for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { d, x, weights, z } = self;
        for channel in (weights.wide..d.g.out_channels).step_by(CHANNELS) {
            for pixel in (0..z.len() / d.z_pixel()).step_by(PIXELS) {
                tile(d, simd, x, weights, z, pixel, channel);
            }
        }
    }
}

/// Past the last pixel or channel, the last one is computed again.
#[inline(always)]
fn tile<S: Simd>(
    d: &Direct,
    simd: S,
    x: &[f32],
    weights: &Weights,
    z: &mut [f32],
    pixel: usize,
    channel: usize,
) {
    let (last_pixel, last_channel) = (z.len() / d.z_pixel() - 1, d.g.out_channels - 1);
    let mut pixels = [0; PIXELS];
    for (i, p) in pixels.iter_mut().enumerate() {
        *p = (pixel + i).min(last_pixel);
    }
    let mut channels = [0; CHANNELS];
    for (i, c) in channels.iter_mut().enumerate() {
        *c = (channel + i).min(last_channel);
    }
    let mut sums = [[simd.splat_f32s(0.); CHANNELS]; PIXELS];
    for ky in 0..d.g.kernel.0 {
        let (mut rows, mut runs) = ([&[][..]; CHANNELS], [&[][..]; PIXELS]);
        for (row, c) in rows.iter_mut().zip(&channels) {
            *row = &weights.rows[(c * d.g.kernel.0 + ky) * weights.step..][..weights.step];
        }
        for (run, p) in runs.iter_mut().zip(&pixels) {
            *run = &x[ky * d.row() + d.pixels[*p]..][..d.run()];
        }
        for k in (0..d.run()).step_by(S::F32_LANES) {
            let mut w = [simd.splat_f32s(0.); CHANNELS];
            for (w, row) in w.iter_mut().zip(&rows) {
                *w = load(simd, &row[k..]);
            }
            for (run, sums) in runs.iter().zip(&mut sums) {
                // zeros past the run's end, where x may hold anything
                let x = load(simd, &run[k..]);
                for (sum, w) in sums.iter_mut().zip(&w) {
                    *sum = simd.mul_add_e_f32s(x, *w, *sum);
                }
            }
        }
    }
    for (p, sums) in pixels.iter().zip(&sums) {
        for (c, sum) in channels.iter().zip(sums) {
            z[p * d.z_pixel() + c] = simd.reduce_sum_f32s(*sum) + weights.bias[*c];
        }
    }
}
