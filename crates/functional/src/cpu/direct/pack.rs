//! The weights as the kernels read them, and the sums of their gradients on the way back to
//! PyTorch's layout. It multiplies nothing.

use super::Direct;
use crate::cpu::vector::{Aligned, VECTOR};
use pulp::Simd;

/// The packed weights and bias.
pub(super) struct Weights {
    /// The channels as whole vectors.
    pub(super) wide: usize,
    /// Floats of a kernel's row in `rows`.
    pub(super) step: usize,
    /// A row of `wide` channels for each tap; empty where the pass does not compute z.
    pub(super) taps: Aligned,
    /// For each channel its kernel's rows, padded to `step`.
    pub(super) rows: Aligned,
    /// A pixel of z.
    pub(super) bias: Vec<f32>,
}

impl Weights {
    pub(super) fn new<S: Simd>(
        d: &Direct,
        weight: &[f32],
        bias: Option<&[f32]>,
        convolves: bool,
    ) -> Self {
        let wide = d.g.out_channels.next_multiple_of(S::F32_LANES);
        let step = d.run().next_multiple_of(VECTOR);
        let mut rows = Aligned::zeros(d.g.out_channels * d.g.kernel.0 * step);
        for_each_weight(d, step, |theirs, ours| rows[ours] = weight[theirs]);
        let mut taps = Aligned::zeros(if convolves { d.g.taps() * wide } else { 0 });
        if convolves {
            transpose(d, wide, &rows, &mut taps);
        }
        let mut padded = vec![0.; d.z_pixel()];
        if let Some(bias) = bias {
            padded[..bias.len()].copy_from_slice(bias);
        }
        Self {
            wide,
            step,
            taps,
            rows,
            bias: padded,
        }
    }
}

/// From a row for each channel to a row for each tap.
fn transpose(d: &Direct, wide: usize, rows: &[f32], taps: &mut [f32]) {
    let (run, step) = (d.run(), d.run().next_multiple_of(VECTOR));
    for (t, tap) in taps.chunks_exact_mut(wide).enumerate() {
        let channels = rows[t / run * step + t % run..].iter();
        for (to, from) in tap.iter_mut().zip(channels.step_by(d.g.kernel.0 * step)) {
            *to = *from;
        }
    }
}

/// Calls `f` with each weight's index in PyTorch's layout, and in rows of `step` for each channel
/// and kernel row.
fn for_each_weight(d: &Direct, step: usize, mut f: impl FnMut(usize, usize)) {
    let (kh, kw) = d.g.kernel;
    let mut theirs = 0;
    for o in 0..d.g.out_channels {
        for i in 0..d.g.channels {
            for ky in 0..kh {
                for kx in 0..kw {
                    f(theirs, (o * kh + ky) * step + kx * d.g.channels + i);
                    theirs += 1;
                }
            }
        }
    }
}

/// The gradients of weight and bias, added up: for each tap a row of `wide` channels, then a pixel of
/// z for the bias.
pub(super) struct Sums {
    pub(super) all: Vec<f32>,
    pub(super) wide: usize,
}

impl Sums {
    /// Floats of both parts.
    pub(super) fn len(d: &Direct, wide: usize) -> usize {
        (d.g.taps() * wide).next_multiple_of(VECTOR) + d.z_pixel()
    }

    pub(super) fn split<'a>(
        d: &Direct,
        wide: usize,
        all: &'a mut [f32],
    ) -> (&'a mut [f32], &'a mut [f32]) {
        let (taps, db) = all.split_at_mut(d.g.taps() * wide);
        let padding = db.len() - d.z_pixel();
        (taps, &mut db[padding..])
    }

    pub(super) fn unpack(mut self, d: &Direct, dw: &mut [f32], db: &mut [f32]) {
        let wide = self.wide;
        let (taps, bias) = Self::split(d, wide, &mut self.all);
        for_each_weight(d, d.run(), |theirs, ours| {
            let (o, tap) = (ours / d.g.taps(), ours % d.g.taps());
            dw[theirs] = taps[tap * wide + o];
        });
        let channels = db.len();
        db.copy_from_slice(&bias[..channels]);
    }
}
